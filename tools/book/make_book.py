"""Makes the book: all documents as web pages in a directory, with the code that they cite. scripts/book.sh starts it.

A page lies there where its file lies in the project: notes/tape.md becomes notes/tape.html, stage1_naive/ddp.c becomes
stage1_naive/ddp.c.html. So a link between two files is a link between their pages.
"""
import json
import posixpath
import re
import shutil
import sys
from collections import defaultdict
from functools import cache
from html import escape
from pathlib import Path

from source import Source, diff
from text import BLOCKS, ROOT, Text, plain, words_of

BAR = '<p class="bar"><button id="back" hidden>back to the excerpt</button><a id="opened"></a>' \
      '<button id="close">close</button></p>'
HERE = Path(__file__).resolve().parent
STAGES = sorted(path.name for path in ROOT.glob("stage[0-9]_*"))
OTHERS = ("notes/demo", "tools/bench/README", "tests/README", "tests/mutants/README", "CONTRIBUTING")


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def reading_order():
    """{heading: documents} of the contents: the list in notes/README.md with what else belongs to a stage; the rest."""
    chapters = []
    for name, n in re.findall(r"^\d+\. \[((?:stage(\d)|\w+)\.md)\]", read("notes/README.md"), re.MULTILINE):
        chapters += [f"notes/{name}"] + ([f"{STAGES[int(n) - 1]}/README.md"] if n else [])
        chapters += [f"diff{int(n) - 1}-{n}.md"] if n > "1" else []
    return {"Begin": ["README.md", "notes/README.md", "notes/running.md"], "Read": chapters,
            "Look up": [f"{name}.md" for name in OTHERS],
            "Course": ["course/README.md", *map("course/{}.assignment.md".format, STAGES), "course/measured.md",
                       "course/collectives.assignment.md"]}


def markdown_of(path):
    """A document. An assignment gets the part that all share, and its points, as course/make_starter.sh writes them."""
    text, stage = read(path), re.fullmatch(r"course/(stage(\d)_\w+)\.assignment\.md", path)
    if stage:
        text += read("course/assignment.md").replace("@STAGE@", stage[1]).replace("@NUMBER@", stage[2])
        points = re.findall(r"^ *(\d+) \S+ \S+ \S+ (.*)", read(f"course/{stage[1]}.points"), re.MULTILINE)
        text += "\n| points | what must be true |\n|---|---|\n" + "".join(f"| {n} | {idea} |\n" for n, idea in points)
    return text


def page_of(path):
    return "index.html" if path == "README.md" else path.removesuffix(".md") + ".html"


def from_the_top(text, html):
    """HTML of a document, for a page in the book's top directory: its links and pictures lead from there."""
    def address(match):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(text.path), match[2]))
        return f'{match[1]}="{path if match[2] else page_of(text.path)}'
    return re.sub(r'\b(href|src)="(?![a-z]+:)([^"#]*)', address, html)


@cache
def source(path):
    return Source(path, read(path))


