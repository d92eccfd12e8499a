#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scale.py BUILD_DIR [--program PROGRAM] [--quick]: what one operation costs while weft holds ever more.

Instructions in user space are counted by callgrind, from when everything is set up. Times are medians of stretches of
operations; they include misses of the processor's caches, depend on the machine, and have no goal.

The goal of each row is that the cost at the largest size is at most twice the cost at a middle one; or, where something
is ordered, that it grows no faster than the logarithm of the size does, and a quarter.

Prints a table, and writes it to BUILD_DIR/bench/scale.json, and a picture to BUILD_DIR/bench/scale.svg. Exits with 1 if
a goal was missed.
"""
import json
import math
import sys
from html import escape
from pathlib import Path

import rows
from running import done, instructions, options_of

# What, the case of scale_cost, the sizes, which of them is the middle one, operations, how it may grow.
CASES = [
    ("look a key up, of so many open ones", "key_look_up", [10, 100, 1000, 10_000, 100_000, 1_000_000], 2000, "constant"),
    ("open a key and erase one", "key_open_and_erase", [10, 100, 1000, 10_000, 100_000, 1_000_000], 2000, "constant"),
    ("expose memory, revoke an exposure", "expose_and_revoke", [10, 100, 1000, 10_000, 100_000], 1000, "logarithmic"),
    ("retire an exposure, confirmed by the peer", "retire_and_confirm", [10, 100, 1000, 10_000, 100_000], 1000,
     "logarithmic"),
    ("cut memory anew, of so many full arenas", "recut_an_arena", [16, 64, 256, 1024, 4096], 500, "logarithmic"),
    ("lease memory that a cache keeps", "lease_what_is_kept", [10, 100, 1000, 10_000, 100_000, 1_000_000], 2000,
     "logarithmic"),
    ("lease memory in the place of the oldest", "lease_and_evict", [10, 100, 1000, 10_000, 100_000, 1_000_000], 500,
     "logarithmic"),
    ("invalidate an extent, lease it again", "invalidate_and_lease", [10, 100, 1000, 10_000, 100_000, 1_000_000], 500,
     "logarithmic"),
]
COLOURS = ["#5e81ac", "#bf616a", "#a3be8c", "#b48ead", "#d08770", "#88c0d0", "#ebcb8b", "#4c566a"]


def measure(program, case, size, count):
    # valgrind lets one thread run at a time, also while that one sleeps in a ring.
    command, how = [program, case, size, count], {"WEFT_EVENT_DRIVER": "epoll"}
    return {"size": size, "instructions": instructions("--instr-atstart=no", *command, **how) / count,
            "nanoseconds": json.loads(done(*command, **how).stdout)["nanoseconds"]}


def middle_of(points):
    """The last but two, of six or five: a thousand, or so; the first of two."""
    return points[2] if len(points) > 2 else points[0]


def verdict(points, growth):
    middle, largest = middle_of(points), points[-1]
    ratio = largest["instructions"] / middle["instructions"]
    most = 2.0 if growth == "constant" else 1.25 * math.log(largest["size"]) / math.log(middle["size"])
    return {"ratio": ratio, "at_most": most, "reached": ratio <= most}


def row_of(item):
    """What the page has of it: the instructions at the largest size beside those at a middle one."""
    middle, largest = middle_of(item["points"]), item["points"][-1]
    return rows.Row(f"{item['what']}, {largest['size']:,}", largest["instructions"], "instructions",
                    middle["instructions"], f"at {middle['size']:,}", at_most=item["at_most"])


def picture(plotted):
    """Instructions over size, both on logarithmic scales."""
    width, height, left, bottom = 860, 460, 60, 40
    right, top = 330, 20
    points = [point for row in plotted for point in row["points"]]
    high = math.ceil(math.log10(max(point["instructions"] for point in points)))
    low = math.floor(math.log10(min(point["instructions"] for point in points)))
    wide = math.log10(max(point["size"] for point in points))

    def x(size):
        return left + (width - left - right) * (math.log10(size) - 1) / max(wide - 1, 1)

    def y(cost):
        return height - bottom - (height - bottom - top) * (math.log10(cost) - low) / max(high - low, 1)

    body = []
    for power in range(low, high + 1):
        body.append(f'<line x1="{left}" x2="{width - right}" y1="{y(10 ** power):.1f}" y2="{y(10 ** power):.1f}" '
                    f'stroke="#d8dee9"/><text x="{left - 6}" y="{y(10 ** power) + 4:.1f}" text-anchor="end">'
                    f'{10 ** power:,}</text>')
    for power in range(1, int(wide) + 1):
        body.append(f'<text x="{x(10 ** power):.1f}" y="{height - bottom + 16}" text-anchor="middle">{10 ** power:,}</text>')
    body.append(f'<text x="{left}" y="{height - 8}">items that are held; above: instructions of one operation</text>')
    for i, row in enumerate(plotted):
        line = " ".join(f'{x(point["size"]):.1f},{y(point["instructions"]):.1f}' for point in row["points"])
        colour = COLOURS[i % len(COLOURS)]
        body.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body.append(f'<text x="{width - right + 12}" y="{top + 16 * (i + 1)}" fill="{colour}">{escape(row["what"])}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="monospace" '
            'font-size="11">\n' + "\n".join(body) + "\n</svg>\n")


def main():
    options = options_of("what one operation costs while weft holds ever more", {},
                         "only the middle and the largest size of each", program=(Path(), "another build of scale_cost"),
                         case=("", "only these cases of scale_cost, with commas between them"))
    program = options.program if options.program != Path() else options.build / "tests/bench/scale_cost"
    plotted = []
    for what, case, sizes, count, growth in CASES:
        if options.case and case not in options.case.split(","):
            continue
        if options.quick:
            sizes = [sizes[min(2, len(sizes) - 1)], sizes[-1]]
        print(f"{what}:", flush=True)
        points = []
        for size in sizes:
            points.append(measure(program, case, size, count))
            print(f"{size:14,}{points[-1]['instructions']:12,.0f} instructions{points[-1]['nanoseconds']:12,.0f} ns",
                  flush=True)
        plotted.append({"what": what, "case": case, "growth": growth, "points": points, **verdict(points, growth)})

    print(f"\n{'':44}{'at a middle size':>18}{'at the largest':>18}")
    for row in plotted:
        middle, largest = middle_of(row["points"]), row["points"][-1]
        print(f"{row['what']:44}{middle['instructions']:18,.0f}{largest['instructions']:18,.0f}   "
              f"x {row['ratio']:.2f}, goal: {row['growth']}, <= {row['at_most']:.2f}: "
              f"{'reached' if row['reached'] else 'MISSED'}")
    results = options.build / "bench"
    results.mkdir(exist_ok=True)
    rows.write(results / "scale.json", [row_of(item) for item in plotted], plotted=plotted)
    (results / "scale.svg").write_text(picture(plotted))
    print(f"\nall figures in {results / 'scale.json'}, a picture in {results / 'scale.svg'}")
    sys.exit(not all(row["reached"] for row in plotted))


main()
