#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""test.py: weft-check-coroutines finds each line of unsafe.cpp.txt that says so, and nothing in safe.cpp."""
import re
import subprocess
import sys
from pathlib import Path

here = Path(__file__).resolve().parent


def lines_found_in(name):
    done = subprocess.run([sys.executable, here / "weft-check-coroutines", here / name], stdout=subprocess.PIPE,
                          text=True, check=False)
    found = [int(number) for number in re.findall(rf"{re.escape(name)}:(\d+): ", done.stdout)]
    if done.returncode != (1 if found else 0):
        sys.exit(f"{name}: exit status {done.returncode}")
    return found


def difference(name, expected):
    found = lines_found_in(name)
    return [f"{name}:{line}: not found" for line in expected if line not in found] + \
           [f"{name}:{line}: found by mistake" for line in found if line not in expected]


text = (here / "unsafe.cpp.txt").read_text().splitlines()
marked = [number for number, line in enumerate(text, start=1) if line.endswith("// found")]
wrong = difference("unsafe.cpp.txt", marked) + difference("safe.cpp", [])
print("\n".join(wrong) or f"{len(marked)} constructs found, and none by mistake")
sys.exit(1 if wrong or len(marked) < 11 else 0)
