#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mutate_test.py: each action does to a statement what its row says, and what does not fit is an error that says so."""
import pathlib
import tempfile
import unittest

import mutate

AWAKE = "::weft::is_mutated(1)"
FITTING = [  # of the row, the source, and what becomes of it
    ("never", "if (a || b) go();  // defect: it", f"if ((a || b) && !{AWAKE}) go();  // defect: it"),
    ("always when c", "if (a) {  // defect: it\n}", f"if ((a) || ({AWAKE} && (c))) {{  // defect: it\n}}"),
    ("never", "} else if (a &&  // defect: it\n  b) {", f"}} else if ((a &&  // defect: it\n  b) && !{AWAKE}) {{"),
    ("always", "if (f(); a) g();  // defect: it", f"if (f(); (a) || {AWAKE}) g();  // defect: it"),
    ("never", "// defect: it\nreturn a ? \"?\"\n  : b;", f"// defect: it\nreturn (a) && !{AWAKE} ? \"?\"\n  : b;"),
    ("skip", "x = {1, 2};  // defect: it", f"if (!{AWAKE}) x = {{1, 2}};  // defect: it"),
    ("before g() when c", "// defect: it\n// why\nf([] {\n  h();\n});",
     f"// defect: it\n// why\nif (({AWAKE} && (c))) {{ g(); }} f([] {{\n  h();\n}});"),
    ("after g()", "f(a,  // defect: it\n  b);", f"f(a,  // defect: it\n  b); if ({AWAKE}) {{ g(); }}"),
    ("instead $; $", "f(a,  // why\n  b);  // defect: it",
     f"if ({AWAKE}) {{ f(a, b); f(a, b); }} else f(a,  // why\n  b);  // defect: it"),
    ("-> 1", "int a = b ? 2 : 3;  // defect: it", f"int a = ({AWAKE} ? 1 : b ? 2 : 3);  // defect: it"),
    ("b -> $ + 1", "f({ab,  // b\n  b,  // defect: it\n  c});",
     f"f({{ab,  // b\n  ({AWAKE} ? (b) + 1 : b),  // defect: it\n  c}});"),
]
REFUSED = [
    ("it: never", "f();", "'it' has no mark"),
    ("it: never", "if (a) f();  // defect: it\nif (b) f();  // defect: it", "a.cpp:2: 'it': it has another mark"),
    ("it: never", "if (a) f();  // defect: that", "'that': 0 defects have it in their names"),
    ("it here: never\nit there: never", "if (a) f();  // defect: it", "2 defects have it in their names"),
    ("it: never\nit: always", "if (a) f();  // defect: it", "'it' is no row, or one more of that name"),
    ("it: never\nnothing", "if (a) f();  // defect: it", "'nothing' is no row"),
    ("it: never", "f();  // defect: it", "returns and assigns nothing"),
    ("it: always", "a = b;  // defect: it", "has no condition"),
    ("it: ever", "f();  // defect: it", "'ever' does nothing to such a statement"),
    ("it: skip", "if (a) {  // defect: it\n}", "does nothing to such a statement"),
    ("it: skip", "if (a) f();  // defect: it\nelse g();", "does nothing to such a statement"),
    ("it: before f()", "} else if (a) {  // defect: it\n}", "does nothing to such a statement"),
    ("it: c -> 1", "f(a, b);  // defect: it", "has 'c' 0 times"),
    ("it: a -> 1", "f(a, a);  // defect: it", "has 'a' 2 times"),
    ("it: skip", "}  // defect: it", "marks no statement"),
    ("it: skip\nthat: skip", "// defect: it\nf();  // defect: that", "another defect is woken at the same place"),
]


def applied(rows: str, source: str) -> str:
    mutate.TABLE = rows
    with tempfile.TemporaryDirectory() as place:
        file = pathlib.Path(place) / "net/a.cpp"
        file.parent.mkdir()
        file.write_text(f"{source}\n")
        mutate.apply(pathlib.Path(place), pathlib.Path(place) / "out")
        return (pathlib.Path(place) / "out/net/a.cpp").read_text().removeprefix(mutate.PRELUDE).rstrip()


class defects(unittest.TestCase):
    def test_change_the_statement_that_has_the_mark(self):
        for action, source, expected in FITTING:
            with self.subTest(action=action, source=source):
                self.assertEqual(applied(f"it: {action}", source), expected)

    def test_that_do_not_fit_are_refused(self):
        for rows, source, expected in REFUSED:
            with self.subTest(rows=rows, source=source):
                with self.assertRaises(mutate.Misfit) as refused:
                    applied(rows, source)
                self.assertIn(expected, str(refused.exception))


if __name__ == "__main__":
    unittest.main()
