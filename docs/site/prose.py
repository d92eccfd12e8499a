# SPDX-License-Identifier: Apache-2.0
"""The pages that are written in Markdown."""
import html
import os
import re
import shutil
from pathlib import Path

from markdown_it import MarkdownIt
from page import text_of

AS_THEY_ARE = {".svg", ".png", ".jpg", ".json"}


def markdown_files(root):
    """What is written for readers, in the order of the contents."""
    found = {"Start": [root / "README.md"],
             "Guide": sorted((root / "docs/guide").rglob("*.md"), key=in_order),
             "In depth": sorted(path for path in (root / "docs").rglob("*.md") if "guide" not in path.relative_to(root).parts),
             "Examples": sorted((root / "examples").glob("*/README.md")),
             "The project": [path for path in sorted(root.glob("*.md")) if path.name != "README.md"]
                            + sorted((root / "tests").glob("*/README.md"))}
    return {heading: files for heading, files in found.items() if files}


def in_order(path):
    """A page that introduces a folder first, then numbered ones, then by name."""
    number = re.match(r"\d+", path.name)
    return path.parent, path.stem not in ("README", "index"), int(number[0]) if number else 1000, path.name


def url_of(path):
    """Where a file of the tree has its page."""
    if path.suffix != ".md":
        return f"{path}" if path.suffix in AS_THEY_ARE else f"{path}.html"
    if path.name == "README.md":
        return str(path.parent / "index.html")
    return str(path.with_suffix(".html"))


def slug(title, taken):
    """The anchor of a heading, which is the one that GitHub gives it."""
    made = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    count = taken.setdefault(made, 0)
    taken[made] += 1
    return f"{made}-{count}" if count else made


