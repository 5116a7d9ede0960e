"""Makes the book: all documents as web pages in a directory, with the code that they cite. scripts/book.sh starts it.

A page lies there where its file lies in the project: notes/tape.md becomes notes/tape.html, stage1_naive/ddp.c becomes
stage1_naive/ddp.c.html. So a link between two files is a link between their pages.
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

from figure import COLOURS, THEME  # in scripts/, which text.py adds to the path

BAR = '<p class="bar"><a id="opened"></a><button id="close" type="button">close</button></p>'
HERE = Path(__file__).resolve().parent
STAGES = sorted(path.name for path in ROOT.glob("stage[0-9]_*"))


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def reading_order():
    """{heading: documents} of the contents: the list in notes/README.md, and what else belongs to a stage; the rest."""
    chapters = []
    for name, n in re.findall(r"^\d+\. \[((?:stage(\d)|\w+)\.md)\]", read("notes/README.md"), re.MULTILINE):
        chapters += [f"notes/{name}"] + ([f"{STAGES[int(n) - 1]}/README.md"] if n else [])
        chapters += [f"diff{int(n) - 1}-{n}.md"] if n > "1" else []
    front = ["README.md", "notes/README.md"]
    others = [f"notes/{path.name}" for path in sorted(ROOT.glob("notes/*.md"))]
    others += ["bench/README.md", "tests/README.md", "tests/mutants/README.md", "CONTRIBUTING.md"]
    return {"Begin": front, "Read": chapters, "Look up": [path for path in others if path not in chapters + front],
            "Course": ["course/README.md", "course/measured.md",
                       *(f"course/{name}.assignment.md" for name in ["collectives", *STAGES])]}


def markdown_of(path):
    """A document. An assignment gets the part that all share, and its points, as course/make_starter.sh writes them."""
    text, stage = read(path), re.fullmatch(r"course/(stage(\d)_\w+)\.assignment\.md", path)
    if stage:
        text += read("course/assignment.md").replace("@STAGE@", stage[1]).replace("@NUMBER@", stage[2])
        points = re.findall(r"^ *(\d+) \S+ \S+ \S+ (.*)", read(f"course/{stage[1]}.points"), re.MULTILINE)
        text += "\n| points | what must be true |\n|---|---|\n" + "".join(f"| {n} | {idea} |\n" for n, idea in points)
    return text


def page_of(path):
    if path == "README.md" or path.endswith("/"):
        return path.removesuffix("README.md") + "index.html"
    return path.removesuffix(".md") + ".html"


def from_the_top(text, html):
    """HTML of a document, for a page in the book's top directory: its links lead from there."""
    def address(match):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(text.path), match[1]))
        return f'href="{path if match[1] else page_of(text.path)}'
    return re.sub(r'href="(?![a-z]+:)([^"#]*)', address, html)


