#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_front.py ROOT: the README has at most 120 lines, and its code is of programs, which the tests build and run."""
import subprocess
import sys
from pathlib import Path

LONGEST = 120

root = Path(sys.argv[1])
lines = (root / "README.md").read_text().splitlines()
if len(lines) > LONGEST:
    sys.exit(f"README.md has {len(lines)} lines, more than {LONGEST}: move something to docs/")
blocks = [before for before, line in zip(lines, lines[1:]) if line == "```cpp"]
if not blocks or not all(before.startswith("<!-- excerpt: ") for before in blocks):
    sys.exit("README.md shows code that is no program's: <!-- excerpt: FILE --> in the line before each block names it")
check = root / "tests/docs/check_excerpts.py"
sys.exit(subprocess.run([check, root, root / "README.md"], check=False).returncode)