class Prose:
    def __init__(self, root, site):
        self.root, self.site = root, site
        self.files = {heading: [path.relative_to(root) for path in files]
                      for heading, files in markdown_files(root).items()}
        self.markdown = MarkdownIt("commonmark").enable("table").enable("strikethrough")
        self.wrong, self.sources, self.folders = [], set(), set()
        self.pages = {}  # file -> tokens
        for files in self.files.values():
            for path in files:
                self.pages[path] = self.markdown.parse((root / path).read_text())
                site.names.files[str(path)] = url_of(path)

    def title(self, path):
        tokens = self.pages[path]
        for number, token in enumerate(tokens):
            if token.type == "heading_open" and token.tag == "h1":
                return self.plain(tokens[number + 1])
        self.wrong.append(f"{path}: has no title")
        return path.stem

    @staticmethod
    def plain(inline):
        return "".join(" " if child.type == "softbreak" else child.content for child in inline.children
                       if child.type in ("text", "code_inline", "softbreak"))

    def contents(self):
        """For the navigation: (heading, [(title, url)])."""
        named = lambda path: path.parent.name if path.parts[0] == "examples" else self.title(path)
        return [(heading, [(named(path), url_of(path)) for path in files]) for heading, files in self.files.items()]

    def write(self):
        for path, tokens in self.pages.items():
            self.write_page(path, tokens)
        for path in sorted(self.folders):
            self.write_folder(path)
        for path in sorted(self.sources):
            self.write_source(path)

    def write_folder(self, folder):
        """A list of what is in a folder that has no README."""
        url = str(folder / "index.html")
        files = sorted(path.relative_to(self.root) for path in (self.root / folder).iterdir() if path.is_file())
        self.sources |= set(files)
        rows = "".join(f'<li><a href="{html.escape(self.site.link(url_of(path), url))}">{html.escape(path.name)}</a></li>\n'
                       for path in files)
        self.site.write(url, str(folder), f"<h1>{html.escape(str(folder))}</h1>\n<ul>\n{rows}</ul>\n")

    def write_page(self, path, tokens):
        url, taken, sections = url_of(path), {}, []
        title, section, text = self.title(path), None, []

        def note():
            place = f"{url}#{section[1]}" if section else url
            name = section[0] if section else title
            self.site.index.append([name, place, title if section else "page", " ".join(" ".join(text).split())])

        for number, token in enumerate(tokens):
            if token.type == "heading_open":
                name = self.plain(tokens[number + 1])
                token.attrSet("id", slug(name, taken))
                if token.tag in ("h2", "h3"):
                    note()
                    section, text = (name, token.attrGet("id")), []
                if token.tag == "h2":
                    sections.append(section)
            elif token.type == "inline":
                self.link_inline(path, url, token)
                if tokens[number - 1].type != "heading_open":  # whose words are the title of what search finds
                    text.append(self.plain(token))
            elif token.type == "fence":
                text.append(token.content)
        note()
        self.name_columns(tokens)
        self.site.write(url, title, self.render(url, tokens), sections)

    def name_columns(self, tokens):
        """Has the cells of a wide table of words name their columns: narrow screens show each row as a block."""
        for number, token in enumerate(tokens):
            if token.type == "table_open":
                table, columns, has_numbers = token, [], False
            elif token.type == "th_open":
                columns.append(self.plain(tokens[number + 1]))
                has_numbers |= token.attrGet("style") is not None
            elif token.type == "tr_open":
                cells = iter(columns)
            elif token.type == "td_open":
                token.attrSet("data-column", next(cells))
            elif token.type == "table_close" and len(columns) > 2 and not has_numbers:
                table.attrSet("class", "blocks")

    def link_inline(self, path, url, inline):
        for child in inline.children:
            if child.type == "link_open":
                child.attrSet("href", self.target(path, url, child.attrGet("href")))
            elif child.type == "image":
                child.attrSet("src", self.target(path, url, child.attrGet("src")))

    def target(self, path, url, href):
        """What a link of a file is on the site."""
        if re.match(r"(https?|mailto):", href) or href.startswith("#"):
            return href
        there, mark, anchor = href.partition("#")
        found = Path(os.path.normpath(path.parent / there))
        if (self.root / found).is_dir():
            found = found / "README.md" if (self.root / found / "README.md").is_file() else found / "index"
        if found not in self.pages:
            if str(found) in self.site.names.headers:
                return self.site.link(self.site.names.headers[str(found)], url)
            if found.name == "index" and (self.root / found.parent).is_dir():
                self.folders.add(found.parent)
                return self.site.link(str(found) + ".html", url)
            if not (self.root / found).is_file():
                self.wrong.append(f"{path}: links to {href}, and there is no such file")
                return href
            self.sources.add(found)
        return self.site.link(url_of(found) + mark + anchor, url)

    def render(self, url, tokens):
        """Markdown-it's own HTML, but for code, and for tables, which scroll by themselves."""
        site = self.site

        def code_inline(tokens, number, options, env):
            linked = sum((token.type == "link_open") - (token.type == "link_close") for token in tokens[:number]) > 0
            text = tokens[number].content
            shown = html.escape(text, quote=False)
            if len(text) > 20:  # where it may be broken, in a cell of a table for instance
                shown = re.sub(r"(::|[_./])(?=\w)", r"\1<wbr>", shown)
            shown = shown if linked else site.linked(text, url, inner=shown)
            return f"<code>{shown}</code>"

        renderer = self.markdown.renderer
        renderer.rules["code_inline"] = code_inline
        renderer.rules["fence"] = lambda tokens, number, options, env: site.code(
            tokens[number].content, tokens[number].info.split()[0] if tokens[number].info.strip() else "", url)
        renderer.rules["code_block"] = lambda tokens, number, options, env: site.code(tokens[number].content, "", url)
        renderer.rules["table_open"] = lambda tokens, number, options, env: (
            f'<div class="table" tabindex="0"><table{renderer.renderAttrs(tokens[number])}>\n')
        renderer.rules["table_close"] = lambda *_: "</table></div>\n"
        renderer.rules["html_block"] = lambda tokens, number, options, env: (
            "" if tokens[number].content.startswith("<!--") else tokens[number].content)
        return renderer.render(tokens, self.markdown.options, {})

    def write_source(self, path):
        """A file that a page links to: as it is, or as a listing."""
        url = url_of(path)
        if path.suffix in AS_THEY_ARE:
            (self.site.output / url).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / path, self.site.output / url)
            return
        language = path.name if path.name in ("CMakeLists.txt", "Dockerfile") else path.suffix.lstrip(".")
        listing = self.site.code((self.root / path).read_text(), language, url, numbered=True)
        self.site.write(url, str(path), f"<h1>{html.escape(str(path))}</h1>\n{listing}")
