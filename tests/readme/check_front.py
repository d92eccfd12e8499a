#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_front.py ROOT: the README has at most 150 lines, and its code is a program's, which the tests build and run."""
import subprocess
import sys
from pathlib import Path

LONGEST = 150

root = Path(sys.argv[1])
lines = (root / "README.md").read_text().splitlines()
if len(lines) > LONGEST:
    sys.exit(f"README.md has {len(lines)} lines, more than {LONGEST}: move something to docs/")
if not any(before.startswith("<!-- excerpt: ") and line == "```cpp" for before, line in zip(lines, lines[1:])):
    sys.exit("README.md shows no program's code: <!-- excerpt: FILE --> in the line before a block of C++ names the program")
blocks = sum(line == "```cpp" for line in lines)
if blocks != 1:
    sys.exit(f"README.md has {blocks} blocks of C++; one, and all of it an excerpt, is what the tests run")
check = root / "tests/docs/check_excerpts.py"
sys.exit(subprocess.run([check, root, root / "README.md"], check=False).returncode)
