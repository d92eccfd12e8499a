#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_ci.py [SOURCE_DIR]: what docs/installing.md says is run in continuous integration, the files of GitHub and of
GitLab run, and nothing else; and the parts of the full run are all among it."""
import re
import sys
from pathlib import Path

PART = r"\$\{\{ matrix\.part \}\}|\$PART\b"


def runs(text, begin):
    """(image, command) of each line of a file that runs ./dev. A line that names an image is for what follows it."""
    image, found = None, set()
    for line in text[text.index(begin):].splitlines():
        if named := re.search(r'image: "?([\w:.]+)', line):
            image = named[1]
        elif command := re.search(r"- (?:run: )?(\./dev .*)", line):
            found.add((image, re.sub(PART, "K", command[1])))
    return found


def parts(text):
    return {tuple(re.findall(r"\d+", each)) for each in re.findall(r"(?i)part: \[(.*)\]", text)}


def table(text):
    rows = re.findall(r"^\| Debian (\d+) \|.*?\| `(\./dev [^`]*)` \|.*$", text, re.M)
    return {(f"debian:{number}", command) for number, command in rows}


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[2]
    names = re.search(r"^full_parts=\((.*)\)", (root / "dev").read_text(), re.M)[1].split()
    wanted = table((root / "docs/installing.md").read_text())
    faults = [] if wanted else ["docs/installing.md has no table of what is run where"]
    for name, begin in ((".github/workflows/test.yml", "jobs:"), (".gitlab-ci.yml", "default:")):
        text = (root / name).read_text()
        faults += [f"{name} lacks {each}" for each in sorted(wanted - runs(text, begin))]
        faults += [f"{name} runs {each}, of which docs/installing.md says nothing"
                   for each in sorted(runs(text, begin) - wanted)]
        if parts(text) != {tuple(str(each + 1) for each in range(len(names)))}:
            faults.append(f"{name} has other parts of the full run than dev")
    print("\n".join(faults) or f"all of {len(wanted)} rows")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
