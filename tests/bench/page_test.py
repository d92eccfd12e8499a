#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""page_test.py: the page has every row with its verdict, in each of its forms, and survives the file between."""
import argparse
import math
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

import all as every
import machine
import page
import rows
from rows import MISSED, REACHED, Row

ROWS = [Row("socket | request", 1239, "instructions", at_most=600),
        Row("echo: weft <on epoll>", 300, "requests/s", 100, "libuv", at_least=1.5),
        Row("allocations", 1, "", at_most=0),
        Row("nothing measured", math.nan, "us", at_most=1),
        Row("read", 1.5, "us", 3, "UCX")]
PAGE = {"machine": {"processor": "a | b", "cores": "2"},
        "benchmarks": [{"name": "echo", "seconds": 3, "rows": ROWS, "note": "", "broken": False},
                       {"name": "scale", "seconds": 1, "rows": [], "note": "The benchmark has broken", "broken": True}]}


class text(unittest.TestCase):
    def test_every_row_stands_there_with_its_verdict_and_what_is_broken_says_so(self):
        lines = page.as_text(PAGE)
        self.assertRegex(lines, r"(?m)^socket \| request .*<= 600 +missed$")
        self.assertRegex(lines, r"(?m)^echo: weft .* 3\.000  >= 1\.5 x  reached$")
        self.assertRegex(lines, r"(?m)^read +1\.500  us .*UCX +0\.500$")
        self.assertIn("The benchmark has broken", lines)
        self.assertIn("processor:  a | b", lines)
        self.assertIn("goals reached: 1, missed: 3", lines)


class markdown(unittest.TestCase):
    def test_a_row_has_as_many_cells_as_the_heading_whatever_its_text(self):
        heads, tables = None, 0
        for line in page.as_markdown(PAGE, "docs/performance.md").splitlines():
            cells = line.replace("\\|", "").count("|")
            if not line.startswith("|"):
                heads = None
            elif heads is None:
                heads, tables = cells, tables + 1
            else:
                self.assertEqual(cells, heads, line)
        self.assertEqual(tables, 2)

    def test_goals_and_verdicts_are_left_to_the_other_forms(self):
        lines = page.as_markdown(PAGE, "docs/performance.md")
        self.assertIn("| echo: weft <on epoll> | 300 | requests/s | 100 | libuv | 3.000 |\n", lines)
        self.assertIn("`./dev bench all --write docs/performance.md`", lines)
        for word in ("missed", "reached", "goal", "<= 600"):
            self.assertNotIn(word, lines)

    def test_a_figure_that_stands_beside_something_is_not_repeated_alone(self):
        alone, beside = Row("echo", 300, "us", at_most=100), Row("echo", 300, "us", 100, "libuv")
        other = Row("echo", 301, "us")
        of_one = {**PAGE, "benchmarks": [{**PAGE["benchmarks"][0], "rows": [alone, beside, other]}]}
        lines = page.as_markdown(of_one, "docs/performance.md")
        self.assertEqual([lines.count("| 300 |"), lines.count("| 301 |")], [1, 1])


class plot(unittest.TestCase):
    def setUp(self):
        drawn = xml.etree.ElementTree.fromstring(page.as_svg(PAGE))
        self.bars = [each.attrib for each in drawn.iter() if "class" in each.attrib]

    def test_each_goal_has_a_bar_in_the_colour_of_its_verdict(self):
        self.assertEqual([each["class"] for each in self.bars], [MISSED, REACHED, MISSED, MISSED])
        self.assertEqual(len({each["fill"] for each in self.bars if each["class"] == MISSED}), 1)
        self.assertNotEqual(self.bars[0]["fill"], self.bars[1]["fill"])

    def test_a_bar_is_as_long_as_the_figure_over_the_goal_and_never_leaves_the_plot(self):
        lengths = [float(each["width"]) for each in self.bars]
        self.assertEqual(lengths, [page.BARS, page.BARS, page.BARS, 0])
        half = Row("send", 300, "instructions", at_most=600)
        self.assertIn(f"width='{page.BARS / page.LONGEST / 2:.1f}'", page.bar(half, 10))
        self.assertIn("width='0.0'", page.bar(Row("allocations", -0.001, "", at_most=0.01), 10))


class files(unittest.TestCase):
    def test_a_page_comes_out_of_its_file_as_it_went_in(self):
        comparable = [row for row in ROWS if row.figure == row.figure]
        written = {**PAGE, "benchmarks": [{**PAGE["benchmarks"][0], "rows": comparable}]}
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "all.json"
            every.write(path, written)
            self.assertEqual(every.read(path), written)


class runs(unittest.TestCase):
    """Of a benchmark that is a script of so many words."""

    def run_of(self, words):
        with tempfile.TemporaryDirectory() as directory:
            build = Path(directory)
            rows.write(build / "bench/made_up.json", [Row("of yesterday", 1, "us", at_most=2)])
            script = build / "made_up.sh"
            script.write_text(f"#!/bin/sh\ncd '{build}/bench' || exit 3\n{words}\n")
            script.chmod(0o755)
            return every.run("made_up", script, ["made_up.json"], argparse.Namespace(build=build, thorough=False))

    def test_rows_are_taken_also_where_a_missed_goal_is_the_exit_status(self):
        written = """printf '{"rows": [{"what": "send", "figure": 3, "unit": "us", "baseline": null, "baseline_is": "",
                    "at_most": 2, "at_least": null}]}' > made_up.json; exit 1"""
        found = self.run_of(written)
        self.assertEqual(found["rows"], [Row("send", 3, "us", at_most=2)])
        self.assertFalse(found["broken"])

    def test_one_that_fails_is_broken_and_gives_no_rows_of_an_earlier_run(self):
        for words in ("exit 1", "exit 7", "kill -9 $$", "echo '{}' > made_up.json", "echo 'no JSON' > made_up.json"):
            found = self.run_of(words)
            self.assertEqual((found["rows"], found["broken"]), ([], True), words)
            self.assertIn("has broken, see bench/made_up.log", found["note"])


class description(unittest.TestCase):
    def test_a_build_is_described_by_its_compiler_and_flags(self):
        with tempfile.TemporaryDirectory() as directory:
            build = Path(directory)
            (build / "CMakeFiles/3.25.1").mkdir(parents=True)
            (build / "CMakeFiles/3.25.1/CMakeCXXCompiler.cmake").write_text(
                'set(CMAKE_CXX_COMPILER_ID "GNU")\nset(CMAKE_CXX_COMPILER_VERSION "12.2.0")\n')
            (build / "CMakeCache.txt").write_text(
                "CMAKE_BUILD_TYPE:STRING=RelWithDebInfo\nCMAKE_CXX_FLAGS_RELWITHDEBINFO:STRING=-O2 -g1\n")
            self.assertEqual(machine.compiler(build), "GNU 12.2.0, -O2 -g1")

    def test_without_a_build_it_says_that_it_does_not_know(self):
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(machine.compiler(Path(directory)), "unknown unknown")


if __name__ == "__main__":
    unittest.main()
