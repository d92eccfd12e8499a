# SPDX-License-Identifier: Apache-2.0
"""The reference: what Doxygen reads in the public headers, as a page for each header and each class."""
import html
import re
import subprocess
import xml.etree.ElementTree as xml
from dataclasses import dataclass, field

from page import first_sentence, text_of

LAYERS = {"runtime": "The runtime: tasks, scopes, executors",
          "mr": "Registered memory",
          "net": "Devices and connections"}
# What the language or a base class has said already. These need no comment; all other public names do.
SPEAKS_FOR_ITSELF = re.compile(r"operator(==|=|<=>|\|=?$|&=?$|bool$| bool|\*|->)|await_(ready|suspend|resume)|describe|swap"
                               r"|promise_type|element_type|~")


def public_headers(root):
    """What the CMakeLists.txt files list as HEADERS."""
    found = ["weft.hpp"]
    for layer in LAYERS:
        listed = re.search(r"weft_component\(.*?\bHEADERS\b(.*?)\bSOURCES\b", (root / layer / "CMakeLists.txt").read_text(),
                           re.DOTALL)
        found += [f"{layer}/{header}" for header in listed[1].split()]
    return found


def told_by_weft_hpp(root):
    return set(re.findall(r"<weft/(.*?)>", (root / "weft.hpp").read_text()))


@dataclass
class Member:
    """A function, variable, type or enumeration."""
    name: str
    qualified: str
    kind: str
    header: str
    line: int
    node: xml.Element
    protected: bool = False
    anchor: str = ""


@dataclass
class Compound:
    """A class."""
    name: str
    kind: str
    header: str
    line: int
    node: xml.Element
    members: list = field(default_factory=list)
    nested: list = field(default_factory=list)

    @property
    def url(self):
        return f"reference/{re.sub(r'[^A-Za-z0-9_]+', '.', self.name.replace('::', '.')).strip('.')}.html"


def run_doxygen(root, headers, output, here):
    """Doxygen's warnings, without those about names that speak for themselves."""
    output.mkdir(parents=True, exist_ok=True)
    settings = (here / "Doxyfile").read_text()
    settings += f"OUTPUT_DIRECTORY = {output}\nINPUT = {' '.join(headers)}\nWARN_LOGFILE = {output}/warnings\n"
    subprocess.run(["doxygen", "-"], input=settings, text=True, cwd=root, check=True, stdout=subprocess.DEVNULL)
    warnings = (output / "warnings").read_text().replace(f"{root}/", "")
    return [line for line in dict.fromkeys(warnings.splitlines()) if line and not is_self_evident(line)]


def is_self_evident(warning):
    member = re.search(r"Member (.+?) \((?:function|variable|typedef|friend)\) of (?:class|struct) (\S+) is not documented",
                       warning)
    if member is None:
        return False
    owner = re.sub(r"<.*", "", member[2]).rpartition("::")[2]
    return speaks_for_itself(member[1].partition("(")[0], member[1], owner)


def speaks_for_itself(name, declaration, owner):
    moves = re.match(rf"{owner}\s*\((const )?{owner}(< .*?>)? ?(&|&&) ?\w*\)", declaration)
    return bool(SPEAKS_FOR_ITSELF.match(name) or moves)


