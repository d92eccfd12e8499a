#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tasks_test.py PROGRAM SCRIPT: a core dump of PROGRAM (stuck.cpp), and what `weft tasks` of SCRIPT makes of it.

Skipped (exit code 77) where there is no gdb, or where it may not start a program.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77


def gdb(*arguments):
    # Neither this machine's settings nor its debug servers.
    environment = {**os.environ, "DEBUGINFOD_URLS": "", "HOME": "/nonexistent"}
    done = subprocess.run(["gdb", "-nx", "-batch", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=120, env=environment, check=False)
    return done.stdout


def main(program, script):
    if shutil.which("gdb") is None:
        print("skipped: there is no gdb (Debian: gdb)")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        core = os.path.join(folder, "core")
        said = gdb("-ex", "run", "-ex", f"generate-core-file {core}", program)
        if not os.path.exists(core):
            if re.search(r"ptrace|not permitted|personality", said):
                print(f"skipped: gdb may not start a program here\n{said}")
                return SKIPPED
            print(f"no core dump\n{said}")
            return 1
        listing = gdb("-x", script, "-ex", "weft tasks", program, core)
    failures = 0
    for what, pattern in (
            ("both executors", r"(?s)weft: executor at 0x[0-9a-f]+, .*weft: executor at 0x[0-9a-f]+, "),
            ("the root, and how many are in its scope",
             r"(?m)^- run_server \(stuck\.cpp:\d+\); its scope has 4 tasks$"),
            ("a task with the names of task and scope, whom it awaits, and the operation",
             r"(?m)^  - \[peers\] first: serve \(stuck\.cpp:\d+\) > read_request \(stuck\.cpp:\d+\); "
             r"\d+\.\d{3} s on weft::event::wait_operation$"),
            ("a timer", r"(?m)^  - \[peers\] tick \(stuck\.cpp:\d+\); \d+\.\d{3} s on weft::.*sleep"),
            ("the task that runs", r"(?m)^  - \[peers\] crash \(stuck\.cpp:\d+\); ready or running$"),
            ("a task on another executor", r"(?m)^- .*work_elsewhere \(stuck\.cpp:\d+\); "
                                           r"\d+\.\d{3} s on weft::event::wait_operation$")):
        if not re.search(pattern, listing):
            print(f"not there: {what}")
            failures += 1
    if failures:
        print(listing)
    return 1 if failures else 0


sys.exit(main(*sys.argv[1:]))
