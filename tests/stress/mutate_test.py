#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mutate_test.py: each action does to a statement what its row says, and what does not fit is an error that says so."""
import pathlib
import tempfile
import unittest

import mutate

AWAKE = "::weft::is_mutated(1)"
FITTING = [  # of the row, the source, and what becomes of it
    ("never", "if (a || b) go();  // mutant: it", f"if ((a || b) && !{AWAKE}) go();  // mutant: it"),
    ("always when c", "if (a) {  // mutant: it\n}", f"if ((a) || ({AWAKE} && (c))) {{  // mutant: it\n}}"),
    ("never", "} else if (a &&  // mutant: it\n  b) {", f"}} else if ((a &&  // mutant: it\n  b) && !{AWAKE}) {{"),
    ("always", "if (f(); a) g();  // mutant: it", f"if (f(); (a) || {AWAKE}) g();  // mutant: it"),
    ("never", "// mutant: it\nreturn a ? \"?\"\n  : b;", f"// mutant: it\nreturn (a) && !{AWAKE} ? \"?\"\n  : b;"),
    ("skip", "x = {1, 2};  // mutant: it", f"if (!{AWAKE}) x = {{1, 2}};  // mutant: it"),
    ("before g() when c", "// mutant: it\n// why\nf([] {\n  h();\n});",
     f"// mutant: it\n// why\nif (({AWAKE} && (c))) {{ g(); }} f([] {{\n  h();\n}});"),
    ("after g()", "f(a,  // mutant: it\n  b);", f"f(a,  // mutant: it\n  b); if ({AWAKE}) {{ g(); }}"),
    ("instead $; $", "f(a,  // why\n  b);  // mutant: it",
     f"if ({AWAKE}) {{ f(a, b); f(a, b); }} else f(a,  // why\n  b);  // mutant: it"),
    ("-> 1", "int a = b ? 2 : 3;  // mutant: it", f"int a = ({AWAKE} ? 1 : b ? 2 : 3);  // mutant: it"),
    ("b -> $ + 1", "f({ab,  // b\n  b,  // mutant: it\n  c});",
     f"f({{ab,  // b\n  ({AWAKE} ? (b) + 1 : b),  // mutant: it\n  c}});"),
]
REFUSED = [
    ("it: never", "f();", "'it' has no mark"),
    ("it: never", "if (a) f();  // mutant: it\nif (b) f();  // mutant: it", "a.cpp:2: 'it': it has another mark"),
    ("it: never", "if (a) f();  // mutant: that", "'that': 0 defects have it in their names"),
    ("it here: never\nit there: never", "if (a) f();  // mutant: it", "2 defects have it in their names"),
    ("it: never\nit: always", "if (a) f();  // mutant: it", "'it' is no row, or one more of that name"),
    ("it: never\nnothing", "if (a) f();  // mutant: it", "'nothing' is no row"),
    ("it: never", "f();  // mutant: it", "returns and assigns nothing"),
    ("it: always", "a = b;  // mutant: it", "has no condition"),
    ("it: ever", "f();  // mutant: it", "'ever' does nothing to such a statement"),
    ("it: skip", "if (a) {  // mutant: it\n}", "does nothing to such a statement"),
    ("it: skip", "if (a) f();  // mutant: it\nelse g();", "does nothing to such a statement"),
    ("it: before f()", "} else if (a) {  // mutant: it\n}", "does nothing to such a statement"),
    ("it: c -> 1", "f(a, b);  // mutant: it", "has 'c' 0 times"),
    ("it: a -> 1", "f(a, a);  // mutant: it", "has 'a' 2 times"),
    ("it: skip", "}  // mutant: it", "marks no statement"),
    ("it: skip\nthat: skip", "// mutant: it\nf();  // mutant: that", "another defect is woken at the same place"),
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
