#!/usr/bin/env python3
"""Checks the book that scripts/book.sh made in SITE: what its pages say, and what a browser without a screen shows.

    test_book.py ROOT SITE BROWSER

Expectations come from the documents and the source files themselves. The browser shows each page in a frame, with one
more script in it, book_robot.js, which follows the links to code and sends what then stands beside the text.
"""
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT, SITE, BROWSER = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3]
sys.path.insert(0, str(ROOT / "tools"))
from check_examples import examples

WIDTHS = (1600, 1024, 390)
ONE_COLUMN = (390,)  # pages that are one column at every width: whole files, and the page to print. The least is enough
# Pages of files differ only in what stands in <main>: so many are shown in one, because loading pages takes longest.
FILES_AT_ONCE = 25
MAIN = re.compile(r"<main.*</main>", re.DOTALL)
CONTRAST = 4.5
# Without a screen, and without what a browser does for its user meanwhile, and for pages that stay open for long.
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--in-process-gpu", "--js-flags=--jitless", "--no-first-run",
         "--disable-extensions", "--disable-sync", "--disable-component-update", "--disable-background-networking",
         "--disable-features=SpareRendererForSitePerProcess,Translate,OptimizationHints,MediaRouter",
         "--window-size=1700,1000", "--virtual-time-budget=600000", "--dump-dom"]
HERE = Path(__file__).resolve().parent
FRAME = """<body><iframe style="border: 0; height: 900px; opacity: 0"></iframe><script>
const frame = document.querySelector("iframe"), seen = [];
const answer = () => new Promise(resolve => addEventListener("message", event => resolve(event.data), { once: true }));
async function walk(pages) {
    for (const [page, widths] of pages) {
        frame.style.width = widths[0] + "px";
        frame.src = page;
        const shown = await answer();
        shown.widths = [];
        for (const width of widths) {
            frame.style.width = width + "px";
            await new Promise(resolve => setTimeout(resolve, 1));
            frame.contentWindow.postMessage("measure", "*");
            shown.widths.push(await answer());
        }
        seen.push(shown);
    }
    const found = document.createElement("pre");
    found.id = "robot";
    found.textContent = JSON.stringify(seen);
    document.body.append(found);
}
walk(PAGES);
</script>"""
# Most of a page are spans that give code its colours. What is checked without a browser does not depend on them.
COLOURS = re.compile(r'<span class="\w*">|</span>')
failures = 0


def check(holds, message):
    global failures
    if not holds:
        failures += 1
        print("FAIL: " + message)