class Reference:
    def __init__(self, root, site, headers, xml_directory):
        self.root, self.site, self.headers = root, site, headers
        self.compounds, self.free = {}, {}  # by name; by header
        self.unnamed, self.file_nodes = [], {}
        self.places, self.files = {}, {}    # Doxygen's ids
        for path in sorted(xml_directory.glob("*.xml")):
            if path.name not in ("index.xml", "Doxyfile.xml"):
                self.load(xml.parse(path).getroot().find("compounddef"))
        self.place_all()

    def load(self, node):
        kind, name = node.get("kind"), tidy(node.findtext("compoundname"))
        if kind == "file":
            header = node.find("location").get("file")
            self.files[node.get("id")], self.file_nodes[header] = header, node
            return
        if not re.match(r"weft(::|$)", name) or "detail" in name.split("::"):
            return
        if kind == "namespace":
            for member in node.iter("memberdef"):
                made = self.member(member)
                if made.header in self.headers:
                    self.free.setdefault(made.header, []).append(made)
        elif kind == "concept":
            where = node.find("location")
            made = Member(name.rpartition("::")[2], name, kind, where.get("file"), int(where.get("line")), node)
            self.free.setdefault(made.header, []).append(made)
        elif "@" in name:  # a union without a name, whose members are its class's
            self.unnamed.append((name.partition("::@")[0], [self.member(member) for member in node.iter("memberdef")]))
        elif kind in ("class", "struct", "union") and node.get("prot") in ("public", "protected"):
            where = node.find("location")
            made = Compound(name, kind, where.get("file"), int(where.get("line")), node)
            made.members = [self.member(member) for member in node.iter("memberdef") if self.is_shown(member)]
            self.compounds[name] = made

    @staticmethod
    def is_shown(node):
        """Whether it is neither private nor a friend that is declared elsewhere."""
        if not re.match(r"[\w~]", node.findtext("name")):
            return False
        if node.get("kind") == "friend":
            return bool(node.findtext("argsstring"))
        if node.get("prot") == "private" or "=delete" in (node.findtext("argsstring") or ""):
            return False
        return not node.findtext("name").startswith("~") or text_of_node(node) != ""

    @staticmethod
    def member(node):
        where = node.find("location")
        return Member(node.findtext("name"), node.findtext("qualifiedname"), node.get("kind"), where.get("file"),
                      int(where.get("line")), node, node.get("prot") == "protected")

    def without_comment(self):
        """Names outside of classes that no comment is about, and that Doxygen is silent on where it has no word for their
        file either."""
        for header, members in self.free.items():
            for member in members:
                if text_of_node(member.node) == "" and not SPEAKS_FOR_ITSELF.match(member.name):
                    yield f"{header}:{member.line}: warning: {member.qualified} is not documented."

    def place_all(self):
        for outer in list(self.compounds.values()):
            for inner in outer.node.findall("innerclass"):
                if inner.get("prot") == "private":
                    self.compounds.pop(tidy(inner.text), None)
        names = self.site.names
        for header in self.headers:
            names.headers[header] = f"reference/{header}.html"
        self.places.update({key: names.headers[header] for key, header in self.files.items() if header in names.headers})
        for owner, members in self.unnamed:
            if owner in self.compounds:
                self.compounds[owner].members += members
        for compound in self.compounds.values():
            compound.members.sort(key=lambda each: each.line)
            names.add(re.sub(r"<.*", "", compound.name), "class", compound.url)
            self.places[compound.node.get("id")] = compound.url
            outer = self.compounds.get(compound.name.rpartition("::")[0])
            if outer:
                outer.nested.append(compound)
            self.place(compound.members, compound.url, re.sub(r"<.*", "", compound.name))
        for header, members in self.free.items():
            members.sort(key=lambda each: each.line)
            self.place(members, f"reference/{header}.html", None)

    def place(self, members, url, owner):
        taken = {}
        for member in members:
            word = re.sub(r"\W+", "-", member.name).strip("-") or "operator"
            taken[word] = taken.get(word, 0) + 1
            member.anchor = word if taken[word] == 1 else f"{word}-{taken[word]}"
            place = f"{url}#{member.anchor}"
            self.places[member.node.get("id")] = place
            name = f"{owner}::{member.name}" if owner else re.sub(r"<.*?>", "", member.qualified)
            member.qualified = name
            if member.kind != "friend":
                self.site.names.add(name, "function" if member.kind == "function" else member.kind, place)
            for value in member.node.findall("enumvalue"):
                self.places[value.get("id")] = f"{place}-{value.findtext('name')}"
                self.site.names.add(f"{name}::{value.findtext('name')}", "enumerator",
                                    f"{place}-{value.findtext('name')}")

    # What Doxygen has made of a comment.

    def description(self, node, origin, scope):
        parts = [self.block(child, origin, scope) for which in ("briefdescription", "detaileddescription")
                 for child in node.find(which) if node.find(which) is not None]
        return "".join(parts)

    def block(self, node, origin, scope):
        """A paragraph and what stands among paragraphs."""
        inner = lambda: self.inline(node, origin, scope)
        if node.tag == "para":
            return self.paragraph(node, origin, scope)
        if node.tag in ("itemizedlist", "orderedlist"):
            tag = "ul" if node.tag == "itemizedlist" else "ol"
            items = "".join("<li>" + "".join(self.block(child, origin, scope) for child in item) + "</li>\n"
                            for item in node)
            return f"<{tag}>\n{items}</{tag}>\n"
        if node.tag in ("verbatim", "preformatted"):
            return self.site.code("".join(node.itertext()), "cpp", origin, scope="")
        if node.tag == "programlisting":
            lines = ["".join(" " if part.tag == "sp" else (part.text or "") for part in spread(line)) for line in node]
            return self.site.code("\n".join(lines), "cpp", origin)
        if node.tag == "simplesect":
            return f'<p class="note">{node.get("kind").capitalize()}: ' + "".join(
                self.inline(child, origin, scope) for child in node) + "</p>\n"
        if node.tag == "table":
            rows = "".join("<tr>" + "".join(
                f"<{'th' if cell.get('thead') == 'yes' else 'td'}>" + "".join(self.inline(part, origin, scope) for part in cell)
                + f"</{'th' if cell.get('thead') == 'yes' else 'td'}>" for cell in row) + "</tr>\n" for row in node)
            return f'<div class="table" tabindex="0"><table>\n{rows}</table></div>\n'
        raise ValueError(f"a comment has <{node.tag}>, which docs/site/reference.py does not know: {inner()[:200]}")

    BLOCKS = {"itemizedlist", "orderedlist", "verbatim", "preformatted", "programlisting", "simplesect", "table"}

    def paragraph(self, node, origin, scope):
        """Doxygen puts lists and code inside of paragraphs; HTML has them between."""
        made, line = [], self.words(node.text, origin, scope)
        for child in node:
            if child.tag in self.BLOCKS:
                made.append(f"<p>{line.strip()}</p>\n" if line.strip() else "")
                made.append(self.block(child, origin, scope))
                line = ""
            else:
                line += self.inline_node(child, origin, scope)
            line += self.words(child.tail, origin, scope)
        made.append(f"<p>{line.strip()}</p>\n" if line.strip() else "")
        return "".join(made)

    def inline(self, node, origin, scope):
        return self.words(node.text, origin, scope) + "".join(
            self.inline_node(child, origin, scope) + self.words(child.tail, origin, scope) for child in node)

    def inline_node(self, node, origin, scope):
        if node.tag == "ref":
            place, shown = self.places.get(node.get("refid").removesuffix("_source")), self.escaped("".join(node.itertext()))
            if place is None or place == origin:
                return shown
            return f'<a class="name" href="{html.escape(self.site.link(place, origin))}">{shown}</a>'
        if node.tag == "computeroutput":
            text = "".join(node.itertext())
            return f"<code>{self.site.linked(text, origin, scope)}</code>"
        if node.tag == "ulink":
            return f'<a href="{html.escape(node.get("url"))}">{self.inline(node, origin, scope)}</a>'
        if node.tag in ("bold", "emphasis", "para"):
            tag = {"bold": "b", "emphasis": "em", "para": "span"}[node.tag]
            return f"<{tag}>{self.inline(node, origin, scope)}</{tag}>"
        simple = {"linebreak": "<br>", "ndash": "–", "mdash": "—", "nonbreakablespace": "&nbsp;", "sp": " ", "deg": "°",
                  "times": "×", "superscript": "", "sup": ""}
        if node.tag in simple:
            return simple[node.tag]
        raise ValueError(f"a comment has <{node.tag}>, which docs/site/reference.py does not know")

    @staticmethod
    def escaped(text):
        return html.escape(text or "", quote=False)

    def words(self, text, origin, scope):
        """Running text, where Doxygen has left names and files without links that have a place."""
        def name(found):
            return self.site.linked(found[0], origin, scope)
        return re.sub(r"\b\w+(?:::\w+)+(?:\(\))?|\b[a-z_]+\(\)(?!\w)|\b[\w/]+\.hpp\b|\b[\w/-]+\.md\b", name, self.escaped(text))

    # Pages.

    def declaration(self, member):
        """As it is written, without its body."""
        node, kind = member.node, member.kind
        lines = []
        parameters = node.find("templateparamlist")
        if parameters is not None:
            lines.append(f"template <{', '.join(self.parameter(each) for each in parameters)}>")
        constraint = flat(node.find("requiresclause"))
        if constraint:
            lines.append(f"  requires {constraint}")
        kind_of = flat(node.find("type"))
        if kind == "concept":
            return "\n".join([*lines, f"concept {member.name} = {flat(node.find('initializer')).partition(' = ')[2]}"])
        if kind == "enum":
            underlying = f" : {kind_of}" if kind_of else ""
            return f"enum {'class ' if node.get('strong') == 'yes' else ''}{member.name}{underlying}"
        if kind == "typedef":
            return "\n".join([*lines, f"using {member.name} = {kind_of}{node.findtext('argsstring') or ''}"])
        words = [word for word, attribute in (("static", "static"), ("explicit", "explicit"))
                 if node.get(attribute) == "yes" and word not in kind_of]
        if node.get("virt") in ("virtual", "pure-virtual") and "override" not in (node.findtext("argsstring") or ""):
            words.append("virtual")
        if kind == "friend":
            kind_of = re.sub(r"^friend ", "", kind_of)
            words.append("friend")
        arguments = re.sub(r"\s*=\s*(0|default|delete)$", r" = \1", tidy(node.findtext("argsstring") or ""))
        start = " ".join([*words, kind_of] if kind_of else words)
        start += (" " if start else "") + tidy(member.name)
        initial = node.findtext("initializer") or ""
        if kind == "variable":
            arguments += (" " + tidy(initial) if initial.startswith("=") else tidy(initial)) if len(initial) < 80 else ""
        lines.append(wrapped(start, arguments))
        return "\n".join(lines)

    @staticmethod
    def parameter(node):
        name, default = node.findtext("declname"), flat(node.find("defval"))
        return flat(node.find("type")) + (f" {name}" if name else "") + (f" = {default}" if default else "")

    def coloured(self, member, origin, scope):
        """Its declaration, in which its own name stands out and is no link."""
        return self.site.coloured(self.declaration(member), "cpp", origin, scope, subject=member.name)

    def member_entry(self, member, origin, scope):
        code = self.coloured(member, origin, scope)
        body = self.description(member.node, origin, scope)
        if member.kind == "enum":
            body += self.values(member, origin, scope)
        return (f'<section class="member" id="{member.anchor}">\n<h3><code>{code}</code> <a class="here" href="#{member.anchor}"'
                f' aria-label="Link to {html.escape(member.name)}">#</a></h3>\n{body}</section>\n')

    def values(self, member, origin, scope):
        made, values = [], member.node.findall("enumvalue")
        if not any(text_of_node(value) for value in values):
            return "<p>" + ", ".join(f'<code id="{member.anchor}-{value.findtext("name")}">{value.findtext("name")}</code>'
                                     for value in values) + "</p>\n"
        for value in values:
            name, initial = value.findtext("name"), value.findtext("initializer") or ""
            made.append(f'<dt id="{member.anchor}-{name}"><code>{html.escape(name)}{html.escape(" " + initial if initial else "")}'
                        f"</code></dt><dd>{self.description(value, origin, scope)}</dd>\n")
        return f"<dl>\n{''.join(made)}</dl>\n"

    def listed(self, entries, origin):
        """Names with their first sentences: (shown, place, description)."""
        return '<dl class="names">\n' + "".join(
            f'<dt><a class="name" href="{html.escape(self.site.link(place, origin))}"><code>{html.escape(shown)}</code></a></dt>'
            f"<dd>{html.escape(about, quote=False)}</dd>\n" for shown, place, about in entries) + "</dl>\n"

    def about(self, node):
        return first_sentence(text_of_node(node))

    def write(self):
        for compound in self.compounds.values():
            self.write_compound(compound)
        for header in self.headers:
            self.write_header(header)
        self.write_index()
        self.write_names()

    def write_compound(self, compound):
        url, scope, site = compound.url, re.sub(r"<.*", "", compound.name), self.site
        template = compound.node.find("templateparamlist")
        head = f"template <{', '.join(self.parameter(each) for each in template)}>\n" if template is not None and len(template) \
            else ""
        head += f"{compound.kind} {compound.name.rpartition('::')[2] if '<' not in compound.name else compound.name}"
        bases = [self.base(each) for each in compound.node.findall("basecompoundref") if each.get("prot") == "public"
                 and "detail" not in (each.text or "")]
        if bases:
            head += " : " + ", ".join(bases)
        body = [f"<h1>{html.escape(compound.name)}</h1>\n",
                site.code(f"#include <weft/{compound.header}>\n\n{head}", "cpp", url, scope,
                          subject=compound.name.rpartition("::")[2]),
                self.description(compound.node, url, scope)]
        heirs = [each.text for each in compound.node.findall("derivedcompoundref") if each.text in self.compounds]
        if heirs:
            body.append("<p>Derived from it: " + ", ".join(
                f"<code>{site.linked(each, url)}</code>" for each in heirs) + ".</p>\n")
        self.index(compound.name, url, compound.kind, compound.node)
        sections, silent, groups = [], [], {"Types": [], "Members": [], "For derived classes": []}
        for member in compound.members:
            if text_of_node(member.node) == "" and member.kind != "enum":
                silent.append(member)
            elif member.protected:
                groups["For derived classes"].append(member)
            else:
                groups["Types" if member.kind in ("enum", "typedef") else "Members"].append(member)
            self.index(f"{scope}::{member.name}", f"{url}#{member.anchor}", member.kind, member.node)
        for title, members in groups.items():
            nested = sorted(compound.nested, key=lambda each: each.line) if title == "Types" else []
            if not members and not nested:
                continue
            anchor = "-" + title.lower().replace(" ", "-")
            sections.append((title, anchor))
            sections += [(each.name, each.anchor) for each in members
                         if each.anchor in (each.name, re.sub(r"\W+", "-", each.name).strip("-"))]
            body.append(f'<h2 id="{anchor}">{title}</h2>\n')
            if nested:
                body.append(self.listed([(each.name.rpartition("::")[2], each.url, self.about(each.node)) for each in nested],
                                        url))
            body += [self.member_entry(member, url, scope) for member in members]
        inherited = self.inherited(compound)
        if inherited:
            sections.append(("Inherited", "-inherited"))
            body.append('<h2 id="-inherited">Inherited</h2>\n' + self.listed(inherited, url))
        if silent:
            sections.append(("Besides", "-besides"))
            body.append('<h2 id="-besides">Besides</h2>\n<ul class="silent">\n' + "".join(
                f'<li id="{member.anchor}"><code>{self.coloured(member, url, scope)}</code></li>\n'
                for member in silent) + "</ul>\n")
        site.write(url, compound.name, "".join(body), sections)

    @staticmethod
    def base(node):
        return tidy(node.text)

    def inherited(self, compound):
        made = []
        for node in compound.node.findall("basecompoundref"):
            base = self.compounds.get(re.sub(r"<.*", "", node.text or ""))
            if base is None or node.get("prot") != "public":
                continue
            made += [(f"{each.name}", f"{base.url}#{each.anchor}", self.about(each.node)) for each in base.members
                     if text_of_node(each.node) and not each.protected and each.name != base.name.rpartition("::")[2]]
            made += self.inherited(base)
        return made

    def classes_of(self, header):
        return sorted((each for each in self.compounds.values() if each.header == header
                       and each.name.rpartition("::")[0] not in self.compounds), key=lambda each: each.line)

    def write_header(self, header):
        url = f"reference/{header}.html"
        body = [f"<h1>{header}</h1>\n", self.site.code(f"#include <weft/{header}>", "cpp", url),
                self.description(self.file_nodes[header], url, "weft::" + header.partition("/")[0])]
        sections = []
        classes = self.classes_of(header)
        if classes:
            body.append('<h2 id="-classes">Classes</h2>\n')
            sections.append(("Classes", "-classes"))
            body.append(self.listed([(each.name, each.url, self.about(each.node)) for each in classes], url))
        members = self.free.get(header, [])
        if members:
            body.append('<h2 id="-besides">Functions, types and constants</h2>\n')
            sections.append(("Functions, types and constants", "-besides"))
            sections += [(each.name, each.anchor) for each in members if each.anchor == each.name]
            for member in members:
                scope = member.qualified.rpartition("::")[0]
                body.append(self.member_entry(member, url, scope))
                self.index(member.qualified, f"{url}#{member.anchor}", member.kind, member.node)
                for value in member.node.findall("enumvalue"):
                    self.index(f"{member.qualified}::{value.findtext('name')}",
                               f"{url}#{member.anchor}-{value.findtext('name')}", "value", value)
        source = (self.root / header).read_text()
        body.append('<h2 id="-source">The header</h2>\n')
        sections.append(("The header", "-source"))
        body.append(self.site.code(source, "cpp", url, numbered=True))
        self.site.index.append([header, url, "header", text_of_node(self.file_nodes[header])])
        self.site.write(url, header, "".join(body), sections)

    def index(self, name, place, kind, node):
        name, text = re.sub(r"^weft::", "", name), text_of_node(node)
        if text or self.site.index[-1][0] != name:  # one line for all constructors without a comment
            self.site.index.append([name, place, kind, text])

    def write_index(self):
        """All headers, those first that programs name."""
        url, named = "reference/index.html", told_by_weft_hpp(self.root) | {"runtime/asio.hpp", "net/asio.hpp"}
        body = ["<h1>Reference</h1>\n<p>All public headers, with what is in them. "
                '<code><a class="name" href="weft.hpp.html">#include &lt;weft/weft.hpp&gt;</a></code> brings '
                "those that most programs need; the others follow, below each layer. "
                f'<a href="names.html">All names</a> are on one page.</p>\n']
        sections = []
        for layer, title in LAYERS.items():
            here = [header for header in self.headers if header.startswith(layer + "/")]
            first = sorted(header for header in here if header in named)
            for part, anchor, headers in ((title, layer, first),
                                          ("Further headers", f"{layer}-further", sorted(set(here) - set(first)))):
                body.append(f'<h{2 if anchor == layer else 3} id="{anchor}">{part}</h{2 if anchor == layer else 3}>\n')
                if anchor == layer:
                    sections.append((title, anchor))
                body.append('<dl class="headers">\n')
                for header in headers:
                    links = [(each.name, each.url) for each in self.classes_of(header)]
                    seen = set()
                    for member in self.free.get(header, []):
                        if member.qualified not in seen and not member.name.startswith("operator"):
                            links.append((member.qualified + ("()" if member.kind == "function" else ""),
                                          f"reference/{header}.html#{member.anchor}"))
                        seen.add(member.qualified)
                    shown = ", ".join(f'<a class="name" href="{html.escape(self.site.link(place, url))}">'
                                      f"<code>{html.escape(re.sub('^weft::', '', name))}</code></a>" for name, place in links)
                    body.append(f'<dt><a href="{header}.html">{header}</a></dt><dd>{shown or "what other headers need"}</dd>\n')
                body.append("</dl>\n")
        self.site.write(url, "Reference", "".join(body), sections)

    def write_names(self):
        """Every public name by its alphabet, for who has no JavaScript."""
        url, letters = "reference/names.html", {}
        for name, place in self.site.names.places.items():
            letters.setdefault(name.rpartition("::")[2].lstrip("~_")[:1].lower(), []).append((name, place))
        body = ["<h1>All names</h1>\n<p>" + " ".join(f'<a href="#{letter}">{letter}</a>' for letter in sorted(letters))
                + "</p>\n"]
        for letter in sorted(letters):
            body.append(f'<h2 id="{letter}">{letter}</h2>\n<ul class="columns">\n')
            for name, place in sorted(letters[letter], key=lambda each: (each[0].rpartition("::")[2], each[0])):
                owner, _, last = name.rpartition("::")
                body.append(f'<li><a class="name" href="{html.escape(self.site.link(place, url))}"><code>{html.escape(last)}</code>'
                            f"</a> <small>{html.escape(owner.removeprefix('weft::').removeprefix('weft'))}</small></li>\n")
            body.append("</ul>\n")
        self.site.write(url, "All names", "".join(body))


