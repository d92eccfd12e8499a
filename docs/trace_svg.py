#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""trace_svg.py TRACE.json > PICTURE.svg: draws a trace of weft (trace_file) the way that trace viewers do, for documents.

A row for each thread, and for each thing that overlaps another of its kind.
"""
import json
import sys
from html import escape

WIDTH, LEFT, ROW = 1000, 10, 16
COLOURS = {1: "#d8dee9", 2: "#8fbcbb", 3: "#ebcb8b", 4: "#bf616a"}


def spans(events):
    """[(group, name, start, end)]"""
    found, open_items = [], {}
    for item in events:
        key = (item.get("cat"), item.get("id"))
        if item["ph"] == "X":
            found.append((item["pid"], item["name"], item["ts"], item["ts"] + item["dur"]))
        elif item["ph"] == "b":
            open_items[key] = item
        elif item["ph"] == "e" and key in open_items:
            begun = open_items.pop(key)
            found.append((begun["pid"], begun["name"], begun["ts"], item["ts"]))
    return sorted(found, key=lambda span: (span[0], span[2]))


def rows_of(items):
    """Each span in the first row where it overlaps nothing."""
    rows = []
    for span in items:
        row = next((row for row in rows if row[-1][3] <= span[2]), None)
        if row is None:
            rows.append(row := [])
        row.append(span)
    return rows


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    titles = {item["pid"]: item["args"]["name"] for item in events if item.get("name") == "process_name"}
    items = spans(events)
    start, end = min(span[2] for span in items), max(span[3] for span in items)
    scale = (WIDTH - 2 * LEFT) / (end - start)
    body, y = [], 0
    for group in sorted(titles):
        y += ROW
        body.append(f'<text x="{LEFT}" y="{y - 4}" class="title">{escape(titles[group])}</text>')
        for row in rows_of([span for span in items if span[0] == group]):
            for _, name, begin, finish in row:
                x, width = LEFT + (begin - start) * scale, max((finish - begin) * scale, 0.5)
                body.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 2}" fill="{COLOURS[group]}"/>')
                letters = int(width / 6)
                if letters >= 4:
                    short = name if len(name) <= letters else name[:letters - 1] + "\u2026"
                    body.append(f'<text x="{x + 2:.1f}" y="{y + ROW - 5}">{escape(short)}</text>')
            y += ROW
    y += ROW
    body.append(f'<text x="{LEFT}" y="{y - 4}" class="title">{(end - start) / 1000:.1f} ms</text>')
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" font-family="monospace" font-size="10">')
    print("<style>.title { font-weight: bold; fill: #1f2328 }"
          " @media (prefers-color-scheme: dark) { .title { fill: #e6edf3 } }</style>")
    print("\n".join(body))
    print("</svg>")


main()
