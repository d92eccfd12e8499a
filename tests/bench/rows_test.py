#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""rows_test.py: a verdict is what the figure and the goal say, also after a file, and no missed goal looks reached."""
import math
import tempfile
import unittest
from pathlib import Path

import rows
from rows import MISSED, NO_GOAL, REACHED, Row


class verdicts(unittest.TestCase):
    def test_a_most_is_reached_up_to_the_bound_and_missed_beyond(self):
        self.assertEqual(Row("send", 599, "instructions", at_most=600).verdict, REACHED)
        self.assertEqual(Row("send", 600, "instructions", at_most=600).verdict, REACHED)
        self.assertEqual(Row("send", 600.1, "instructions", at_most=600).verdict, MISSED)

    def test_a_least_is_reached_from_the_bound_and_missed_below(self):
        self.assertEqual(Row("messages", 10, "M/s", at_least=10).verdict, REACHED)
        self.assertEqual(Row("messages", 11, "M/s", at_least=10).verdict, REACHED)
        self.assertEqual(Row("messages", 9.99, "M/s", at_least=10).verdict, MISSED)

    def test_beside_a_baseline_the_ratio_is_judged_and_not_the_figure(self):
        self.assertEqual(Row("echo", 150, "requests/s", 100, "Asio", at_least=1.5).verdict, REACHED)
        self.assertEqual(Row("echo", 149, "requests/s", 100, "Asio", at_least=1.5).verdict, MISSED)
        self.assertEqual(Row("round trip", 10.5, "us", 10, "raw TCP", at_most=1.05).verdict, REACHED)
        self.assertEqual(Row("round trip", 0.9, "us", 0.5, "raw TCP", at_most=1.05).verdict, MISSED)

    def test_a_goal_of_none_at_all_is_missed_by_the_least_bit(self):
        self.assertEqual(Row("allocations", 0, "", at_most=0).verdict, REACHED)
        self.assertEqual(Row("allocations", 0.001, "", at_most=0).verdict, MISSED)

    def test_no_goal_is_neither_reached_nor_missed(self):
        self.assertEqual(Row("read", 1, "us", 2, "UCX").verdict, NO_GOAL)

    def test_what_is_no_number_has_reached_nothing(self):
        self.assertEqual(Row("send", math.nan, "us", at_most=600).verdict, MISSED)
        self.assertEqual(Row("send", math.nan, "us", at_least=1).verdict, MISSED)

    def test_a_baseline_of_zero_is_beaten_by_nothing_that_should_be_less(self):
        self.assertEqual(Row("calls", 1, "", 0, "by hand", at_most=2).verdict, MISSED)

    def test_a_goal_has_one_direction(self):
        with self.assertRaises(ValueError):
            Row("send", 1, "us", at_most=1, at_least=1)


class over_its_goal(unittest.TestCase):
    def test_the_figure_is_divided_by_the_goal(self):
        self.assertEqual(Row("send", 300, "instructions", at_most=600).of_goal, 0.5)
        self.assertEqual(Row("echo", 300, "requests/s", 100, "Asio", at_least=1.5).of_goal, 2)
        self.assertIsNone(Row("echo", 300, "requests/s", 100, "Asio").of_goal)

    def test_a_goal_of_zero_divides_nothing(self):
        self.assertEqual(Row("allocations", 0, "", at_most=0).of_goal, 1)
        self.assertEqual(Row("allocations", 1, "", at_most=0).of_goal, math.inf)
        self.assertEqual(Row("allocations", -0.001, "", at_most=0).of_goal, 1)


class files(unittest.TestCase):
    def test_a_row_comes_out_of_a_file_as_it_went_in(self):
        written = [Row("send", 601, "instructions", at_most=600), Row("echo", 3, "requests/s", 2, "Asio", at_least=1.5),
                   Row("calls", 1, "", 0, "by hand")]
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "bench/echo.json"
            rows.write(path, written, cores=2)
            self.assertEqual(rows.read(path), written)
            text = path.read_text()
        self.assertIn('"verdict": "missed"', text)
        self.assertIn('"goal": ">= 1.5 x"', text)
        self.assertIn('"cores": 2', text)
        self.assertNotIn("Infinity", text)  # which is no JSON


class tables(unittest.TestCase):
    def test_a_table_shows_figure_baseline_ratio_goal_and_verdict(self):
        heading, echo, send = rows.table([Row("echo", 120000, "requests/s", 100000, "Asio", at_least=1.5),
                                          Row("send", 12.5, "us")])
        self.assertRegex(heading, "figure .*beside .*ratio .*goal .*verdict")
        self.assertRegex(echo, r"^echo +120,000  requests/s +100,000  Asio +1\.200  >= 1\.5 x  missed$")
        self.assertRegex(send, r"^send +12\.5  us$")

    def test_a_number_has_the_digits_that_one_compares(self):
        self.assertEqual([rows.in_digits(number) for number in (1234567, 99.94, 9.9996, 0.1234, -0.0001, None, math.inf)],
                         ["1,234,567", "99.9", "10.000", "0.123", "0", "", "inf"])

    def test_goals_are_counted_and_rows_without_one_are_not(self):
        self.assertEqual(rows.count([Row("a", 1, "", at_most=2), Row("b", 3, "", at_most=2), Row("c", 1, "")]),
                         "goals reached: 1, missed: 1")


if __name__ == "__main__":
    unittest.main()
