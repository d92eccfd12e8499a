#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""all.py BUILD_DIR: every benchmark in its quick form, and one page of what they have found.

The page is BUILD_DIR/bench/all.txt, all.json and all.svg, and a file of Markdown where one is asked for. Benchmarks that
take a virtual machine run where --guests asks for them. Exits with 1 if a benchmark has broken; a missed goal is a row.
"""
import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import machine
import page
import rows

HERE = Path(__file__).resolve().parent
PATIENCE = 3600  # seconds for any benchmark
# Scripts and the files that have their rows. Each script is NAME.sh, but for the memory's, which has a part without a guest.
BENCHMARKS = {name: (f"{name}.sh", [f"{name}.json"]) for name in
              ("runtime", "asio", "echo", "http", "redis", "net", "shm", "fabric", "copy", "kvcache", "lists", "nvme",
               "scale")}
BENCHMARKS["memory"] = ("memory.py", ["memory.json"])
IN_GUESTS = {"memory": ("memory.sh", ["memory.json", "memory_in_guest.json"]), "verbs": ("verbs.sh", ["verbs.json"])}
NOT_QUICK = {"verbs"}  # counts as few operations as it can


def run(name, script, files, options):
    """The benchmark's part of the page."""
    results = options.build / "bench"
    for file in files:
        (results / file).unlink(missing_ok=True)  # else an old one passes for today's
    log = results / f"{name}.log"
    begin = time.monotonic()
    quick = [] if options.thorough or name in NOT_QUICK else ["--quick"]
    with log.open("w") as said:
        try:
            status = subprocess.run([HERE / script, options.build, *quick], stdin=subprocess.DEVNULL, stdout=said,
                                    stderr=subprocess.STDOUT, timeout=PATIENCE, check=False).returncode
        except subprocess.TimeoutExpired:
            status = "too late"
    found, missing = [], []
    for file in files:
        try:
            found += rows.read(results / file)
        except (OSError, ValueError, KeyError):  # not written, or not in the form that all others have
            missing.append(file)
    # A status of 1 may tell of a missed goal, and the rows tell of those.
    broken = not found or status not in (0, 1)
    return {"name": name, "seconds": time.monotonic() - begin, "rows": found, "note": note_of(broken, missing, log),
            "broken": broken}


def note_of(broken, missing, log):
    """Without the place of the build, which says nothing to who reads the page elsewhere."""
    where = f"see {log.parent.name}/{log.name} in the build"
    if broken:
        return f"The benchmark has broken, {where}."
    return f"There is no {' and no '.join(missing)}, {where}." if missing else ""


def run_all(options):
    chosen = {name: BENCHMARKS[name] for name in BENCHMARKS if (HERE / BENCHMARKS[name][0]).exists()}
    if options.guests:
        chosen.update(IN_GUESTS)
    if options.only:
        unknown = set(options.only) - chosen.keys()
        if unknown:
            sys.exit(f"there is no benchmark {', '.join(sorted(unknown))} here; there are {', '.join(chosen)}")
        chosen = {name: chosen[name] for name in options.only}
    about = machine.description(options.build)
    begun = time.monotonic()
    load_before = machine.load()
    found = []
    for name, (script, files) in chosen.items():
        if sys.stderr.isatty():
            print(f"\r\x1b[K{name}", end="", file=sys.stderr, flush=True)
        found.append(run(name, script, files, options))
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        print(f"{name:10}{found[-1]['seconds']:5.0f} s  {found[-1]['note'] or rows.count(found[-1]['rows'])}", flush=True)
    about["load"] = f"{load_before:.1f} before, {machine.load():.1f} at the end"
    about["measured"] = f"{time.strftime('%Y-%m-%d')}, in {time.monotonic() - begun:.0f} s" + \
                        ("" if options.thorough else ", in the quick form")
    return {"machine": about, "benchmarks": found}


def read(path):
    found = json.loads(path.read_text())
    for each in found["benchmarks"]:
        each["rows"] = [rows.Row.from_json(item) for item in each["rows"]]
    return found


def write(path, found):
    benchmarks = [{**each, "rows": [row.as_json() for row in each["rows"]]} for each in found["benchmarks"]]
    path.write_text(json.dumps({**found, "benchmarks": benchmarks}, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description="every benchmark, and one page of what they have found")
    parser.add_argument("build", type=Path)
    parser.add_argument("--write", metavar="FILE", help="write the page as Markdown too: docs/performance.md")
    parser.add_argument("--only", type=lambda names: names.split(","), metavar="NAME,...", help="these benchmarks alone")
    parser.add_argument("--guests", action="store_true", help="also what takes a virtual machine: minutes each")
    parser.add_argument("--thorough", action="store_true", help="each benchmark as long as it takes by itself")
    parser.add_argument("--render", action="store_true", help="measure nothing: write the last page again")
    options = parser.parse_args()
    options.build = options.build.resolve()
    results = options.build / "bench"
    results.mkdir(exist_ok=True)
    if options.render:
        found = read(results / "all.json")
    else:
        found = run_all(options)
        write(results / "all.json", found)
    (results / "all.txt").write_text(page.as_text(found))
    (results / "all.svg").write_text(page.as_svg(found))
    if options.write:
        Path(options.write).write_text(page.as_markdown(found, options.write))
    print(f"{rows.count(page.rows_of(found))}; the page is {results / 'all.txt'}, with all.json and all.svg beside it"
          + (f", and {options.write}" if options.write else ""))
    sys.exit(any(each["broken"] for each in found["benchmarks"]))


if __name__ == "__main__":
    main()
