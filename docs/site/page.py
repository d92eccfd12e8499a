# SPDX-License-Identifier: Apache-2.0
"""The frame around each page, and code with colours and with links to the names in it."""
import html
import os
import re

from pygments import lex
from pygments.lexers import get_lexer_by_name
from pygments.token import Token

# The classes of style.css for the tokens of Pygments: the first that contains the token counts.
COLOURS = ((Token.Comment.Preproc, "cp"), (Token.Comment, "cc"), (Token.Literal.String, "cs"),
           (Token.Literal.Number, "cn"), (Token.Keyword, "ck"), (Token.Generic.Prompt, "cc"),
           (Token.Generic.Output, "co"), (Token.Operator.Word, "ck"))
LEXERS = {"cpp": "cpp", "c++": "cpp", "c": "c", "hpp": "cpp", "h": "c", "py": "python", "python": "python", "sh": "bash",
          "bash": "bash", "console": "console", "cmake": "cmake", "CMakeLists.txt": "cmake", "json": "json", "yaml": "yaml",
          "yml": "yaml", "ini": "ini", "toml": "toml", "xml": "xml", "Dockerfile": "docker", "dockerfile": "docker",
          "diff": "diff"}


# Has the contents, which are longer than most screens, show the page that is open.
SHOW_WHERE = """{
  const nav = document.querySelector("nav"), here = nav.querySelector(".here");
  if (here) nav.scrollTop = here.offsetTop - nav.clientHeight / 3;
}"""


