#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""due_test.py: what a change makes due, by the times of files."""
import os
import tempfile
import unittest
from pathlib import Path

import due


class a_test(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.root = Path(scratch.name)
        self.build = self.root / "build"
        self.write("build/passed/it", 1000)
        self.script = self.write("tests/script.py", 500)

    def write(self, name, time):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (time, time))
        return path

    def is_due(self, *labels):
        test = {"name": "it", "command": [str(self.script), str(self.root)],
                "properties": [{"name": "LABELS", "value": list(labels)}]}
        return due.is_due(self.build, test, self.root)

    def test_is_due_until_it_has_passed(self):
        self.assertFalse(self.is_due())
        (self.build / "passed/it").unlink()
        self.assertTrue(self.is_due())

    def test_is_due_after_a_file_of_its_command_has_changed(self):
        os.utime(self.script, (1001, 1001))
        self.assertTrue(self.is_due())
        self.assertFalse(self.is_due("vm"))

    def test_of_the_documentation_is_due_after_any_page_has_changed(self):
        for page in ("README.md", "docs/guide/1-echo.md", "examples/kv/README.md", "examples/guide/step1_echo.cpp"):
            path = self.write(page, 500)
            self.assertFalse(self.is_due("documentation"), page)
            os.utime(path, (1001, 1001))
            self.assertTrue(self.is_due("documentation"), page)
            self.assertFalse(self.is_due(), page)
            path.unlink()

    def test_does_not_look_at_pages_of_the_build(self):
        self.write("build/docs/page.md", 2000)
        self.assertFalse(self.is_due("documentation"))


if __name__ == "__main__":
    unittest.main()
