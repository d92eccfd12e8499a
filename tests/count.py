#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""count.py FAILED_STEPS BUILD_DIR...: adds up what CTest ran in some build directories.

A GoogleTest program counts as the cases in the report it wrote, any other test as one case. A program that failed
although its report shows no failure (it died before it could write one, or a sanitizer spoke at its end) counts as one
failed case more. The last line reads `N passed, N failed[, N skipped]`; the exit code is 1 if anything failed.
"""
import sys
from pathlib import Path
from xml.etree import ElementTree


def google_test_cases(report):
    """(name, outcome) of each case."""
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None:
            yield name, "failed"
        elif case.get("status") == "notrun" or case.get("result") == "skipped":
            yield name, "skipped"
        else:
            yield name, "passed"


def cases(build):
    """(name, outcome, reason) of each case that the last ctest in `build` ran."""
    for test in ElementTree.parse(build / "ctest.xml").iter("testcase"):
        name = f"{build.name}: {test.get('name')}"
        report = build / "results" / f"{test.get('name')}.xml"
        inner = list(google_test_cases(report)) if report.exists() else []
        for case, outcome in inner:
            yield f"{name} {case}", outcome, ""
        if test.find("skipped") is not None or test.get("status") in ("notrun", "disabled"):
            yield name, "skipped", (test.findtext("system-out") or "").strip()
        elif test.get("status") == "fail" and not any(outcome == "failed" for _, outcome in inner):
            yield name, "failed", "ended badly"
        elif not inner:
            yield name, "passed", ""


def main():
    counts = {"passed": 0, "failed": int(sys.argv[1]), "skipped": 0}
    for build in map(Path, sys.argv[2:]):
        for name, outcome, reason in cases(build):
            counts[outcome] += 1
            if outcome != "passed":
                print(f"{outcome}: {name}" + (f" ({reason})" if reason else ""))
    skipped = f", {counts['skipped']} skipped" if counts["skipped"] else ""
    print(f"{counts['passed']} passed, {counts['failed']} failed{skipped}")
    return 1 if counts["failed"] else 0


sys.exit(main())
