#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""metrics_svg.py [--check PICTURE] SAMPLES.tsv > PICTURE.svg: draws four panels of grafana.json, for documents.

SAMPLES.tsv is what a Prometheus answered to the queries of these panels:

    metrics_svg.py --ask http://127.0.0.1:9090 BEGIN END > SAMPLES.tsv    both as seconds since 1970

    panel    TITLE    LEGEND    SECONDS:VALUE ...    of a line, from BEGIN on

With --check, whether the picture still shows what the file says.
"""
import argparse
import json
import re
import sys
import urllib.parse
import urllib.request
from html import escape
from pathlib import Path

PANELS = {"Connections open": "", "Operations": " a second", "Bytes": " a second", "Turns and sleeps": " a second"}
STEP = 5  # seconds, and four of them for what Grafana calls $__rate_interval
WIDTH, HEIGHT, LEFT, TOP, PLOT = 430, 190, 50, 46, 110
COLOURS = (("#1a7f64", "#3fb996"), ("#bc4c00", "#f0883e"), ("#0b5cad", "#7db8f5"))  # on light and on dark


def ask(server, begin, end):
    """A row for each line of the panels that is not 0 all the time."""
    dashboard = json.loads((Path(__file__).parent / "grafana.json").read_text())
    shown = {panel["title"]: panel["targets"] for panel in dashboard["panels"] if "targets" in panel}
    for title in PANELS:
        for target in shown[title]:
            query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", f"{4 * STEP}s")
            asked = urllib.parse.urlencode({"query": query, "start": begin, "end": end, "step": STEP})
            with urllib.request.urlopen(f"{server}/api/v1/query_range?{asked}") as answer:
                lines = json.load(answer)["data"]["result"]
            for line in lines:
                name = re.sub(r"{{(\w+)}}", lambda label: line["metric"].get(label[1], ""), target["legendFormat"])
                values = [(int(at) - begin, float(value)) for at, value in line["values"]]
                if any(value for _, value in values):
                    yield "\t".join(("panel", title, name.removeprefix(line["metric"]["instance"]).strip(),
                                     " ".join(f"{at}:{value:.6g}" for at, value in values)))


def short(value):
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def round_up(value):
    """The next 1, 2 or 5 with zeroes."""
    power = 10 ** (len(f"{value:.0f}") - 1)
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def draw_panel(title, lines, left, top, end):
    most = round_up(max(value for _, values in lines for _, value in values))
    x = lambda seconds: left + LEFT + seconds / end * (WIDTH - LEFT - 10)
    y = lambda value: top + TOP + PLOT - value / most * PLOT
    made = [f'<text x="{left + LEFT}" y="{top + 16}">{escape(title + PANELS[title])}</text>']
    for value in (0, most / 2, most):
        made.append(f'<line x1="{x(0):.1f}" y1="{y(value):.1f}" x2="{x(end):.1f}" y2="{y(value):.1f}"/>')
        made.append(f'<text class="quiet" x="{x(0) - 6:.1f}" y="{y(value) + 4:.1f}" text-anchor="end">'
                    f'{short(value)}</text>')
    for seconds in range(0, end + 1, 60):
        made.append(f'<text class="quiet" x="{x(seconds):.1f}" y="{top + TOP + PLOT + 18}" text-anchor="middle">'
                    f'{seconds} s</text>')
    for number, (name, values) in enumerate(lines):
        points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in values)
        made.append(f'<polyline class="line{number}" points="{points}"/>')
        made.append(f'<text class="name{number}" x="{left + LEFT + number * 110}" y="{top + 34}">{escape(name)}</text>')
    return made


def draw(text):
    panels = {}
    for row in text.splitlines():
        _, title, name, samples = row.split("\t")
        values = [tuple(map(float, sample.split(":"))) for sample in samples.split()]
        panels.setdefault(title, []).append((name, values))
    end = int(max(at for lines in panels.values() for _, values in lines for at, _ in values))
    drawn = [line for number, (title, lines) in enumerate(panels.items())
             for line in draw_panel(title, lines, number % 2 * WIDTH, number // 2 * HEIGHT, end)]
    styles = ["", ""]
    for number, pair in enumerate(COLOURS):
        for scheme, colour in enumerate(pair):
            styles[scheme] += f".line{number} {{ stroke: {colour} }} .name{number} {{ fill: {colour} }}\n"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {2 * HEIGHT}" font-family="sans-serif"
font-size="13">
<title>connections, operations, bytes and turns of a server in three minutes</title>
<style>
text {{ fill: #1f2328 }} .quiet {{ fill: #59636e; font-size: 12px }} line {{ stroke: #d1d9e0 }}
polyline {{ fill: none; stroke-width: 1.6 }}
{styles[0]}@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }} .quiet {{ fill: #9198a1 }} line {{ stroke: #3d444d }}
{styles[1]}}}
</style>
{chr(10).join(drawn)}
</svg>
"""


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--ask", metavar="URL")
    parser.add_argument("rest", nargs="+")
    options = parser.parse_args()
    if options.ask:
        print("\n".join(ask(options.ask, *map(int, options.rest))))
        return
    picture = draw(Path(options.rest[0]).read_text())
    if options.check is None:
        print(picture, end="")
    elif options.check.read_text() != picture:
        sys.exit("docs/metrics.svg is not of docs/metrics.tsv: docs/metrics_svg.py docs/metrics.tsv > docs/metrics.svg")


main()