class Book:
    def __init__(self, out):
        self.out, self.order, self.pages_with = out, reading_order(), defaultdict(dict)
        self.paths, self.words = sum(self.order.values(), []), words_of(read("notes/README.md"))
        self.texts = {path: Text(path, markdown_of(path), self) for path in self.paths if not path.startswith("diff")}
        self.titles = {path: f"From stage {path[4]} to stage {path[6]}" for path in self.paths if path[:4] == "diff"}
        self.titles.update((path, text.title) for path, text in self.texts.items())

    def link(self, path, page, html=None, fragment="", more=""):
        """A link to a document, or to a source file, which gets a page by being linked. A directory has none."""
        if (ROOT / path).is_dir():
            return html
        if path not in self.paths:
            more += f' data-file="{path}"'
        address = posixpath.relpath(page_of(path), posixpath.dirname(page) or ".")
        return f'<a href="{address}{fragment}"{more}>{html or escape(self.titles[path])}</a>'

    def write(self, path, title, main, aside="", kind=""):
        contents = ""
        for heading, group in self.order.items():
            contents += f"<p>{heading}</p>"
            for other in group:
                more = ' aria-current="page"' if other == path else ""  # below a chapter: what else is its stage's
                more += ' class="inner"' if heading == "Read" and other[:6] != "notes/" else ""
                contents += self.link(other, path, more=more)
                if other == path and path in self.texts:
                    contents += "".join('<a class="inner" href="#{id}">{name}</a>'.format_map(part)
                                        for part in self.texts[path].parts)
        pager = ""
        for before, after in zip(self.paths, self.paths[1:]):
            pager += self.link(before, path, more=' rel="prev"') if after == path else ""
            pager += self.link(after, path, more=' rel="next"') if before == path else ""
        for file in re.findall('data-file="(.*?)"', main + aside):
            self.pages_with[file][path] = None
        page = self.out / page_of(path)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text((HERE / "page.html").read_text(encoding="utf-8").format(
            root="../" * page_of(path).count("/"), title=escape(f"{title} – lockstep"), kind=kind, contents=contents,
            main=main, pager=pager, aside=aside), encoding="utf-8")

    def write_documents(self):
        """The documents' pages, and one of all to print, in which each place of the code stands once."""
        printed, whole = set(), "<h1>lockstep: the book</h1>"
        for path, text in self.texts.items():
            def excerpts(cited, page):
                return "".join(source(file).article(name, lambda *place: self.link(file, page, *place))
                               for file, name in cited)
            code = excerpts(text.cited, path)
            aside = f'<aside id="code" aria-label="Code">{BAR}<h2>Code of this page</h2>{code}</aside>'
            self.write(path, text.title, text.html if path == "notes/README.md" else text.with_words(self.words), aside)
            part = re.sub(r'(<h\d) id="[^"]*"', r"\1", from_the_top(text, text.html))
            part += excerpts([place for place in text.cited if place not in printed], "print")
            part = re.sub(r"<(/?)h(\d)", lambda match: f"<{match[1]}h{int(match[2]) + 1}", part)
            whole += f"<section>{part}</section>"
            printed.update(text.cited)
        whole = re.sub(r'href="[^"]*#note-([\w-]+)" class="note"', r'href="#code-\1" class="note"', whole)
        self.write("print", "The book in one page", whole, kind="whole")

    def write_diff(self, path):
        """Two stages side by side. Beside a change stands what the notes say of its anchors."""
        old, new = (source(f"{STAGES[int(n) - 1]}/ddp.c") for n in (path[4], path[6]))
        texts, seen = [text for text in self.texts.values() if "README" not in text.path], set()
        texts.sort(key=lambda text: f"stage{path[6]}" not in text.path)
        lesson = re.search(r"New over stage .*?\.(?= )", " ".join(line.strip(" *") for line in new.plain[:12]))[0]

        def explain(name):
            said = [f"<p>{from_the_top(text, part)}</p><cite>{self.link(text.path, path)}</cite>"
                    for text in texts for part in BLOCKS.split(text.html) if f'data-note="{name}"' in part]
            once = [html for html in said[:2] if html not in seen]
            seen.update(once)
            return "".join(f"<blockquote>{html}</blockquote>" for html in once)
        heads = "".join(f"<h2>{self.link(file.path, path, file.path)}</h2>" for file in (old, new))
        main = f'<h1>{self.titles[path]}</h1><p>{escape(lesson)} {self.link(f"notes/stage{path[6]}.md", path)}</p>'
        main += f'<div class="pair heads">{heads}</div>{diff(old, new, explain)}'
        self.write(path, self.titles[path], main, kind="diff")

    def write_file(self, path):
        pages = [self.link(page, path, more=' target="_top"') for page in self.pages_with[path] if page in self.paths]
        main = f"<h1>{path}</h1><p>Linked from: {', '.join(pages)}</p>{source(path).block(ids=True)}"
        self.write(path, path, main, kind="file")

    def write_search(self):
        """The data of the search: [address, title, heading, text] of each section, and of each anchor in the code."""
        index = []
        for path, text in self.texts.items():
            parts = re.split(r'<h[123] id="([^"]*)">(.*?)</h[123]>', text.html)[1:]
            index += [[f"{page_of(path)}#{name}", text.title, plain(heading), plain(html)]
                      for name, heading, html in zip(parts[::3], parts[1::3], parts[2::3])]
        for file in map(source, self.pages_with):
            for name in file.anchors:
                lines = file.plain[slice(*file.excerpt(name))]
                code = next((line for line in lines if not line.lstrip().startswith(("/", "*", "#"))), "")
                index.append([f"{page_of(file.path)}#note-{name}", file.path, f"{name}: {code}", " ".join(lines)])
        (self.out / "search.js").write_text(f"window.INDEX = {json.dumps(index)};\n", encoding="utf-8")

    def make(self):
        self.write_documents()
        for path in self.paths:
            if path not in self.texts:
                self.write_diff(path)
        for path in self.pages_with:
            self.write_file(path)
        self.write_search()
        for file in (HERE / "book.css", HERE / "book.js", *ROOT.glob("notes/*.svg")):
            shutil.copy(file, self.out / file.relative_to(HERE if file.parent == HERE else ROOT))
        print(f"{self.out}/index.html: {len(self.paths)} pages, {len(self.pages_with)} files of the source")


if __name__ == "__main__":
    Book(Path(sys.argv[1])).make()
