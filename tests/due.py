#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""due.py list BUILD_DIR [--all]: the tests that a change may have broken, as a regular expression for CTest.

A test is due if a file that its command names (its program, its script) is newer than its last success; one with the
label `documentation` also if a page, or a program that pages show, is. Tests with the label `vm`, `fuzz` or `long` are
left to `./dev test`; --all lists those that are long as well.

due.py note BUILD_DIR: takes down what has passed in the last run of CTest.
"""
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

LEFT_OUT = {"vm", "fuzz"}
ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ("*.md", "docs/**/*.md", "examples/**/*.md", "tests/**/*.md", "examples/guide/*")


def tests(build):
    shown = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True)
    return json.loads(shown.stdout)["tests"]


def stamp(build, name):
    return build / "passed" / re.sub(r"\W", "_", name)


def properties(test):
    return {each["name"]: each["value"] for each in test.get("properties", [])}


def looked_at(test, root):
    files = [Path(word) for word in test.get("command", []) if word.startswith("/")]
    if "documentation" in labels(test):
        files += [page for pattern in WRITTEN for page in root.glob(pattern)]
    return files


def labels(test):
    return set(properties(test).get("LABELS", []))


def is_due(build, test, root=ROOT):
    if (LEFT_OUT | {"long"}) & labels(test):
        return False
    passed = stamp(build, test["name"])
    if not passed.exists():
        return True
    files = looked_at(test, root)
    return any(file.is_file() and file.stat().st_mtime > passed.stat().st_mtime for file in files)


def show_due(build, everything):
    names = [test["name"] for test in tests(build)
             if is_due(build, test) or everything and not LEFT_OUT & labels(test)]
    print("|".join(re.escape(name) for name in names))


def note_passed(build):
    (build / "passed").mkdir(exist_ok=True)
    for test in ElementTree.parse(build / "ctest.xml").iter("testcase"):
        if test.get("status") == "run":
            stamp(build, test.get("name")).touch()


def main():
    verb, build = sys.argv[1], Path(sys.argv[2])
    if verb == "list":
        show_due(build, "--all" in sys.argv[3:])
    else:
        note_passed(build)


if __name__ == "__main__":
    main()
