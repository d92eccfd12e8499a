#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the code that the documentation shows.

check.py README PROGRAM
    The first C++ block of the README is the program, to the letter.

check.py code ROOT COMPILER [OPTION...]
    Each block of code in each page, and in the comments of public headers, is what it seems to be. C++ compiles, all of
    it as one translation unit. A fragment finds what it does not declare itself in surroundings.hpp. CMake, JSON, YAML,
    TOML and shell blocks parse. The options are the compiler's, behind -I and the like.

check.py names ROOT
    The members that sentences name, in the pages as `error::posted()` or `slice.size()` and in the comments of public
    headers, are declared somewhere in the project.

check.py commands ROOT BUILD
    The commands in the pages that are the project's exist, and know the words and options that they are given.

A comment in the line before a block says what is different about it:
    <!-- not compiled: REASON -->            it is no C++ that compiles, for a reason; there are few of these
    <!-- excerpt: examples/echo/echo.cpp --> the lines stand in that program, which the tests build
    <!-- surroundings: asio -->              a fragment that goes into surroundings_asio.hpp
"""
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

here = Path(__file__).resolve().parent
project = here.parent.parent
MOST_NOT_COMPILED = 8
OTHER_LANGUAGES = {"", "text", "console", "diff", "ini", "xml", "dockerfile", "python", "gdb", "promql"}


@dataclass
class Block:
    page: str
    line: int  # of its first line of code
    language: str
    code: str
    note: str = ""
    about: str = ""

    @property
    def where(self):
        return f"{self.page}:{self.line}"


def pages(root):
    files = [*root.glob("*.md"), *root.glob("docs/**/*.md"), *root.glob("examples/**/*.md"), *root.glob("tests/*/README.md")]
    return sorted(path.relative_to(root).as_posix() for path in files)


def blocks_of_page(root, page):
    """Its fenced blocks."""
    fence, comment = None, ("", "")
    for number, line in enumerate((root / page).read_text().splitlines(), 1):
        begins = re.match(r"( *)(```+|~~~+)\s*([\w+.-]*)", line)
        if fence is None and begins:
            fence, code = (begins[2], len(begins[1])), []
            block = Block(page, number + 1, begins[3], "", *comment)
        elif fence is not None and line.strip() == fence[0]:
            block.code, fence = "\n".join(code) + "\n", None
            yield block
        elif fence is not None:
            code.append(line[min(fence[1], len(line) - len(line.lstrip())):])
        said = re.match(r"<!-- (not compiled|excerpt|surroundings): (.+?) -->$", line)
        comment = (said[1], said[2]) if said else ("", "")


def public_headers(root):
    for layer in ("runtime", "mr", "net") if root == project else ():
        listed = re.search(r"weft_component\(.*?\bHEADERS\b(.*?)\bSOURCES\b", (root / layer / "CMakeLists.txt").read_text(),
                           re.DOTALL)
        yield from (f"{layer}/{header}" for header in listed[1].split())


def blocks_of_header(root, header):
    """The code in its comments: what is indented by four more, behind a line without text."""
    block, before = None, None
    for number, line in enumerate((root / header).read_text().splitlines() + [""], 1):
        comment = re.match(r" *///( ?)(.*)$", line)
        text = comment[2] if comment else None
        if block is None and text is not None and text.startswith("    ") and before == "":
            block = Block(header, number, "cpp", "")
        if block is not None:
            if text is not None and (text.startswith("    ") or text == ""):
                block.code += text[4:] + "\n"
            else:
                if not re.match(r"\w+  +\S", block.code):  # a table of words and what they mean
                    yield block
                block = None
        before = text


def all_blocks(root):
    found = [block for page in pages(root) for block in blocks_of_page(root, page)]
    return found + [block for header in public_headers(root) for block in blocks_of_header(root, header)]


# C++.

LOCALS = "int id, some_server& server, std::string name"  # for fragments that capture
CONTROL = r"(if|for|while|do|switch|try|else|return|co_\w+|throw|auto|const auto)\b"


def statements_and_definitions(code):
    """A block of C++, cut into what must stand outside of functions and what must stand inside; with line numbers."""
    outside, inside, depth, chunk, first = [], [], 0, [], 1
    for number, line in enumerate(code.splitlines(), 1):
        if depth == 0 and not chunk:
            first = number
        chunk.append(line)
        plain = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])+\'|//.*', "", line)
        depth += sum(plain.count(each) for each in "({[") - sum(plain.count(each) for each in ")}]")
        text = "\n".join(chunk)
        ended = depth <= 0 and (re.search(r"[;}]\s*$", plain) or line.startswith("#") or not plain.strip())
        following = code.splitlines()[number].lstrip() if number < len(code.splitlines()) else ""
        if ended and not re.match(r"(catch|else|while)\b", following.lstrip("} ")):
            (outside if is_definition(text) else inside).append((first, text))
            chunk = []
    if chunk:
        inside.append((first, "\n".join(chunk)))
    return outside, inside


def is_definition(text):
    text = re.sub(r"^(\s*//.*\n)+", "", text).strip()
    if re.match(r"(struct|class|enum|template|namespace|using|typedef|#|inline|static_assert|extern|constexpr)\b|#", text):
        return True
    is_function = re.match(r"[\w:<>,&*\s\[\]]+?[\s&*>]~?\w+\([^;{]*\)[\w\s]*\{", text) and "=" not in text.partition("{")[0]
    return bool(is_function) and not re.match(CONTROL, text) or bool(re.match(r"[\w:<>,&*\s]+ main\(", text))


def surroundings_of(block):
    """The one that its comment names, or else that of the example whose page it is, of Asio, or of the guide."""
    if block.note == "surroundings":
        return block.about
    example = block.page.split("/")[1] if block.page.startswith("examples/") else ""
    if (here / f"surroundings_{example}.hpp").exists():
        return example
    if re.search(r"\basio::|use_awaitable", block.code):
        return "asio"
    return "guide" if block.page.startswith("docs/guide/") else "plain"


def compile_all(blocks, compiler, options):
    """One translation unit of all blocks, so that the headers are read once. Yields what is wrong."""
    includes, bodies = set(), []
    for number, block in enumerate(blocks):
        code, name = block.code, surroundings_of(block)
        includes |= {line for line in code.splitlines() if line.startswith("#include <")}
        includes.add(f'#include "surroundings_{name}.hpp"' if name != "plain" else '#include "surroundings.hpp"')
        code = re.sub(r"^#(include <.*|pragma once)$", "", code, flags=re.MULTILINE)
        # "..." stands for what the reader has there.
        code = re.sub(r"\{ \.\.\. \}", "{ co_return; }" if "task<>" in code else "{}", code)
        outside, inside = statements_and_definitions(code)
        at = lambda line: f'#line {block.line + line - 1} "{block.page}"\n'
        text = "".join(at(line) + part + "\n" for line, part in outside)
        if any(part.strip() for _, part in inside):
            kind = "asio::awaitable<void>" if re.search(r"use_awaitable|awaitable_operators", code) else "task<>"
            start, end = ("void shown() {", "}") if name == "nothing" else (f"{kind} shown({LOCALS}) {{ {{", "}\nco_return; }")
            text += f"{start}\n" + "".join(at(line) + part + "\n" for line, part in inside) + f"{end}\n"
        bodies.append(f"namespace surroundings_{name} {{ namespace block_{number} {{\n{text}}} }}\n")
    weft = [line for line in sorted(includes) if "weft/" in line or line.startswith('#include "')]
    source = "\n".join(sorted(includes - set(weft)) + sorted(weft, key=lambda line: '"' in line)) + "\n" + "".join(bodies)
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "weft").symlink_to(project)
        (Path(directory) / "shown.cpp").write_text(source)
        done = subprocess.run(
            [compiler, "-std=c++20", "-fsyntax-only", "-w", "-DASIO_HAS_CO_AWAIT=1", f"-I{directory}",
             f"-I{here}", f"-I{project}/examples", *options, f"{directory}/shown.cpp"],
            capture_output=True, text=True)
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if " error: " in line]
        yield "\n".join(told or [done.stderr])


def contains(program, code):
    """Whether the lines of `code` follow one another in the program, with one indentation before all of them."""
    lines, wanted = program.splitlines(), textwrap.dedent(code).splitlines()
    return any(textwrap.dedent("\n".join(lines[at:at + len(wanted)])).splitlines() == wanted for at in range(len(lines)))


def parse(block):
    """Throws what is wrong with a block of another language."""
    if block.language == "json":
        json.loads(block.code)
    elif block.language == "toml":
        tomllib.loads(block.code)
    elif block.language in ("yaml", "yml"):
        try:
            import yaml
        except ImportError:
            return
        list(yaml.safe_load_all(block.code))
    elif block.language in ("sh", "bash", "shell"):
        subprocess.run(["bash", "-n"], input=block.code, text=True, check=True, capture_output=True)
    elif block.language == "cmake":
        with tempfile.NamedTemporaryFile("w", suffix=".cmake") as script:
            script.write(f"function(shown)\n{block.code}endfunction()\n")  # which is parsed, and not called
            script.flush()
            subprocess.run(["cmake", "-P", script.name], check=True, capture_output=True, text=True)
    elif block.language not in OTHER_LANGUAGES:
        raise ValueError(f"is in a language that check.py does not know: {block.language}")


def check_code(root, compiler, options):
    wrong, compiled, excerpts, left_out, others = [], [], 0, [], 0
    for block in all_blocks(root):
        if block.note == "not compiled":
            left_out.append(block)
        elif block.note == "excerpt":
            excerpts += 1
            program = root / block.about
            if not program.is_file() or not contains(program.read_text(), block.code):
                wrong.append(f"{block.where}: {block.about} has no such lines")
        elif block.language in ("cpp", "c++"):
            compiled.append(block)
        else:
            others += 1
            try:
                parse(block)
            except subprocess.CalledProcessError as failure:
                wrong.append(f"{block.where}: {failure.stderr.strip()}")
            except Exception as failure:  # of whichever parser
                wrong.append(f"{block.where}: {failure}")
    wrong += compile_all(compiled, compiler, options)
    if len(left_out) > MOST_NOT_COMPILED:
        wrong.append(f"{len(left_out)} blocks are not compiled, and {MOST_NOT_COMPILED} may be: "
                     + ", ".join(block.where for block in left_out))
    if not compiled:
        wrong.append("there is no C++ in any page")
    print("\n".join(wrong) or f"{len(compiled)} blocks of C++ compile, {excerpts} are excerpts of programs, {len(left_out)} are "
          f"not compiled, {others} are in other languages")
    return wrong


# Commands.

def programs_of(build):
    """The project's programs: name -> how to call it."""
    found = {"./dev": [project / "dev"], "vm.py": [project / "tests/vm/vm.py"],
             "weft-check-coroutines": [project / "tests/coroutines/weft-check-coroutines"]}
    for directory, folders, files in os.walk(build):
        folders[:] = [each for each in folders if each not in ("CMakeFiles", "docs", "Testing", "results", "include")]
        for name in files:
            path = Path(directory) / name
            if "." not in name and os.access(path, os.X_OK) and not name.endswith(("_tests", "_bench", "_fuzzer")):
                found.setdefault(name, [path])
    return found


