"""text.py: a Markdown document as HTML, as GitHub would show it: its headings' names, links, commands, figures, words."""
import posixpath
import re
import sys
from html import escape, unescape
from pathlib import Path

import markdown

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from check_examples import is_whole  # noqa: E402

COMMAND = re.compile(r"(flags=|for |docker |mpiexec |cmake |ctest |nsys |srun |\./check|# the proof|"
                     r"(build|bench|course|scripts|tests)/\S)")  # the first words of a block without "$ "
KEPT = re.compile(r"(<(a|code|pre|h\d|figure|table)\b.*?</\2>|<[^>]+>)", re.DOTALL)  # no words are looked for there


def words_of(text):
    """{word: its line} of the glossary, the table Words of notes/README.md."""
    table = text.split("\n## Words\n")[1].split("\n## ")[0]
    rows = [re.split(r"\s*(?<!\\)\|\s*", line)[1:3] for line in table.splitlines() if line.startswith("| ")][1:]
    return {word: meaning.replace("`", "") for words, meaning in rows for word in words.split(", ")}


def for_python_markdown(text):
    """GitHub takes what is indented as an item's text for a part of it; python-markdown wants four spaces."""
    lines, offset = [], 0
    for line in text.split("\n"):
        item = re.match(r"([-*]|\d+\.) +", line)
        if item:
            offset = item.end()
        elif line and not line.startswith(" " * offset) and lines and not lines[-1]:
            offset = 0
        lines.append(" " * (4 - offset) + line if offset and not item and line.startswith(" " * offset) else line)
    return re.sub(r"(?<![(<\w])https?://[^\s)]*[^\s).,]", r"<\g<0>>", "\n".join(lines))


def plain(html):
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def code_block(match):
    """A block of code. Each command gets a frame of its own, from which book.js lets it be copied."""
    lines = unescape(match[1]).rstrip("\n").split("\n")
    if not any(line.startswith("$ ") for line in lines):
        block = f"<pre><code>{escape(chr(10).join(lines), False)}</code></pre>"
        return f'<div class="command">{block}</div>' if COMMAND.match(lines[0]) else block
    blocks, i = [], 0
    while i < len(lines):
        start = i
        if lines[i].startswith("$ "):
            command = lines[i][2:]
            while not is_whole(command) and i + 1 < len(lines):
                i += 1
                command += "\n" + lines[i]
            blocks.append(f'<div class="command prompt"><pre><code>{escape(command, False)}</code></pre></div>')
            i += 1
            continue
        while i < len(lines) and not lines[i].startswith("$ "):
            i += 1
        blocks.append(f'<pre class="output"><code>{escape(chr(10).join(lines[start:i]), False)}</code></pre>')
    return f'<div class="run">{"".join(blocks)}</div>'


def figure(path, alt):
    """An SVG in the page. Its colours are those of book.css, which follow the page's switch, too."""
    svg = re.sub(r"<style>.*?</style>|<\?xml.*?\?>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return f'<figure tabindex="0" aria-label="{alt}">' \
           f'{svg.strip().replace("<svg ", f"""<svg aria-label="{alt}" """, 1)}</figure>'


class Text:
    """A document's HTML, which knows its headings and the anchors that it cites. book: where links lead."""

    def __init__(self, path, source, book):
        self.path, self.book, self.cited, self.headings = path, book, [], []
        html = markdown.markdown(for_python_markdown(source), extensions=["tables", "sane_lists"])
        html = re.sub(r"<pre><code>(.*?)</code></pre>", code_block, html, flags=re.DOTALL)
        html = re.sub(r"<h(\d)>(.*?)</h\1>", self.heading, html)
        html = re.sub(r'<p><img alt="(.*?)" src="(.*?)" /></p>', lambda match: figure(
            ROOT / posixpath.dirname(path) / match[2], " ".join(match[1].split())), html, flags=re.DOTALL)
        html = re.sub(r'<a href="([^"]*)">(.*?)</a>', self.link, html, flags=re.DOTALL)
        html = re.sub(r"(<a\b.*?</a>|<pre\b.*?</pre>)|<code>([^<]*)</code>", self.name_of_file, html, flags=re.DOTALL)
        html = re.sub(r"<table>.*?</table>", r'<div class="scroll">\g<0></div>', html, flags=re.DOTALL)
        self.title = next((text for level, _, text in self.headings if level == 1), path)
        self.html = html

    def heading(self, match):
        text = plain(match[2])
        name = re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-")
        count = sum(other.removesuffix(f"-{i}") == name for i, (_, other, _) in enumerate(self.headings))
        name += f"-{count}" if count else ""
        self.headings.append((int(match[1]), name, text))
        return f'<h{match[1]} id="{name}">{match[2]}</h{match[1]}>'

    def link(self, match):
        address, text = unescape(match[1]), match[2]
        if re.match(r"[a-z]+:", address):
            return f'<a href="{match[1]}" rel="external">{text}</a>'
        file, _, fragment = address.partition("#")
        if not file:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self.path), file))
        note = re.fullmatch(r"note: *(\S+)", plain(text))
        if note:
            self.cited.append((path, note[1]))
            return self.book.link(path, self.path, note[1], f"#note-{note[1]}", f' class="note" data-note="{note[1]}"')
        return self.book.link(path, self.path, text, f"#{fragment}" if fragment else "")

    def name_of_file(self, match):
        """`path/of/a/file` becomes a link to it."""
        path = unescape(match[2] or "")
        if "/" not in path or not re.fullmatch(r"[\w./-]+", path) or not (ROOT / path).is_file():
            return match[0]
        return self.book.link(path, self.path, match[0])

    def with_words(self, words):
        """The HTML, in which each use of a word of the glossary is marked. The first of a page can be focused."""
        names = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
        known = {word.lower(): word for word in words}
        pattern, seen = re.compile(rf"(?<![\w-])({names})(s|es)?(?![\w-])", re.IGNORECASE), set()

        def mark(match):
            word = known[match[1].lower()]
            first = ' tabindex="0"' if word not in seen else ""
            seen.add(word)
            return f'<span class="word" data-word="{escape(word)}"{first}>{match[0]}</span>'
        parts, at = [], 0
        for kept in KEPT.finditer(self.html):
            parts += [pattern.sub(mark, self.html[at:kept.start()]), kept[0]]
            at = kept.end()
        return "".join(parts) + pattern.sub(mark, self.html[at:])

    def explanations(self, note):
        """The paragraphs and items that cite an anchor."""
        chunks = re.split(r"</?(?:p|li|td|th|tr|ul|ol|table|tbody|h\d|pre|div|figure)\b[^>]*>", self.html)
        return [chunk for chunk in chunks if f'data-note="{note}"' in chunk]
