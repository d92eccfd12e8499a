# SPDX-License-Identifier: Apache-2.0
"""The rows that every benchmark ends in: a figure, what it stands beside, the goal, and whether it is reached."""
import json
import math
from dataclasses import dataclass

REACHED, MISSED, NO_GOAL = "reached", "missed", "no goal"


@dataclass(frozen=True)
class Row:
    """A figure of ours. Its goal is about the ratio to the baseline where there is one, else about the figure itself."""

    what: str
    figure: float
    unit: str
    baseline: float | None = None
    baseline_is: str = ""
    at_most: float | None = None
    at_least: float | None = None

    def __post_init__(self):
        if self.at_most is not None and self.at_least is not None:
            raise ValueError(f"{self.what}: a goal is a most or a least, not both")

    @property
    def ratio(self):
        if self.baseline is None:
            return None
        return self.figure / self.baseline if self.baseline else math.inf

    @property
    def judged(self):
        """The number that the goal is about."""
        return self.figure if self.baseline is None else self.ratio

    @property
    def bound(self):
        return self.at_least if self.at_most is None else self.at_most

    @property
    def goal(self):
        """In words; a ratio ends in an x."""
        if self.bound is None:
            return ""
        sign = ">=" if self.at_most is None else "<="
        return f"{sign} {self.bound:.4g}{'' if self.baseline is None else ' x'}"

    @property
    def verdict(self):
        if self.bound is None:
            return NO_GOAL
        # A figure that is not a number compares as false, and has not reached anything.
        reached = self.judged >= self.bound if self.at_most is None else self.judged <= self.bound
        return REACHED if reached else MISSED

    @property
    def of_goal(self):
        """The figure over its goal, 1 where it is met exactly; None without a goal."""
        if self.bound is None:
            return None
        if self.bound == 0:
            return 1.0 if self.judged <= 0 else math.inf  # below it by what two counts differ in by chance
        return self.judged / self.bound

    def as_json(self):
        """What a file has: a reader needs nothing of this module. An infinite ratio is null, which JSON has."""
        ratio = self.ratio if self.ratio is None or math.isfinite(self.ratio) else None
        return {"what": self.what, "figure": self.figure, "unit": self.unit, "baseline": self.baseline,
                "baseline_is": self.baseline_is, "ratio": ratio, "goal": self.goal, "verdict": self.verdict,
                "at_most": self.at_most, "at_least": self.at_least}

    @staticmethod
    def from_json(item):
        return Row(item["what"], item["figure"], item["unit"], item["baseline"], item["baseline_is"], item["at_most"],
                   item["at_least"])


def write(path, rows, **more):
    """Writes the rows with whatever else a benchmark has to tell; more may not be called `rows`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"rows": [row.as_json() for row in rows], **more}, indent=2) + "\n")


def read(path):
    return [Row.from_json(item) for item in json.loads(path.read_text())["rows"]]


def in_digits(number):
    """As many digits as a person compares."""
    if number is None:
        return ""
    if not math.isfinite(number):
        return str(number)
    if abs(number) < 0.0005:
        return "0"
    if abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.3f}"


COLUMNS = ("", "figure", "", "beside", "", "ratio", "goal", "verdict")


def cells(row):
    """What a table shows of a row, one text for each of COLUMNS."""
    return (row.what, in_digits(row.figure), row.unit, in_digits(row.baseline), row.baseline_is,
            "" if row.ratio is None else f"{row.ratio:.3f}", row.goal, "" if row.verdict == NO_GOAL else row.verdict)


def table(rows):
    """Lines of text, a row each, beneath a heading."""
    lines = [COLUMNS, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    numbers = (1, 3, 5)
    return ["  ".join(text.rjust(width) if column in numbers else text.ljust(width)
                      for column, (text, width) in enumerate(zip(line, widths))).rstrip() for line in lines]


def count(rows):
    """How many have reached their goals, in words."""
    verdicts = [row.verdict for row in rows]
    return f"goals reached: {verdicts.count(REACHED)}, missed: {verdicts.count(MISSED)}"