def commands_in(block):
    """The commands of a block: lines behind a prompt, or all lines of a script, each in its words."""
    lines = re.sub(r"\\\n\s*", "", block.code).splitlines()
    is_session = any(line.startswith("$ ") for line in lines)
    for line in lines:
        if is_session and not line.startswith("$ "):
            continue
        try:
            lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
            lexer.commenters, lexer.whitespace_split = "#", True
            words = list(lexer)
        except ValueError:
            continue  # output that happens to look like a command
        command = []
        for word in [*words, ";"]:
            if re.fullmatch(r"[;&|()<>]+", word):
                if command:
                    yield command
                command = []
            elif command or not re.match(r"[A-Z_]+=|(sudo|nice|timeout|exec|time|env|setarch)$", word):
                command.append(word)


class Help:
    """What programs say of themselves, each asked once."""

    def __init__(self, programs):
        self.programs, self.said = programs, {}

    def of(self, name, *words):
        key = (name, *words)
        if key not in self.said:
            command = [*self.programs[name], *words, "help" if name == "./dev" else "--help"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
            self.said[key] = done.stdout + done.stderr
        return self.said[key]


def faults_of(command, told):
    name, words = command[0], command[1:]
    words = [word for word in words if not re.fullmatch(r"\.\.\.|\[.*", word)]
    general = told.of(name)
    verbs = [word for word in words if re.fullmatch(r"[a-z][a-z-]*", word) and re.search(rf"^\s+{word}\b", general, re.MULTILINE)
             and f"--{word}" not in words]
    first = next((word for word in words if not word.startswith("-")), None)
    if (name, first) == ("./dev", "vm"):  # the rest, up to a command that is not ours, is for vm.py
        options = list(itertools.takewhile(lambda word: word != "--" if "--" in words else word.startswith("-"), words[1:]))
        yield from faults_of(["vm.py", *options], told)
        return
    if name == "./dev":
        if first is not None and not re.search(rf"^\./dev {re.escape(first)}\b", general, re.MULTILINE):
            yield f"./dev has no command {first}"
        known = general
    else:
        known = general + (told.of(name, verbs[0]) if verbs and "SUBCOMMAND" in general.upper() else "")
    for word in words:
        if word == "--":
            return
        option = re.match(r"--?[A-Za-z][\w-]*", word)
        if option and not re.search(rf"(?<![\w-]){re.escape(option[0])}(?![\w-])", known):
            yield f"{name}{' ' + verbs[0] if verbs else ''} has no option {option[0]}"
    has_commands = re.search(r"subcommands?:", general, re.IGNORECASE)
    if has_commands and re.fullmatch(r"[a-z][a-z-]+", first or "") and not re.search(rf"^\s+{first}\b", general, re.MULTILINE):
        yield f"{name} has no command {first}"


def check_commands(root, build):
    told, wrong, checked = Help(programs_of(build)), [], 0
    for page in pages(root):
        for block in blocks_of_page(root, page):
            if block.language not in ("", "console", "sh", "bash", "shell") or block.note == "not compiled":
                continue
            for command in commands_in(block):
                name = command[0] if command[0] == "./dev" else command[0].rpartition("/")[2]
                if name in told.programs:
                    checked += 1
                    wrong += [f"{block.where}: {what}: {' '.join(command)}" for what in faults_of([name, *command[1:]], told)]
                elif name.startswith("weft-") and "." not in name:
                    wrong.append(f"{block.where}: there is no program {name}")
    print("\n".join(wrong) or f"{checked} commands exist and know their options")
    return wrong or not checked


# Names.

FOREIGN = {"std", "asio", "boost", "ibv", "fmt", "tcp", "io_context", "duration", "time_point"}


class Declarations:
    """What the sources declare, as far as braces tell."""

    def __init__(self):
        self.bodies, self.bases, self.functions = {}, {}, set()
        for layer in ("runtime", "mr", "net", "examples", "tests"):
            for path in (project / layer).rglob("*.[hc]pp"):
                self.read(re.sub(r"//.*", "", path.read_text()))

    def read(self, code):
        self.functions |= set(re.findall(r"(\w+)\(", code))
        for match in re.finditer(r"\b(?:class|struct|union|namespace|enum(?:\s+class)?)\s+(?:\[\[[^]]*\]\]\s+)?(?:\w+::)*(\w+)\s*"
                                 r"(?:final\s*)?(:[^;{()]*)?\{", code):
            depth, end = 1, match.end()
            while depth and end < len(code):
                depth += {"{": 1, "}": -1}.get(code[end], 0)
                end += 1
            self.bodies[match[1]] = self.bodies.get(match[1], "") + code[match.end():end]
            self.bases.setdefault(match[1], set()).update(re.findall(r"\w+", match[2] or ""))

    def has(self, scope, name, seen=()):
        return scope not in seen and (re.search(rf"\b{name}\b", self.bodies.get(scope, "")) is not None
                                      or any(self.has(base, name, (*seen, scope)) for base in self.bases.get(scope, ())))

    def faults_of(self, sentence):
        for match in re.finditer(r"(?<![\w:.])((?:[a-z_]\w*::)+)~?([a-z_]\w*)", sentence):
            scopes = match[1].split("::")[:-1]
            if scopes[0] not in FOREIGN and not self.has(scopes[-1], match[2]):
                yield f"there is no {match[0]}"
        for match in re.finditer(r"(?<![\w:.])[a-z_]\w*(?:\.|->)([a-z_]\w*)\(\)", sentence):
            if match[1] not in self.functions:
                yield f"there is no {match[0]}"


def sentences(root):
    """Where each is that may name something, and what it says."""
    for page in pages(root):
        is_code = False
        for number, line in enumerate((root / page).read_text().splitlines(), 1):
            is_code ^= re.match(r" *(```|~~~)", line) is not None
            if not is_code:
                yield f"{page}:{number}", " ".join(re.findall(r"`([^`]+)`", line))
    for header in public_headers(root):
        for number, line in enumerate((root / header).read_text().splitlines(), 1):
            yield f"{header}:{number}", line.partition("//")[2]


def check_names(root):
    known = Declarations()
    wrong = [f"{where}: {what}" for where, sentence in sentences(root) for what in known.faults_of(sentence)]
    print("\n".join(wrong) or "every member that is named is declared")
    return wrong


def check_program(readme, program):
    block = re.search(r"```cpp\n(.*?)```", readme.read_text(), re.DOTALL)
    if block is None or block.group(1) != program.read_text():
        print(f"{readme}: its first program is no longer {program}; copy that into the README")
        return True
    return False


if sys.argv[1] == "code":
    sys.exit(1 if check_code(Path(sys.argv[2]).resolve(), sys.argv[3], sys.argv[4:]) else 0)
if sys.argv[1] == "names":
    sys.exit(1 if check_names(Path(sys.argv[2]).resolve()) else 0)
if sys.argv[1] == "commands":
    sys.exit(1 if check_commands(Path(sys.argv[2]).resolve(), Path(sys.argv[3])) else 0)
sys.exit(1 if check_program(*map(Path, sys.argv[1:])) else 0)