def spread(line):
    for part in line.iter():
        yield part
        if part.tail and part.tag == "sp":
            tail = xml.Element("text")
            tail.text = part.tail
            yield tail


def text_of_node(node):
    """The description's text in one line."""
    parts = [text for which in ("briefdescription", "detaileddescription") if node.find(which) is not None
             for text in node.find(which).itertext()]
    return " ".join("".join(parts).split())


def flat(node):
    return tidy("".join(node.itertext())) if node is not None else ""


def tidy(code):
    """Doxygen's spaces as clang-format has them."""
    code = re.sub(r"<\s+", "<", " ".join(code.split()))
    code = re.sub(r"(?<![-=])\s+>", ">", code)
    code = re.sub(r"\s+([&*]+)(?=[\w,)>\s]|$)", r"\1 ", code)
    code = re.sub(r"([&*]) +(?=[,)>]|$)", r"\1", code)
    code = re.sub(r"\) ?(&&?)(?=$| [a-z])", r") \1", code)
    code = re.sub(r"\) ?=(0|default)$", r") = \1", code)
    code = re.sub(r"(\w)=(?=[{\w\"'\[])", r"\1 = ", code)
    return code.strip()


def wrapped(start, arguments):
    """One parameter a line where it is long."""
    if len(start + arguments) <= 90 or not arguments.startswith("("):
        return start + arguments
    depth, parts, last, end = 0, [], 1, len(arguments)
    for at, letter in enumerate(arguments):
        if letter in "(<{[":
            depth += 1
        elif letter in ")>}]" and arguments[at - 1:at + 1] != "->":
            depth -= 1
            if depth == 0:
                end = at
                break
        elif letter == "," and depth == 1:
            parts.append(arguments[last:at].strip())
            last = at + 1
    parts.append(arguments[last:end].strip())
    return start + "(\n    " + ",\n    ".join(parts) + arguments[end:]
