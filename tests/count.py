#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""count.py FAILED_STEPS BUILD_DIR...: adds up what CTest ran in some build directories.

FAILED_STEPS are the names of the other steps that failed, one on each line; each counts as one failed case.

A GoogleTest program counts as the cases in the report it wrote, or in those in a folder of its name if it was several,
any other test as one case. A program that failed although its report shows no failure (it died before it could write
one, or a sanitizer spoke at its end) counts as one failed case more. What failed comes last, with what it said. The last
line reads `N passed, N failed[, N skipped]`; the exit code is 1 if anything failed.
"""
import sys
from pathlib import Path
from xml.etree import ElementTree


def google_test_cases(report):
    """(name, outcome, reason) of each case."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        failures = [failure.text or failure.get("message") or "" for failure in case.iter("failure")]
        if failures:
            yield name, "failed", "\n".join(failures)
        elif case.get("status") == "notrun" or case.get("result") == "skipped":
            yield name, "skipped", ""
        else:
            yield name, "passed", ""


def end_of(text):
    """The last lines: what a program says before it ends is most often why."""
    return "\n".join(text.splitlines()[-60:])


def cases(build):
    """(name, outcome, reason) of each case that the last ctest in `build` ran."""
    for test in ElementTree.parse(build / "ctest.xml").iter("testcase"):
        name = f"{build.name}: {test.get('name')}"
        results = build / "results"
        reports = [*results.glob(f"{test.get('name')}.xml"), *results.glob(f"{test.get('name')}/*.xml")]
        inner = [case for report in reports for case in google_test_cases(report)]
        for case, outcome, reason in inner:
            yield f"{name} {case}", outcome, reason
        if test.find("skipped") is not None or test.get("status") in ("notrun", "disabled"):
            yield name, "skipped", (test.findtext("system-out") or "").strip()
        elif test.get("status") == "fail" and not any(outcome == "failed" for _, outcome, _ in inner):
            yield name, "failed", "ended badly: " + end_of(test.findtext("system-out") or "")
        elif not inner:
            yield name, "passed", ""


def main():
    counts = {"passed": 0, "skipped": 0, "failed": 0}
    found = [case for build in map(Path, sys.argv[2:]) for case in cases(build)]
    found += [(step, "failed", "") for step in sys.argv[1].splitlines()]
    for name, outcome, reason in sorted(found, key=lambda case: case[1] == "failed"):  # what failed comes last
        counts[outcome] += 1
        if outcome != "passed":
            print(f"{outcome}: {name}" + (f" ({reason})" if reason else ""))
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    print(f"{counts['passed']} passed, {counts['failed']} failed{skipped}")
    return 1 if counts["failed"] else 0


sys.exit(main())
