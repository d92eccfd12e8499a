#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_links.py DIRECTORY: every link of the pages there leads to a page, a file or an anchor that exists; nothing is
loaded from elsewhere; no anchor is there twice, and no page is left that the front page does not lead to; pictures have
colours for dark pages too. Links out of the site are looked at for their form alone.
"""
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

VOID = {"meta", "link", "input", "br", "img", "hr", "wbr", "source", "col"}


class Page(HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads, self.wrong, self.open = set(), [], [], [], []
        self.is_nested = True
        self.feed(path.read_text())
        self.close()
        self.wrong += [f"<{tag}> is never closed" for tag in self.open if self.is_nested]

    def handle_starttag(self, tag, attributes):
        of = dict(attributes)
        if "id" in of:
            if of["id"] in self.ids:
                self.wrong.append(f"the anchor {of['id']} is there twice")
            self.ids.add(of["id"])
        if tag == "a" and "href" in of:
            self.links.append(of["href"])
            if "a" in self.open:
                self.wrong.append(f"a link to {of['href']} inside of a link")
        self.loads += [of[name] for name in ("src", "data") if name in of]
        if tag == "link":
            self.loads.append(of["href"])
        if tag == "form":
            self.links.append(of["action"])
        if tag not in VOID and self.is_nested:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if self.is_nested and (not self.open or self.open.pop() != tag):
            self.wrong.append(f"</{tag}> closes what is not open (line {self.getpos()[0]})")
            self.is_nested = False  # what follows from that need not be told


def main(root):
    pages = {path.relative_to(root).as_posix(): Page(path) for path in sorted(root.rglob("*.html"))}
    wrong, links, outside, reached, ways = [], 0, 0, {"index.html"}, ["index.html"]
    targets = {}
    for name, page in pages.items():
        wrong += [f"{name}: {what}" for what in page.wrong]
        wrong += [f"{name}: loads {what} from elsewhere" for what in page.loads if urlsplit(what).scheme or what.startswith("//")]
        targets[name] = set()
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                outside += 1
                if not re.fullmatch(r"https?://[\w.-]+\.\w+(:\d+)?(/\S*)?|mailto:\S+@\S+", link):
                    wrong.append(f"{name}: {link} is no address")
                continue
            links += 1
            path = os.path.normpath(os.path.join(os.path.dirname(name), unquote(parts.path))) if parts.path else name
            targets[name].add(path)
            if not (root / path).is_file():
                wrong.append(f"{name}: links to {link}, and there is no {path}")
            elif parts.fragment and path in pages and unquote(parts.fragment) not in pages[path].ids:
                wrong.append(f"{name}: links to {link}, and {path} has no such anchor")
    while ways:
        for path in targets[ways.pop()] & pages.keys() - reached:
            reached.add(path)
            ways.append(path)
    wrong += [f"{name}: no page leads here" for name in sorted(pages.keys() - reached)]
    wrong += [f"{path.relative_to(root)}: has no colours for a dark page (@media (prefers-color-scheme: dark))"
              for path in sorted(root.rglob("*.svg")) if "prefers-color-scheme: dark" not in path.read_text()]
    print("\n".join(wrong) or f"{len(pages)} pages, {links} links, and {outside} out of the site")
    return 1 if wrong or not pages else 0


sys.exit(main(Path(sys.argv[1])))
