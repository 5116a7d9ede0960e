#!/usr/bin/env python3
"""Makes the book: all documents as web pages in DIR, with the code that they cite. Used by scripts/book.sh.

    make_book.py DIR

A page lies in DIR where its file lies in the project: notes/tape.md becomes notes/tape.html, and stage1_naive/ddp.c
becomes stage1_naive/ddp.c.html. So a link between two files is a link between their pages.
"""
import json
import posixpath
import re
import shutil
import sys
from html import escape
from pathlib import Path

from source import Source, diff
from text import ROOT, Text, plain, words_of

sys.path.insert(0, str(ROOT / "scripts"))
from figure import COLOURS, THEME  # noqa: E402

PAGE = """<!DOCTYPE html>
<html lang="en" data-root="{root}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="{root}book.css">{turn}
<script src="{root}words.js" defer></script>
<script src="{root}book.js"></script>
</head>
<body class="{kind}">
<a class="skip" href="#main">Skip to the text</a>
<header>
<a class="home" href="{root}index.html">lockstep</a>
<details id="contents"><summary>Contents</summary><nav aria-label="Contents">{contents}</nav></details>
<form id="search" role="search" hidden><input type="search" aria-label="Search the book" placeholder="Search ( / )">
<div id="found" role="status"></div></form>
<button id="theme" type="button" hidden>Dark</button>
</header>
<div id="columns">
<main id="main">
{main}
{pager}
</main>
{aside}
</div>
</body>
</html>
"""
LIST = re.compile(r"^\d+\. \[(\w+\.md)\]", re.MULTILINE)  # the reading order in notes/README.md


