# SPDX-License-Identifier: Apache-2.0
"""One page of the rows of all benchmarks: as text, as Markdown and as a plot.

A page is what all.json has: {"machine": {what: words}, "benchmarks": [{"name", "seconds", "rows", "note"}]}. The note says
why there are no rows, or what is to be known of them.
"""
from xml.sax.saxutils import escape

import rows


def rows_of(page):
    return [row for each in page["benchmarks"] for row in each["rows"]]


def as_text(page):
    lines = [f"{what + ':':12}{words}" for what, words in page["machine"].items()]
    for each in page["benchmarks"]:
        lines += ["", f"== {each['name']}, {each['seconds']:.0f} s"]
        lines += rows.table(each["rows"]) if each["rows"] else []
        lines += [each["note"]] if each["note"] else []
    return "\n".join([*lines, "", rows.count(rows_of(page))]) + "\n"


MARKDOWN_HEAD = """# Performance

Every benchmark's figures, written by `./dev bench all --write {path}`. The ratio is that of the figure to what stands
beside it, measured in the same run. Of rates more is better, of everything else less. Times and rates of a run on a shared
machine vary; instructions, system calls and allocations do not.

| machine | |
|---|---|
"""


def as_markdown(page, path):
    """For users: without the goals, which are the authors'."""
    lines = [MARKDOWN_HEAD.format(path=path).rstrip("\n")]
    lines += [f"| {in_cell(what)} | {in_cell(words)} |" for what, words in page["machine"].items()]
    for each in page["benchmarks"]:
        lines += ["", f"## {each['name']}"]
        if each["note"]:
            lines += ["", each["note"]]
        if each["rows"]:
            lines += ["", "| | figure | | beside | | ratio |", "|---|---:|---|---:|---|---:|"]
            lines += [line_of(row) for row in each["rows"] if not is_said_again(row, each["rows"])]
    return "\n".join(lines) + "\n"


def is_said_again(row, among):
    """Whether another row has the same figure beside something, so that this one was there for its goal alone."""
    return row.baseline is None and any(
        other.baseline is not None and (other.what, other.figure, other.unit) == (row.what, row.figure, row.unit)
        for other in among)


def line_of(row):
    texts = [in_cell(text) for text in rows.cells(row)[:6]]
    return f"| {' | '.join(texts)} |".replace("|  |", "| |").replace("|  |", "| |")


def in_cell(text):
    return str(text).replace("|", "\\|")


LABELS, BARS, LINE, MARGIN = 400, 400, 18, 16  # pixels
LONGEST = 2  # times the goal: a longer bar is cut, and says so
COLOURS = {rows.REACHED: "#2a9d5c", rows.MISSED: "#d1495b"}


def as_svg(page):
    """A bar for each row that has a goal, as long as the figure over the goal; a line where that is 1."""
    width = LABELS + BARS + 270
    body, y = [], 3 * LINE
    goal_at = LABELS + BARS / LONGEST
    for each in page["benchmarks"]:
        judged = [row for row in each["rows"] if row.verdict != rows.NO_GOAL]
        if not judged:
            continue
        y += LINE // 2
        body.append(text_at(MARGIN, y, each["name"], "font-weight='bold'"))
        y += LINE
        for row in judged:
            body.append(bar(row, y))
            y += LINE
    title = f"Figures over their goals: {rows.count(rows_of(page))}. Green has reached its goal, red has missed it."
    return "\n".join([
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{y + LINE}' font-family='sans-serif' font-size='12'>",
        f"<rect width='{width}' height='{y + LINE}' fill='white'/>",
        text_at(MARGIN, LINE + 4, title),
        *body,
        f"<line x1='{goal_at:g}' y1='{2 * LINE}' x2='{goal_at:g}' y2='{y}' stroke='black' stroke-dasharray='3 3'/>",
        text_at(goal_at, 2 * LINE - 2, "goal", "text-anchor='middle'"),
        "</svg>"]) + "\n"


def bar(row, y):
    # What is no number has no length, and neither has less than nothing, which a difference of two counts can be.
    share = max(0, min(row.of_goal, LONGEST)) if row.of_goal == row.of_goal else 0
    cut = " &#8230;" if row.of_goal > LONGEST else ""
    figure = f"{rows.in_digits(row.figure)} {row.unit}" if row.baseline is None else f"{row.ratio:.3f} x {row.baseline_is}"
    return "".join([
        text_at(MARGIN, y, row.what),
        f"<rect class='{row.verdict}' x='{LABELS}' y='{y - 11}' width='{BARS * share / LONGEST:.1f}' height='13' "
        f"fill='{COLOURS[row.verdict]}'/>",
        text_at(LABELS + BARS + 8, y, f"{figure}  ({row.goal})", also=cut)])


def text_at(x, y, text, how="", also=""):
    return f"<text x='{x:g}' y='{y:g}' {how}>{escape(text)}{also}</text>"
