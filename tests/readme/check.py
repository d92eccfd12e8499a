#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check.py README PROGRAM: the first C++ block of the README is the program, to the letter."""
import re
import sys
from pathlib import Path

readme, program = (Path(name).read_text() for name in sys.argv[1:])
block = re.search(r"```cpp\n(.*?)```", readme, re.DOTALL)
if block is None or block.group(1) != program:
    sys.exit(f"{sys.argv[1]}: its first program is no longer {sys.argv[2]}; copy that into the README")