class Book:
    def __init__(self, out):
        self.out = out
        self.files, self.directories, self.written = {}, set(), []
        self.words = words_of((ROOT / "notes/README.md").read_text(encoding="utf-8"))
        self.groups = self.order()
        self.titles = {}
        paths = [path for _, group in self.groups for path in group]
        self.documents = set(paths)
        self.texts = {path: Text(path, self.markdown(path), self) for path in paths if not path.startswith("diff")}
        self.titles = {path: self.texts[path].title if path in self.texts else
                       f"What changes from stage {path[4]} to stage {path[6]}" for path in paths}
        self.titles["README.md"] = "The project"
        self.paths = paths

    def order(self):
        """(heading, documents) of the contents, in the order in which pages are turned."""
        stages = sorted(path.name for path in ROOT.glob("stage[0-9]_*"))
        chapters = []
        for name in LIST.findall((ROOT / "notes/README.md").read_text(encoding="utf-8")):
            chapters.append(f"notes/{name}")
            if re.fullmatch(r"stage\d\.md", name):
                n = int(name[5])
                chapters += [f"{stages[n - 1]}/README.md"] + ([f"diff{n - 1}-{n}.md"] if n > 1 else [])
        course = ["course/README.md"] + [f"course/{stage}.assignment.md" for stage in stages] + ["course/measured.md"]
        rest = [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("notes/*.md"))]
        rest += ["bench/README.md", "tests/README.md", "tests/mutants/README.md", "CONTRIBUTING.md"]
        front = ["README.md", "notes/README.md"]
        return [("Begin", front), ("Read", chapters),
                ("Look up", [path for path in rest if path not in chapters + front]), ("Course", course)]

    def markdown(self, path):
        text = (ROOT / path).read_text(encoding="utf-8")
        stage = re.fullmatch(r"course/((stage\d)_\w+)\.assignment\.md", path)
        if stage:  # the part that all assignments share, and the lines of the points file, as course/make_starter.sh does
            text += (ROOT / "course/assignment.md").read_text(encoding="utf-8").replace("@STAGE@", stage[1])
            text = text.replace("@NUMBER@", stage[2][-1]) + "\n| points | what must be true |\n|---|---|\n"
            for line in (ROOT / f"course/{stage[1]}.points").read_text(encoding="utf-8").splitlines():
                if re.match(r" *\d", line):
                    points, _, _, _, idea = line.split(None, 4)
                    text += f"| {points} | {idea} |\n"
        return text

    def address(self, path, page):
        """Where a link to a file or directory leads from a page. Files and directories get pages by being asked for."""
        if path in self.documents:
            path = self.page_of(path)
        elif (ROOT / path).is_dir():
            self.directories.add(path)
            path = f"{path}/index.html"
        else:
            self.source(path)
            path += ".html"
        return posixpath.relpath(path, posixpath.dirname(page) or ".")

    def link(self, path, page, html, fragment="", more=""):
        """A link to a path. That to a source file says so: book.js shows it beside the text."""
        address = self.address(path, page)
        if path in self.files:
            more = (more or ' class="file"') + f' data-file="{path}"'
        return f'<a href="{address}{fragment}"{more}>{html}</a>'

    @staticmethod
    def page_of(path):
        return "index.html" if path == "README.md" else path.removesuffix(".md") + ".html"

    def source(self, path):
        if path not in self.files:
            self.files[path] = Source(ROOT, path)
        return self.files[path]

    def contents(self, page):
        html = []
        for heading, group in self.groups:
            items = []
            for path in group:
                here = ' aria-current="page"' if path == page else ""
                sections = "".join(f'<li><a href="#{name}">{escape(text)}</a></li>' for level, name, text
                                   in (self.texts[path].headings if here and path in self.texts else []) if level == 2)
                items.append(f'<li><a href="{self.address(path, page)}"{here}>{escape(self.titles[path])}</a>'
                             + (f"<ul>{sections}</ul>" if sections else "") + "</li>")
            html.append(f"<p>{heading}</p><ul>{''.join(items)}</ul>")
        root = posixpath.relpath(".", posixpath.dirname(page) or ".")
        return "".join(html) + f'<p><a href="{root}/print.html">All in one page, to print</a></p>'

    def write(self, path, title, main, aside="", kind="", page=None):
        """Writes a page. path: of the file that it shows; page: its own, if that is not path with .html."""
        page = page or path + ".html"
        turn = pager = ""
        if path in self.paths:
            at = self.paths.index(path)
            for rel, other in (("prev", self.paths[at - 1] if at else None),
                               ("next", (self.paths + [None])[at + 1])):
                if other:
                    address = self.address(other, path)
                    turn += f'\n<link rel="{rel}" href="{address}">'
                    pager += f'<a class="{rel}" rel="{rel}" href="{address}">{escape(self.titles[other])}</a>'
            pager = f'<nav class="pager" aria-label="Pages before and after">{pager}</nav>'
        root = posixpath.relpath(".", posixpath.dirname(page) or ".") + "/"
        file = self.out / page
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PAGE.format(
            root=root, title=escape(title if title == "lockstep" else f"{title} – lockstep"), turn=turn, kind=kind,
            contents=self.contents(path), main=main, pager=pager, aside=aside), encoding="utf-8")
        self.written.append(page)

    def excerpts(self, text, tag):
        """The code that a document cites, each place once."""
        return "\n".join(self.source(path).article(name, tag, lambda html, fragment: self.link(path, text.path, html, fragment))
                         for path, name in dict.fromkeys(text.cited))

    def write_document(self, path):
        text = self.texts[path]
        excerpts = self.excerpts(text, "h3")
        aside = f'<aside id="code" aria-label="Code"><h2>Code of this page</h2>{excerpts}</aside>'
        html = text.html if path == "notes/README.md" else text.with_words(self.words)
        title = "lockstep" if path == "README.md" else text.title
        self.write(path, title, html, aside, "cites" if excerpts else "", self.page_of(path))

    def write_diff(self, path):
        stages = sorted(path.name for path in ROOT.glob("stage[0-9]_*"))
        old, new = (self.source(f"{stages[int(n) - 1]}/ddp.c") for n in (path[4], path[6]))
        texts = [text for name, text in self.texts.items() if re.match(r"notes/|stage", name)]
        texts.sort(key=lambda text: path[6] not in re.findall(r"stage(\d)", text.path))

        def explain(names):
            html = []
            for name in names:
                said = [(text, chunk) for text in texts for chunk in text.explanations(name)][:2]
                for text, chunk in said:
                    directory = posixpath.dirname(text.path)
                    chunk = re.sub(r'href="(?![a-z]+:|#)', lambda match: f'href="{directory}/', chunk)
                    page = self.page_of(text.path)
                    chunk = chunk.replace('href="#', f'href="{page}#')
                    html.append(f'<blockquote><p>{chunk}</p><cite><a href="{page}">{text.title}</a></cite></blockquote>')
            return "".join(html)
        heads = "".join(f'<h2><a href="{source.path}.html">{source.path}</a></h2>' for source in (old, new))
        self.write(path, self.titles[path], f'<h1>{self.titles[path]}</h1><div class="pair heads">{heads}</div>'
                   + diff(old, new, explain), kind="diff", page=self.page_of(path))

    def write_file(self, path):
        source = self.files[path]
        said = {name: [text for text in self.texts.values() if (path, name) in text.cited] for name in source.anchors}
        links = "".join(
            f'<li><a href="#note-{name}">{name}</a>: ' + ", ".join(
                f'<a target="_top" href="{self.address(text.path, path)}">{escape(text.title)}</a>' for text in texts)
            + "</li>" for name, texts in said.items() if texts)
        main = f"<h1>{path}</h1>" + (f'<details class="cited"><summary>Places that the notes explain</summary>'
                                     f"<ul>{links}</ul></details>" if links else "")
        self.write(path, path, main + source.block(0, len(source.plain), ids=True), kind="file")

    def write_directory(self, path):
        items = []
        for entry in sorted((ROOT / path).iterdir()):
            name = str(entry.relative_to(ROOT))
            shown = entry.name + ("/" if entry.is_dir() else "")
            if name in self.documents or name in self.files or name in self.directories:
                shown = f'<a href="{self.address(name, path + "/index")}">{shown}</a>'
            if not re.match(r"build|__pycache__|\.", entry.name):
                items.append(f"<li>{shown}</li>")
        self.write(f"{path}/index", f"{path}/", f"<h1>{path}/</h1><ul>{''.join(items)}</ul>")

    def write_print(self):
        """All documents in one page. Names of headings get the page's name before them; links to pages stay in this one."""
        chapters, last = [], {}
        for path in self.paths:
            if path not in self.texts:
                continue
            text = self.texts[path]
            mine = re.sub(r"\W", "-", path)
            html = re.sub(r'(<h\d id=")', rf"\g<1>{mine}--", text.html)
            fresh = [(file, name) for file, name in dict.fromkeys(text.cited) if name not in last]
            last.update({name: path for _, name in fresh})
            code = "".join(self.source(file).article(name, "h4", lambda html, fragment: self.link(file, path, html, fragment)) for file, name in fresh)
            html += f"<h3>Code of this chapter</h3>{code}" if code else ""
            html = re.sub(r'href="([^"#]*)(#[^"]*)?"', lambda match: self.printed_link(path, mine, *match.groups("")), html)
            html = re.sub(r"<(/?)h([1-5])\b", lambda match: f"<{match[1]}h{int(match[2]) + 1}", html)
            chapters.append(f'<section id="{mine}">{html}</section>')
        self.write("print", "The book in one page", "<h1>lockstep: the book</h1>" + "\n".join(chapters), kind="whole")

    def printed_link(self, path, mine, file, fragment):
        if re.match(r"[a-z]+:", file):
            return f'href="{file}{fragment}"'
        if fragment.startswith("#note-"):
            return f'href="#code-{fragment[6:]}"'
        if not file:
            return f'href="#{mine}--{fragment[1:]}"'
        page = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        other = next((name for name in self.texts if self.page_of(name) == page), None)
        if not other:
            return f'href="{page}{fragment}"'
        return 'href="#' + re.sub(r"\W", "-", other) + (f'--{fragment[1:]}"' if fragment else '"')

    def write_scripts(self):
        """book.css with the figures' colours, book.js, the glossary, and what is searched: [page, title, section, text]."""
        index = []
        for path, text in self.texts.items():
            parts = re.split(r'<h[123] id="([^"]*)">(.*?)</h[123]>', text.html)[1:]
            for name, heading, html in zip(*[iter(parts)] * 3):
                index.append([f"{self.page_of(path)}#{name}", text.title, plain(heading), plain(html)])
        for path, name in sorted({cited for text in self.texts.values() for cited in text.cited}):
            start, end = self.source(path).excerpt(name)
            index.append([f"{path}.html#note-{name}", path, name, " ".join(" ".join(self.files[path].plain[start:end]).split())])
        colours = [f"figure .{name}{{fill:light-dark({light},{dark})}}"
                   f"figure .{name}-line{{fill:none;stroke:light-dark({light},{dark})}}" for name, (light, dark) in THEME.items()]
        colours += [f"figure .{name}{{fill:{colour}}}" for name, colour in COLOURS.items()]
        colours.append("figure .on{{fill:#111111}}figure .edge{{stroke:light-dark({},{});stroke-width:.5}}".format(*THEME["paper"]))
        css = (Path(__file__).parent / "book.css").read_text(encoding="utf-8")
        (self.out / "book.css").write_text(css + "\n".join(colours) + "\n", encoding="utf-8")
        shutil.copy(Path(__file__).parent / "book.js", self.out)
        (self.out / "words.js").write_text(f"const WORDS = {json.dumps(self.words)};\n", encoding="utf-8")
        (self.out / "search.js").write_text(f"const INDEX = {json.dumps(index)};\n", encoding="utf-8")

    def make(self):
        for path in self.paths:
            self.write_document(path) if path in self.texts else self.write_diff(path)
        for path in sorted(self.directories):
            self.write_directory(path)
        for path in sorted(self.files):
            self.write_file(path)
        self.write_print()
        self.write_scripts()
        return f"{len(self.written)} pages"


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    print(f"{out}/index.html: {Book(out).make()}")


if __name__ == "__main__":
    main()
