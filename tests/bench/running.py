# SPDX-License-Identifier: Apache-2.0
"""What the scripts of benchmarks share: their options, what a program is counted to do, and how they end."""
import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path

import rows

PATIENCE = 900  # seconds for any single run


def options_of(description, quick, quick_is, **more):
    """The build, --quick, which sets what `quick` has, and more by name: a default, which is False of a switch, and help."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("build", type=lambda path: Path(path).resolve())
    for name, (default, what) in more.items():
        how = {"action": "store_true"} if default is False else {"type": type(default), "default": default}
        parser.add_argument(f"--{name.replace('_', '-')}", help=what, **how)
    parser.add_argument("--quick", action="store_true", help=quick_is)
    options = parser.parse_args()
    if options.quick:
        vars(options).update(quick)
    return options


def done(*command, **environment):
    """A run that has succeeded."""
    run = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env={**os.environ, **environment}, timeout=PATIENCE, check=False)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{run.stderr[-2000:]}")
    return run


CALLGRIND = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]


def collected(said):
    """Of what callgrind says at the end."""
    return int(re.search(r"Collected : (\d+)", said)[1])


def instructions(*command, **environment):
    """In user space."""
    return collected(done(*CALLGRIND, *command, **environment).stderr)


def system_calls(*command, **environment):
    """{name: calls}"""
    with tempfile.NamedTemporaryFile("r") as out:
        done("strace", "-f", "-c", "-U", "name,calls", "-o", out.name, *command, **environment)
        lines = [line.split() for line in out]
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit() and line[0] != "total"}


def finish(build, name, found, what="figures", **more):
    """Prints the rows, and writes them with what more there is to tell."""
    path = build / f"bench/{name}.json"
    rows.write(path, found, **more)
    print("\n" + "\n".join(rows.table(found)))
    print(f"\n{rows.count(found)}; all {what} in {path}")


def missed(found):
    return any(row.verdict == rows.MISSED for row in found)
