#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""build.py OUTPUT: the documentation as pages, in OUTPUT/html: all that is written in Markdown, and a reference out of
the comments of the public headers. Whatever Doxygen warns of is an error, and so is a link to a file that is not there.
The Python is Debian's, which has the packages that this needs: ./dev docs installs them.
"""
import json
import shutil
import sys
from pathlib import Path

sys.dont_write_bytecode = True
here = Path(__file__).resolve().parent
sys.path.insert(0, str(here))
from page import Names, Site
from prose import Prose
from reference import LAYERS, Reference, public_headers, run_doxygen

root, output = here.parent.parent, Path(sys.argv[1]).resolve()
shutil.rmtree(output / "html", ignore_errors=True)
shutil.rmtree(output / "xml", ignore_errors=True)

headers = public_headers(root)
wrong = run_doxygen(root, headers, output, here)
site = Site(output / "html", Names())
reference = Reference(root, site, headers, output / "xml")
prose = Prose(root, site)
site.navigation = prose.contents() + [("Reference", [("All headers", "reference/index.html"),
                                                     ("All names", "reference/names.html")]
                                       + [(title, f"reference/index.html#{layer}") for layer, title in LAYERS.items()])]
prose.write()
reference.write()

site.write("search.html", "Search", """<h1>Search</h1>
<form class="wide" action="search.html"><input name="q" type="search" id="query" aria-label="Search" autofocus></form>
<p id="told">The search runs in the browser, by JavaScript. Without it, <a href="reference/names.html">all names</a> and
<a href="reference/index.html">all headers</a> are on one page each.</p>
<div id="found"></div>
<script src="search-index.js"></script>
<script src="search.js"></script>
""")
(output / "html/search-index.js").write_text("const pages = " + json.dumps(site.index, separators=(",", ":")) + ";\n")
for name in ("style.css", "search.js"):
    shutil.copyfile(here / name, output / "html" / name)

wrong += [*reference.without_comment(), *prose.wrong]
print("\n".join(wrong) or f"{output}/html/index.html: {len(site.names.places)} names, "
      f"{sum(map(len, prose.files.values()))} pages of prose")
sys.exit(1 if wrong else 0)
