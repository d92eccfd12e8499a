#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What weft is good for, in four scenes, each beside what one would do without it."""

import argparse
import os
import sys

import scenes
from processes import Failure


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", help="the build directory")
    parser.add_argument("--scene", type=int, choices=range(1, len(scenes.ALL) + 1), help="only this one")
    parser.add_argument("--quick", action="store_true", help="too short for its figures to mean much")
    asked = parser.parse_args()
    programs = os.path.join(os.path.abspath(asked.build), "examples")
    for number, scene in enumerate(scenes.ALL, 1):
        if asked.scene in (None, number):
            scene(programs, scenes.QUICK if asked.quick else scenes.WHOLE)


if __name__ == "__main__":
    try:
        main()
    except Failure as why:
        sys.exit(f"demo: {why}")
    except KeyboardInterrupt:
        sys.exit(130)