class Page(HTMLParser):
    """The parts of a page that can be checked without a browser."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.headings, self.title, self.inside = [], [], "", None
        self.feed(COLOURS.sub("", text))
        self.kind = next(attributes["class"] for tag, attributes in self.tags if tag == "body")
        self.widths = ONE_COLUMN if self.kind in ("file", "whole") else WIDTHS
        self.ids = Counter(attributes["id"] for _, attributes in self.tags if "id" in attributes)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag
        if re.fullmatch(r"h\d", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "title" and not self.headings:
            self.title += data


def check_pages(pages):
    """Links, titles, languages, headings, names, pictures: of all pages, and that all documents have one."""
    documents = [*ROOT.glob("notes/*.md"), *ROOT.glob("stage*/README.md"), *ROOT.glob("course/stage*.assignment.md"),
                 ROOT / "CONTRIBUTING.md"]
    expected = {path.relative_to(ROOT).with_suffix(".html") for path in documents}
    expected |= {Path(name) for name in ("index.html", "print.html", *(f"diff{n}-{n + 1}.html" for n in range(1, 5)))}
    for missing in expected - set(pages):
        check(False, f"there is no page {missing}")
    for path, page in pages.items():
        kinds = [tag for tag, _ in page.tags]
        check(page.title.strip(), f"{path}: no title")
        check(dict(page.tags[0][1]).get("lang") == "en", f"{path}: no language")
        check({"main", "header", "nav"} <= set(kinds) and kinds.count("main") == 1, f"{path}: a landmark is missing")
        levels = page.headings
        check(levels[:1] == [1] and levels.count(1) == 1, f"{path}: the first heading, and it alone, is h1")
        check(all(b <= a + 1 for a, b in zip(levels, levels[1:])), f"{path}: headings jump: {levels}")
        twice = [name for name, count in page.ids.items() if count > 1]
        check(not twice, f"{path}: ids that stand twice: {twice}")
        for tag, attributes in page.tags:
            check(tag != "img" or attributes.get("alt"), f"{path}: a picture without a text: {attributes}")
            for name in ("href", "src"):
                check_link(pages, path, tag, attributes.get(name))


@cache
def place_of(directory, path):
    return (SITE / directory / unquote(path)).resolve()


def check_link(pages, path, tag, target):
    if not target or target.startswith("data:") or (tag == "a" and re.match("https?://", target)):
        return
    parts = urlsplit(target)
    file = place_of(path.parent, parts.path) if parts.path else SITE / path
    inside = not parts.scheme and not target.startswith("/") and file.is_relative_to(SITE)
    known = inside and file.relative_to(SITE) in pages
    check(known or (inside and file.is_file()), f"{path}: {tag} leads to {target}, which is not there")
    if parts.fragment and known:
        there = pages[file.relative_to(SITE)].ids
        check(unquote(parts.fragment) in there, f"{path}: {target} leads to no place in that page")


def check_excerpt(page, seen):
    """What the browser showed for an anchor, against the file: the comment with it, and all that it is about."""
    name, file, where = seen["note"], seen.get("file"), f"{page}: note {seen['note']}"
    if "text" not in seen:
        check(False, f"{where}: {seen['excerpts']} excerpts are shown")
        return
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines() + ["", "end"]
    start, shown = seen["first"] - 1, seen["text"].removesuffix("\n").split("\n")
    end = start + len(shown)
    check(shown == lines[start:end], f"{where}: the excerpt is not what stands in {file} from line {start + 1} on")
    anchor = re.compile(rf"(/\*| \*|//|#) note: {name}( \*/)?")
    check(any(map(anchor.fullmatch, shown)), f"{where}: it is not in the excerpt")
    check(re.match(r"\s*(/\*|//|#)", shown[0]), f"{where}: begins within a comment: {shown[0]}")
    over = [i for i in range(start, end + 1) if not lines[i] and re.match(r"\S", lines[i + 1])]
    check(over[-1:] == [end], f"{where}: ends with line {end}, where {file} goes on with the same")
    check(over == [end] or (start == 0 and len(shown) <= 60), f"{where}: shows what it is not about: ends {over}")
    check(seen["entered"], f"{where}: Enter does not move the focus into the excerpt")
    whole, more = seen["frames"]
    check(seen["returns"] is not False, f"{where}: no button leads back from the whole file, or it is there too early")
    check(whole and whole.endswith(f"#note-{name}"), f"{where}: the whole file opens at {whole}")
    check(more and more.endswith(f"#L{min(end + 2, len(lines) - 2)}"), f"{where}: what follows {end} opens at {more}")


def check_ways_back(pages):
    """A whole file leads to all pages that lead to it."""
    users = {}
    for path, page in pages.items():
        for file in {attributes["data-file"] for _, attributes in page.tags if "data-file" in attributes}:
            users.setdefault(Path(file.removesuffix(".md") + ".html"), set()).add(path)
    for file, expected in users.items():
        links = [attributes["href"] for _, attributes in pages[file].tags if attributes.get("target") == "_top"]
        found = {place_of(file.parent, link).relative_to(SITE) for link in links}
        missing = sorted(map(str, expected - found - {Path("print.html")}))
        check(not missing, f"{file}: there is no way back to {missing}")
    check(len(users) > 100, f"only {len(users)} files are linked")


def show_all(pages):
    """What book_robot.js saw: {page: what it sent}."""
    files = [path for path, page in pages.items() if page.kind == "file"]
    groups = {files[i]: files[i:i + FILES_AT_ONCE] for i in range(0, len(files), FILES_AT_ONCE)}
    shown = {path: groups.get(path, [path]) for path in pages if path in groups or path not in files}
    order = [[f"site/{path}" + ("#search" if str(path) == "index.html" else ""), pages[path].widths] for path in shown]
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        shutil.copytree(SITE, work / "site")
        shutil.copy(HERE / "book_robot.js", work / "robot.js")
        for path, group in shown.items():
            first, *others = ((SITE / one).read_text(encoding="utf-8") for one in group)
            mains = "".join(MAIN.search(text)[0] for text in (first, *others))
            script = f'<script src="{"../" * len(path.parts)}robot.js"></script>'
            text = MAIN.sub(lambda _, mains=mains: mains, first).replace("</body>", f"{script}</body>")
            (work / "site" / path).write_text(text, encoding="utf-8")
        (work / "frame.html").write_text(FRAME.replace("PAGES", json.dumps(order)), encoding="utf-8")
        command = [BROWSER, *FLAGS, f"--user-data-dir={work}/profile", f"file://{work}/frame.html"]
        dumped = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=500, check=True)
    found = re.search(r'<pre id="robot">(.*?)</pre>', dumped.stdout.decode(), re.DOTALL)
    if not found:
        sys.exit("FAIL: book_robot.js sent nothing: did a script stop?")
    site = f"{work}/site/"
    return {Path(seen["pathname"].partition(site)[2]): seen for seen in json.loads(html.unescape(found[1]))}, site


def check_shown(pages):
    seen_of, site = show_all(pages)
    table = (ROOT / "notes/README.md").read_text(encoding="utf-8").partition("\n## Words\n")[2].partition("\n## ")[0]
    notes = 0
    for path, seen in seen_of.items():
        check(not seen["errors"], f"{path}: a script stopped: {seen['errors']}")
        check(not seen["images"], f"{path}: pictures do not load: {seen['images']}")
        check(all(seen["figures"]), f"{path}: a figure is not shown")
        measured = tuple(size["width"] for size in seen["widths"])
        check(measured == pages[path].widths, f"{path}: measured at {measured} pixels only")
        for size in seen["widths"]:
            check(not size["covered"], f"{path}: at {size['width']} pixels the code covers the link {size['covered']}")
            check(not size["cut"], f"{path}: at {size['width']} pixels these lines are cut: {size['cut']}")
            check(size["needs"] <= size["width"], f"{path}: needs {size['needs']} pixels of {size['width']}")
        check(not seen.get("missed"), f"{path}: a jump does not show: {seen.get('missed')}")
        for note in seen.get("notes", []):
            check_excerpt(path, note)
        for link, opened in seen.get("files", []):
            check(opened and opened.partition("?")[0] == link.partition("#")[0], f"{path}: {link} opens {opened}")
        for text, line in seen.get("words", []):
            word = line.partition(": ")[0]
            rows = [row for row in table.splitlines() if re.match(rf"\| ([^|]*, )?{re.escape(word)}[ ,]", row)]
            row = rows[0] if rows else "no row"
            check(text.lower().startswith(word.lower()) and line.partition(": ")[2] in row.replace("`", ""),
                  f"{path}: the word {text} shows: {line}")
        check(all(seen.get("buttons", [])), f"{path}: a command has no button that copies it")
        for block in seen.get("unprompted", []):
            shell = subprocess.run(["bash", "-n", "-c", block], capture_output=True, check=False)
            check(shell.returncode == 0, f"{path}: this can be copied, but is no command: {block}")
        document = ROOT / ("README.md" if str(path) == "index.html" else path.with_suffix(".md"))
        if document.is_file() and pages[path].kind == "":
            text = document.read_text(encoding="utf-8")
            cited = re.findall(r"\[note:\s*([a-z0-9-]+)\]\(", re.sub(r"`[^`]*`", "", text))
            followed = [note["note"] for note in seen["notes"]]
            check(followed == cited, f"{path}: not all anchors of {document.name} are links")
            written = [command for _, command, _ in examples(document)]
            check(seen["commands"] == written, f"{path}: the commands are not those of {document.name}")
            needs_none = path in (Path("notes/README.html"), Path("notes/reading.html")) or len(text) < 2000
            check(seen["words"] or needs_none, f"{path}: no word is explained")
            notes += len(cited)
    before, after, again = seen_of[Path("index.html")]["theme"]
    check(before == again != after, f"the switch between light and dark changes {before} into {after}, and {again}")
    found, code = (seen_of[Path("index.html")][kind] for kind in ("found", "foundCode"))
    check(found["left"], "Escape does not leave the search")
    found, code = found["links"], code["links"]
    check(len(found) > 3 and "ring" in found[0][1].lower(), f"a search for 'ring all-reduce' finds {found}")
    check(any("stage3_overlap/ddp.c.html#" in link for link, _ in code), f"a search for gradient_ready finds {code}")
    for link, _ in found + code:
        check_link(pages, Path("index.html"), "a", link.partition(site)[2])
    check(notes > 100, f"only {notes} links to anchors were followed")
    return notes


def luminance(colour):
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    parts = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(colour, ground):
    light, dark = sorted((luminance(colour), luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def check_contrast():
    """Every colour of code on every ground of code, and text on its grounds, in light and in dark."""
    css = (SITE / "book.css").read_text(encoding="utf-8")
    pair = r"light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)"
    names = {name: pair for name, *pair in re.findall(rf"--(\w+): {pair}", css)}
    code = {selector: pair for selector, *pair in re.findall(rf"(\.code [^{{}}]*) {{ color: {pair}", css)}
    check(len(code) == len(re.findall(r"\.code [^{}]*{ color:", css)) > 5, "a colour of code is not read")
    code.update({name: names[name] for name in ("text", "soft")})
    combinations = [(*item, ground) for item in code.items() for ground in ("panel", "here", "old", "new")]
    combinations += [(name, names[name], ground) for name in ("text", "soft", "accent") for ground in ("page", "panel")]
    for name, colours, ground in combinations:
        for mode, colour, below in zip(("light", "dark"), colours, names[ground]):
            check(contrast(colour, below) >= CONTRAST,
                  f"{name} on {ground}, {mode}: contrast {contrast(colour, below):.2f}, less than {CONTRAST}")
    return len(combinations)


def main():
    pages = {path.relative_to(SITE): Page(path.read_text(encoding="utf-8")) for path in sorted(SITE.rglob("*.html"))}
    check_pages(pages)
    check_ways_back(pages)
    combinations = check_contrast()
    notes = check_shown(pages)
    if failures:
        sys.exit(f"{failures} failure(s)")
    print(f"{len(pages)} pages, {notes} links to anchors, {combinations} pairs of colours: all as they should be")


if __name__ == "__main__":
    main()