class Book:
    def __init__(self, out):
        self.out, self.files, self.directories, self.order = out, {}, set(), reading_order()
        self.paths = sum(self.order.values(), [])
        self.texts = {path: Text(path, markdown_of(path), self) for path in self.paths if not path.startswith("diff")}
        self.titles = {path: f"From stage {path[4]} to stage {path[6]}" if path.startswith("diff") else
                       f"Stage {path[5]}: read and run" if path.startswith("stage") else self.texts[path].title
                       for path in self.paths}

    def source(self, path):
        if path not in self.files:
            self.files[path] = Source(path, read(path))
        return self.files[path]

    def link(self, path, page, html=None, fragment="", more=""):
        """A link to a document, or to what gets a page by being asked for: a source file, or a directory."""
        if (ROOT / path).is_dir():
            path += "/"
            self.directories.add(path)
        elif path not in self.paths:
            more += f' data-file="{self.source(path).path}"'
        address = posixpath.relpath(page_of(path), posixpath.dirname(page) or ".")
        return f'<a href="{address}{fragment}"{more}>{html or escape(self.titles[path])}</a>'

    def write(self, path, title, main, aside="", kind=""):
        contents = ""
        for heading, group in self.order.items():
            contents += f"<p>{heading}</p>"
            for other in group:
                contents += self.link(other, path, more=' aria-current="page"' if other == path else "")
                if other == path and path in self.texts:
                    contents += "".join(f'<a class="inner" href="#{name}">{escape(text)}</a>'
                                        for level, name, text in self.texts[path].headings if level == 2)
        pager = ""
        if path in self.paths:
            at = self.paths.index(path)
            for turn, others in (("prev", self.paths[max(at - 1, 0):at]), ("next", self.paths[at + 1:at + 2])):
                pager += "".join(self.link(other, path, more=f' rel="{turn}"') for other in others)
        page = self.out / page_of(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text((HERE / "page.html").read_text(encoding="utf-8").format(
            root="../" * page_of(path).count("/"), title=escape(f"{title} – lockstep"), kind=kind, contents=contents,
            main=main, pager=pager, aside=aside), encoding="utf-8")

    def write_documents(self):
        """The documents' pages, and one of all to print, in which each place of the code stands once."""
        words, printed, whole = words_of(read("notes/README.md")), set(), "<h1>lockstep: the book</h1>"
        for path, text in self.texts.items():
            def excerpts(cited, page):
                return "".join(self.source(file).article(name, lambda *place: self.link(file, page, *place))
                               for file, name in cited)
            code = excerpts(text.cited, path)
            aside = f'<aside id="code" aria-label="Code">{BAR}<h2>Code of this page</h2>{code}</aside>'
            main = text.html if path == "notes/README.md" else text.with_words(words)
            self.write(path, text.title, main, aside)
            part = re.sub(r'(<h\d) id="[^"]*"', r"\1", from_the_top(text, text.html))
            part += excerpts([place for place in text.cited if place not in printed], "print")
            part = re.sub(r"<(/?)h(\d)", lambda match: f"<{match[1]}h{int(match[2]) + 1}", part)
            whole += f"<section>{part}</section>"
            printed.update(text.cited)
        whole = re.sub(r'href="[^"]*#note-([\w-]+)" class="note"', r'href="#code-\1" class="note"', whole)
        self.write("print", "The book in one page", whole, kind="whole")
        return words

    def write_diff(self, path):
        """Two stages side by side. Beside a change stands what the notes say of its anchors."""
        old, new = (self.source(f"{STAGES[int(n) - 1]}/ddp.c") for n in (path[4], path[6]))
        texts = sorted((text for name, text in self.texts.items() if re.match("notes/|stage", name)),
                       key=lambda text: f"stage{path[6]}" not in text.path)

        def explain(names):
            said = [(text, part) for name in names for text, part in
                    [(text, part) for text in texts for part in text.explanations(name)][:2]]
            return "".join(f"<blockquote><p>{from_the_top(text, part)}</p><cite>{self.link(text.path, path)}</cite>"
                           "</blockquote>" for text, part in said)
        heads = "".join(f"<h2>{self.link(source.path, path, source.path)}</h2>" for source in (old, new))
        main = f'<h1>{self.titles[path]}</h1><div class="pair heads">{heads}</div>{diff(old, new, explain)}'
        self.write(path, self.titles[path], main, kind="diff")

    def write_file(self, path):
        source, items = self.files[path], ""
        for name in source.anchors:
            links = [self.link(text.path, path, more=' target="_top"') for text in self.texts.values()
                     if (path, name) in text.cited]
            items += f'<li><a href="#note-{name}">{name}</a>: {", ".join(links)}</li>'
        said = f"<details><summary>What the notes explain here</summary><ul>{items}</ul></details>" if items else ""
        self.write(path, path, f"<h1>{path}</h1>{said}{source.block(0, len(source.plain), ids=True)}", kind="file")

    def write_directory(self, path):
        """A list of what is there, in which what has a page is a link."""
        items = ""
        for name in sorted(entry.name for entry in (ROOT / path).iterdir()):
            known = path + name in self.paths or path + name in self.files
            items += f"<li>{self.link(path + name, path, name) if known else name}</li>"
        self.write(path, path, f"<h1>{path}</h1><ul>{items}</ul>")

    def write_scripts(self, words):
        """book.css with the figures' colours; book.js and its data: the glossary, [address, title, heading, text]."""
        index = []
        for path, text in self.texts.items():
            parts = re.split(r'<h[123] id="([^"]*)">(.*?)</h[123]>', text.html)[1:]
            index += [[f"{page_of(path)}#{name}", text.title, plain(heading), plain(html)]
                      for name, heading, html in zip(parts[::3], parts[1::3], parts[2::3])]
        both = {name: f"light-dark({light},{dark})" for name, (light, dark) in THEME.items()}
        rules = [f"figure .{name}{{fill:{colour}}}\n" for name, colour in {**both, **COLOURS, "on": "#111111"}.items()]
        rules += [f"figure .{name}-line{{fill:none;stroke:{colour}}}\n" for name, colour in both.items()]
        rules += f"figure .edge{{stroke:{both['paper']};stroke-width:.5}}\n"
        for name, data in (("book.css", (HERE / "book.css").read_text(encoding="utf-8") + "".join(rules)),
                           ("words.js", f"const WORDS = {json.dumps(words)};\n"),
                           ("search.js", f"window.INDEX = {json.dumps(index)};\n")):
            (self.out / name).write_text(data, encoding="utf-8")
        shutil.copy(HERE / "book.js", self.out)

    def make(self):
        self.write_scripts(self.write_documents())
        for path in self.paths:
            if path not in self.texts:
                self.write_diff(path)
        for paths, write in ((self.directories, self.write_directory), (self.files, self.write_file)):
            for path in sorted(paths):
                write(path)
        print(f"{self.out}/index.html: {len(self.paths)} pages, {len(self.files)} files of the source")


if __name__ == "__main__":
    Book(Path(sys.argv[1])).make()
