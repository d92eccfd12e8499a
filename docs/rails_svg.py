#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rails_svg.py [--check PICTURE] CARRIED.tsv > PICTURE.svg: draws what two cables carried while they were pulled.

CARRIED.tsv is what tests/vm/pulled_cables.sh leaves, with seconds in the second column:

    rails    NAME
    pause    SECONDS                    the longest time in which the program's operations stood still
    mark     SECONDS   cable N pulled | cable N plugged in
    carried  SECONDS   BYTES   BYTES    over each cable so far, both ways

With --check, whether the picture still shows what the file says.
"""
import argparse
import re
import sys
from html import escape
from pathlib import Path

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 860, 290, 60, 64, 36
STEP = 0.3  # seconds that a point of a line stands for


def rows_of(text):
    """{kind: [the other columns]}"""
    found = {}
    for line in text.splitlines():
        kind, *columns = line.split("\t")
        found.setdefault(kind, []).append(columns)
    return found


def rates_of(samples):
    """[(end of a step, (bytes a second over each cable))]"""
    rates, begin = [], samples[0]
    for sample in samples[1:]:
        passed = sample[0] - begin[0]
        if passed >= STEP:
            rates.append((sample[0], tuple((now - then) / passed for now, then in zip(sample[1:], begin[1:]))))
            begin = sample
    return rates


def times_without(marks, end):
    """[(cable, from, until)]"""
    out, found = {}, []
    for seconds, words in marks:
        cable, what = re.fullmatch(r"cable (\d) (pulled|plugged in)", words).groups()
        if what == "pulled":
            out[cable] = float(seconds)
        else:
            found.append((cable, out.pop(cable), float(seconds)))
    return found + [(cable, begin, end) for cable, begin in out.items()]


def draw(text):
    rows = rows_of(text)
    samples = [(float(seconds), *map(int, carried)) for seconds, *carried in rows["carried"]]
    rates = rates_of(samples)
    begin, end = samples[0][0], samples[-1][0]
    most = max(max(each) for _, each in rates)
    x = lambda seconds: LEFT + (seconds - begin) / (end - begin) * (WIDTH - LEFT - 10)
    y = lambda rate: HEIGHT - BOTTOM - rate / most * (HEIGHT - BOTTOM - TOP)
    lines = []
    for cable, pulled, plugged in times_without(rows["mark"], end):
        lines.append(f'<rect class="out{cable}" x="{x(pulled):.1f}" y="{TOP}" width="{x(plugged) - x(pulled):.1f}" '
                     f'height="{HEIGHT - BOTTOM - TOP}"/>')
    for rate in (0, most / 2, most):
        lines.append(f'<line x1="{LEFT}" y1="{y(rate):.1f}" x2="{WIDTH - 10}" y2="{y(rate):.1f}"/>')
        lines.append(f'<text class="quiet" x="{LEFT - 6}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate / 1e6:.1f}</text>')
    for seconds in range(0, int(end - begin) + 1, 5):
        lines.append(f'<text class="quiet" x="{x(begin + seconds):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">'
                     f'{seconds} s</text>')
    for cable in range(len(samples[0]) - 1):
        points = " ".join(f"{x(seconds):.1f},{y(each[cable]):.1f}" for seconds, each in rates)
        lines.append(f'<polyline class="cable{cable}" points="{points}"/>')
        lines.append(f'<text class="name{cable}" x="{LEFT + cable * 90}" y="{TOP - 12}">cable {cable}</text>')
    title = f'MB/s over each cable, {rows["rails"][0][0]}; shaded where one is pulled'
    pause = f'longest pause {float(rows["pause"][0][0]) * 1000:.0f} ms, no error'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">
<title>what two cables carry while they are pulled and plugged in again</title>
<style>
text {{ fill: #1f2328 }} .quiet {{ fill: #59636e; font-size: 12px }} line {{ stroke: #d1d9e0 }}
polyline {{ fill: none; stroke-width: 1.6 }}
.cable0 {{ stroke: #1a7f64 }} .name0 {{ fill: #1a7f64 }} .out0 {{ fill: #1a7f64; opacity: 0.12 }}
.cable1 {{ stroke: #bc4c00 }} .name1 {{ fill: #bc4c00 }} .out1 {{ fill: #bc4c00; opacity: 0.12 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }} .quiet {{ fill: #9198a1 }} line {{ stroke: #3d444d }}
.cable0 {{ stroke: #3fb996 }} .name0 {{ fill: #3fb996 }} .cable1 {{ stroke: #f0883e }} .name1 {{ fill: #f0883e }}
}}
</style>
<text x="{LEFT}" y="24">{escape(title)}</text>
<text class="quiet" x="{WIDTH - 10}" y="{TOP - 12}" text-anchor="end">{pause}</text>
{chr(10).join(lines)}
</svg>
"""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", type=Path)
    parser.add_argument("carried", type=Path)
    options = parser.parse_args()
    picture = draw(options.carried.read_text())
    if options.check is None:
        print(picture, end="")
    elif options.check.read_text() != picture:
        sys.exit("docs/rails.svg is not of docs/rails.tsv: docs/rails_svg.py docs/rails.tsv > docs/rails.svg")


main()
