#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""figures_svg.py [--check PICTURE] PERFORMANCE.md > PICTURE.svg: draws rows of docs/performance.md for the README.

A bar to the right says how many times better weft is than what it stands beside, a bar to the left how many times worse.
With --check, whether the picture still shows what the page says.
"""
import argparse
import math
import sys
from html import escape
from pathlib import Path

# The row's name, what it stands beside, and how the picture calls it.
ROWS = [
    ("64 B half round trip: weft send, spinning", "raw TCP, spinning", "64 B there and back / 2, TCP"),
    ("64 B writes: weft write, 64 in flight", "ucx_perftest ucp_put_bw", "64 B writes, TCP"),
    ("1 MiB writes: weft write", "raw TCP, spinning", "1 MiB writes, TCP"),
    ("64 B half round trip: weft send, spinning", "ucx_perftest tag_lat", "64 B there and back / 2, shared memory"),
    ("64 B messages one way: weft send, 64 in flight", "ucx_perftest tag_bw", "64 B messages, shared memory"),
    ("1 MiB writes: weft write, 4 in flight", "memcpy in and out", "1 MiB writes, shared memory"),
    ("1 MiB writes: weft write, 4 in flight", "ucx_perftest ucp_put_bw", "1 MiB writes, shared memory"),
    ("copy put over iwarp", "plain TCP program", "a file with SHA-256, TCP"),
    ("HTTP page: weft on io_uring", "nginx", "HTTP pages"),
    ("TCP echo of 512 B: weft on epoll", "libuv", "TCP echo of 512 B"),
    ("spawn into a scope, join", "Asio", "start a task and await it"),
    ("allocate and free, awaited: weft", "mimalloc", "a registered buffer of 4 KiB"),
]
MORE_IS_BETTER = {"requests/s", "M/s", "GB/s", "MiB/s"}
NAMES = {"ucx_perftest ucp_put_bw": "UCX put", "ucx_perftest tag_lat": "UCX tag", "ucx_perftest tag_bw": "UCX tag",
         "plain TCP program": "plain TCP", "raw TCP, spinning": "raw TCP"}
WIDTH, LINE, TOP, MIDDLE, OCTAVE = 860, 24, 40, 430, 46  # OCTAVE: so wide is twice as good


def rows_of(page):
    """{(name, beside): (figure, unit, beside's figure)}"""
    found = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) >= 5 and cells[4]:
            found.setdefault((cells[0], cells[4]), (cells[1], cells[2], cells[3]))
    return found


def draw(page):
    found = rows_of(page)
    lines = []
    for number, (name, beside, words) in enumerate(ROWS):
        if (name, beside) not in found:
            sys.exit(f"docs/performance.md has no row '{name}' beside '{beside}' any more: adapt ROWS")
        figure, unit, other = found[name, beside]
        ratio = float(figure.replace(",", "")) / float(other.replace(",", ""))
        better = ratio if unit in MORE_IS_BETTER else 1 / ratio
        y = TOP + number * LINE
        length = max(abs(math.log2(better)) * OCTAVE, 1.0)
        x = MIDDLE if better >= 1 else MIDDLE - length
        lines.append(f'<text x="10" y="{y + 15}">{escape(words)}</text>')
        lines.append(f'<rect class="{"better" if better >= 1 else "worse"}" x="{x:.1f}" y="{y + 3}" width="{length:.1f}" height="16"/>')
        lines.append(f'<text class="quiet" x="{WIDTH - 10}" y="{y + 15}" text-anchor="end">{escape(figure)} {escape(unit)}, '
                     f'{escape(NAMES.get(beside, beside))} {escape(other)}</text>')
    height = TOP + len(ROWS) * LINE + 10
    for power, label in ((-1, "half as good"), (0, "as good"), (1, "2 x"), (2, "4 x"), (3, "8 x")):
        x = MIDDLE + power * OCTAVE
        lines.insert(0, f'<line x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{height - 8}"/>')
        if power != -1:
            lines.insert(0, f'<text class="quiet" x="{x}" y="{TOP - 14}" text-anchor="middle">{label}</text>')
        else:
            lines.insert(0, f'<text class="quiet" x="{x}" y="{TOP - 14}" text-anchor="end">{label}</text>')
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">
<title>weft beside others: times, rates and instructions of docs/performance.md</title>
<style>
text {{ fill: #1f2328 }} .quiet {{ fill: #59636e; font-size: 12px }} line {{ stroke: #d1d9e0 }}
.better {{ fill: #1a7f64 }} .worse {{ fill: #bc4c00 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }} .quiet {{ fill: #9198a1 }} line {{ stroke: #3d444d }}
.better {{ fill: #3fb996 }} .worse {{ fill: #f0883e }}
}}
</style>
{chr(10).join(lines)}
</svg>
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    picture = draw(options.page.read_text())
    if options.check is None:
        print(picture, end="")
    elif options.check.read_text() != picture:
        sys.exit("docs/figures.svg is not of docs/performance.md: docs/figures_svg.py docs/performance.md > docs/figures.svg")


main()