def text_of(markup):
    """What a reader sees of HTML, in one line."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", markup)).split())


def first_sentence(text):
    """The first sentence of a description, without a full stop inside brackets or names ending it."""
    end = re.search(r"(?<!e\.g)(?<!i\.e)[.:](?= [A-Z`(]|$)|$", text)
    return text[:end.end()].rstrip(":")


class Names:
    """Where each public name and header has its place, and which one a piece of text means."""

    def __init__(self):
        self.places = {}     # "weft::net::connection::send" -> "reference/weft.net.connection.html#send"
        self.kinds = {}      # the same -> "class", "function", ...
        self.by_last = {}    # "send" -> {"weft::net::connection::send", ...}
        self.headers = {}    # "net/connection.hpp" -> "reference/net/connection.hpp.html"
        self.files = {}      # "docs/shm.md" -> "docs/shm.html"
        self.scopes = {"weft", "weft::net", "weft::mr", "weft::mr::porting"}

    def add(self, name, kind, place):
        if name in self.places:
            return  # an overload: the first one stands for all
        self.places[name] = place
        self.kinds[name] = kind
        self.by_last.setdefault(name.rpartition("::")[2], set()).add(name)

    def is_call(self, name):
        return self.kinds[name] == "function"

    def find(self, text, scope=""):
        """The place that `text`, a name as prose writes it, means in a scope; None if that is none or not certain."""
        if text in self.files:
            return self.files[text]
        path = re.fullmatch(r"<?(?:weft/)?([\w/]+\.hpp)>?", text)
        if path:
            fitting = [name for name in self.headers if name == path[1] or name.endswith("/" + path[1])]
            return self.headers[fitting[0]] if len(fitting) == 1 else None
        member = re.fullmatch(r"(\w+)\.(\w+\(\))", text)  # of a variable that is called as its class is
        if member and self.find(member[1]):
            return self.find(f"{member[1]}::{member[2]}", scope)
        named = re.fullmatch(r"((?:\w+::)*~?\w+)(?:<[\w, ]*>)?(\(\))?[&*]*", text)
        if named is None:
            return None
        name, called = named[1], bool(named[2])
        while scope:
            found = f"{scope}::{name}"
            if found in self.places and (not called or self.is_call(found)):
                return self.places[found]
            scope = scope.rpartition("::")[0]
        fitting = {found for found in self.by_last.get(name.rpartition("::")[2], ()) if f"::{found}".endswith(f"::{name}")}
        if "::" not in name and not called:  # a word: only what can be named without its class
            fitting = {found for found in fitting if found.rpartition("::")[0] in self.scopes
                       and self.kinds[found] in ("class", "enum", "typedef", "concept")}
        if called:
            fitting = {found for found in fitting if self.is_call(found)}
        return self.places[fitting.pop()] if len(fitting) == 1 else None


class Site:
    """The pages that are to be written, and what all of them have in common."""

    def __init__(self, output, names):
        self.output, self.names = output, names
        self.navigation = []  # (heading, [(title, url)])
        self.index = []       # what search finds: [title, url, kind, text]

    def link(self, target, origin):
        """A URL of the site as it is written on the page `origin`."""
        path, mark, anchor = target.partition("#")
        if path == origin and mark:
            return "#" + anchor
        return os.path.relpath(path, os.path.dirname(origin) or ".") + mark + anchor

    def linked(self, text, origin, scope="", inner=None):
        """`text` as HTML, with a link if it is a public name."""
        place = self.names.find(text, scope)
        shown = html.escape(text, quote=False) if inner is None else inner
        if place is None or place == origin:
            return shown
        return f'<a class="name" href="{html.escape(self.link(place, origin))}">{shown}</a>'

    def code(self, text, language, origin, scope="", numbered=False, subject=None):
        """A block of code, about `subject` if that is given."""
        lines = self.coloured(text, language, origin, scope, subject).rstrip("\n").split("\n")
        if numbered:
            lines = [f'<span class="line" id="L{number}">{line}</span>' for number, line in enumerate(lines, 1)]
        return f'<pre class="code" tabindex="0"><code>{chr(10).join(lines)}</code></pre>\n'

    def coloured(self, text, language, origin, scope="", subject=None):
        if language not in LEXERS:
            return html.escape(text, quote=False)
        is_cpp = LEXERS[language] == "cpp"
        tokens = self.joined(lex(text, get_lexer_by_name(LEXERS[language], stripnl=False, ensurenl=False)), is_cpp)
        made, before = [], ""
        for number, (kind, value) in enumerate(tokens):
            shown = html.escape(value, quote=False)
            if is_cpp and kind is Token.Name:
                after = tokens[number + 1][1] if number + 1 < len(tokens) else ""
                further = tokens[number + 2][1] if number + 2 < len(tokens) else ""
                if value == subject:
                    shown = f"<b>{shown}</b>"
                elif self.is_name(value, before, after, further, scope):
                    shown = self.linked(value, origin, scope)
            elif is_cpp and value.startswith("<weft/"):
                shown = self.linked(value, origin)
            colour = next((name for which, name in COLOURS if kind in which), None)
            if colour and not shown.startswith("<a "):
                # Each line by itself, because the lines of a listing are elements.
                shown = "\n".join(f'<span class="{colour}">{line}</span>' if line else "" for line in shown.split("\n"))
            made.append(shown)
            if value.strip():
                before = value
        return "".join(made)

    @staticmethod
    def joined(tokens, is_cpp):
        """The tokens, with a qualified name as one."""
        made = []
        for kind, value in tokens:
            is_behind = bool(made) and made[-1] == (Token.Operator, "::")
            if is_cpp and (kind in Token.Name or is_behind and kind in Token.Keyword):
                kind = Token.Name
            if is_cpp and is_behind and kind is Token.Name:
                made.pop()
                value = "::" + value
                if made and made[-1][0] is Token.Name:
                    value = made.pop()[1] + value
            elif value == ":" and made and made[-1] == (Token.Operator, ":"):
                made.pop()
                kind, value = Token.Operator, "::"
            made.append((kind, value))
        return made

    def is_name(self, value, before, after, further, scope):
        """Whether an identifier in code stands for the public name that it looks like, rather than a variable's."""
        if before in (".", "->", "::", "~") or value.startswith("::"):
            return False
        if "::" in value or scope:
            return True
        found = f"weft::{value}"
        if found not in self.names.places:
            return False
        if self.names.is_call(found):
            return after == "("
        is_type_of_something = after.isspace() and "\n" not in after and re.match(r"[A-Za-z_]", further) is not None
        return after in ("<", "{", "&", "*") or is_type_of_something

    def write(self, url, title, body, sections=()):
        """A page; `sections` are (title, anchor) of what it has."""
        path = self.output / url
        path.parent.mkdir(parents=True, exist_ok=True)
        to = lambda target: html.escape(self.link(target, url))
        menu, navigation, listed = [], self.navigation, {target for _, entries in self.navigation for _, target in entries}
        if url.startswith("reference/"):
            navigation = [(heading, entries + ([] if url in listed else [(title.removeprefix("weft::"), url)]))
                          for heading, entries in navigation if heading == "Reference"]
            navigation += [part for part in self.navigation if part[0] != "Reference"]
        for heading, entries in navigation:
            menu.append(f"<h2>{html.escape(heading)}</h2>\n<ul>")
            for name, target in entries:
                if target != url:
                    menu.append(f'<li><a href="{to(target)}">{html.escape(name)}</a></li>')
                    continue
                parts = "".join(f'<li><a href="#{html.escape(anchor)}">{html.escape(part)}</a></li>'
                                for part, anchor in sections)
                menu.append(f'<li class="here"><a href="#top" aria-current="page">{html.escape(name)}</a>'
                            + (f"<ul>{parts}</ul>" if parts else "") + "</li>")
            menu.append("</ul>")
        newline = "\n"
        guide = "".join(f'<a href="{to(entries[0][1])}">Guide</a>\n' for heading, entries in self.navigation
                        if heading == "Guide")
        path.write_text(f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{html.escape(title)}{"" if title == "weft" else " · weft"}</title>
<link rel="stylesheet" href="{to('style.css')}">
</head>
<body id="top">
<a class="skip" href="#content">To the text</a>
<header>
<a class="house" href="{to('index.html')}">weft</a>
{guide}<a href="{to('reference/index.html')}">Reference</a>
<a href="{to('reference/names.html')}">Names</a>
<form action="{to('search.html')}" role="search"><input name="q" type="search" placeholder="Search" aria-label="Search"></form>
</header>
<input type="checkbox" id="menu" aria-label="Show the contents"><label for="menu">Contents</label>
<nav aria-label="Contents">
{newline.join(menu)}
</nav>
<script>{SHOW_WHERE}</script>
<main id="content">
{body}
</main>
</body>
</html>
""")
