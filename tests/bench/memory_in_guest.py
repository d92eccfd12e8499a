#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""memory_in_guest.py BUILD_DIR: what a lease costs that weft's cache has, beside a registration that libfabric's has.

Runs in a guest with a Soft-RoCE device, for libfabric caches registrations of its verbs provider only; in a guest whose
clock counts instructions (tests/vm/README.md, --instructions), where a nanosecond is one. Both have 1,000 regions.

Prints a line for each, and writes them to /out/memory_in_guest.json.
"""
import json
import subprocess
import sys
from pathlib import Path

import rows
from rows import Row


def said_by(*command):
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def main():
    programs = Path(sys.argv[1]) / "tests/bench"
    for few in [("memory_libfabric", "rxe0"), ("memory_cost", "cache_lease", "1")]:  # fetch their files from the host
        subprocess.run([programs / few[0], *few[1:]], stdout=subprocess.DEVNULL, check=True)
    libfabric = said_by(programs / "memory_libfabric", "rxe0")
    weft = said_by(programs / "memory_cost", "report", "4", "4")["nanoseconds"]["cache_lease"]
    print(f"a lease that the cache has, and its release: weft {weft:.0f} instructions, libfabric {libfabric['hit']:.0f} "
          f"({weft / libfabric['hit']:.2f}); one that libfabric has not: {libfabric['miss']:.0f}")
    figures = {"weft_hit": weft, "libfabric_hit": libfabric["hit"], "libfabric_miss": libfabric["miss"]}
    found = [Row("lease that the cache has, and its release", weft, "instructions", libfabric["hit"], "libfabric's cache")]
    rows.write(Path("/out/memory_in_guest.json"), found, **figures)


main()
