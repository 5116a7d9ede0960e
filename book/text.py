"""text.py: a Markdown document as HTML, as GitHub shows it: names of headings, links, commands, figures, words."""
import posixpath
import re
import sys
from collections import Counter
from html import escape, unescape
from pathlib import Path

import markdown

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from check_examples import is_whole

# How a block without "$ " begins that holds commands.
COMMAND = re.compile(r"flags=|for |docker |mpiexec |cmake |ctest |nsys |srun |\./check|# the proof|"
                     r"(build|bench|course|scripts|tests)/\S")
COPY = '<button type="button">copy</button>'
KEPT = r"<(a|code|pre|h\d|figure|table)\b.*?</\1>|<[^>]+>"  # no words of the glossary are looked for there
BLOCKS = re.compile(r"</?(?:p|li|td|th|tr|ul|ol|table|tbody|h\d|pre|div|figure)\b[^>]*>")


def words_of(text):
    """{word: its line} of the glossary, the table Words of notes/README.md."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", text.split("\n## Words\n")[1].split("\n## ")[0], re.MULTILINE)[1:]
    return {word: meaning.replace("`", "") for words, meaning in rows for word in words.split(", ")}


def for_python_markdown(text):
    """Indents what belongs to an item of a list by four spaces, as python-markdown wants it. Marks bare addresses."""
    lines, offset = [""], 0
    for line in text.split("\n"):
        item = re.match(r"([-*]|\d+\.) +", line)
        inside = offset and line.startswith(" " * offset)
        offset = item.end() if item else 0 if line and not inside and not lines[-1] else offset
        lines += [""] if item and lines[-1].startswith("    ") else []
        lines.append(" " * (4 - offset) + line if inside and not item else line)
    return re.sub(r"(?<![(<\w])https?://[^\s)]*[^\s).,]", r"<\g<0>>", "\n".join(lines))


def plain(html):
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def code_block(match):
    """A block of code. Each of its commands stands in a frame, with a button that copies it."""
    lines, blocks = unescape(match[1]).rstrip("\n").split("\n"), []
    prompts = any(line.startswith("$ ") for line in lines)
    while lines:
        block = [lines.pop(0)]
        command = block[0].startswith("$ ")
        while lines and (not is_whole("\n".join(block)[2:]) if command else not lines[0].startswith("$ ")):
            block.append(lines.pop(0))
        kind = "command prompt" if command else "output" if prompts else "command" if COMMAND.match(block[0]) else ""
        code = f"<pre><code>{escape(chr(10).join(block).removeprefix('$ '), False)}</code></pre>"
        blocks.append(f'<div class="{kind}">{code}{COPY if "command" in kind else ""}</div>')
    return f'<div class="run">{"".join(blocks)}</div>'


class Text:
    """A document as HTML, with its headings [(level, name, text)] and what it cites {(file, anchor): None}."""

    def __init__(self, path, source, book):
        self.path, self.book, self.cited, self.headings, self.names = path, book, {}, [], Counter()
        html = markdown.markdown(for_python_markdown(source), extensions=["tables", "sane_lists"])
        for pattern, replacement in (
                (r"<pre><code>(.*?)</code></pre>", code_block),
                (r"<h(\d)>(.*?)</h\1>", self.heading),
                (r'<p><img alt="(.*?)" src="(.*?)" /></p>', self.figure),
                (r'<a href="([^"]*)">(.*?)</a>', self.link),
                (r"<(?:a|pre)\b.*?</(?:a|pre)>|<code>([^<]*)</code>", self.name_of_file),
                (r"<table>.*?</table>", lambda table: f'<div class="scroll">{table[0]}</div>'.replace(r"\|", "|"))):
            html = re.sub(pattern, replacement, html, flags=re.DOTALL)
        self.html, self.title = html, self.headings[0][2]

    def figure(self, match):
        """An SVG in the page. Its colours are those of book.css, which follow the page's switch, too."""
        svg = ((ROOT / self.path).parent / match[2]).read_text(encoding="utf-8")
        svg = svg.replace("<svg ", f'<svg aria-label="{match[1]}" ', 1)
        return f'<figure>{re.sub("<style>.*?</style>", "", svg, flags=re.DOTALL)}</figure>'

    def heading(self, match):
        """Gives a heading the name that GitHub gives it."""
        text = plain(match[2])
        name = re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-")
        self.names[name] += 1
        name += f"-{self.names[name] - 1}" if self.names[name] > 1 else ""
        self.headings.append((int(match[1]), name, text))
        return f'<h{match[1]} id="{name}">{match[2]}</h{match[1]}>'

    def link(self, match):
        file, _, fragment = unescape(match[1]).partition("#")
        if not file or re.match(r"[a-z]+:", file):
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(self.path), file))
        note = re.fullmatch(r"note: *(\S+)", plain(match[2]))
        if not note:
            return self.book.link(path, self.path, match[2], fragment and f"#{fragment}")
        self.cited[path, note[1]] = None
        return self.book.link(path, self.path, note[1], f"#note-{note[1]}", f' class="note" data-note="{note[1]}"')

    def name_of_file(self, match):
        """`path/of/a/file` becomes a link to it, and the command that compares two stages becomes one to their page."""
        path = unescape(match[1] or "")
        stages = re.fullmatch(r"diff stage(\d)\w+/ddp.c stage(\d)\w+/ddp.c", path)
        is_file = re.fullmatch(r"[\w.-]+(/[\w.-]+)+", path) and (ROOT / path).is_file() and not path.startswith("build")
        path = f"diff{stages[1]}-{stages[2]}.md" if stages else path
        return self.book.link(path, self.path, match[0]) if stages or is_file else match[0]

    def with_words(self, words):
        """The HTML, in which all words of the glossary are marked. The first of each can be focused."""
        known, seen = {word.lower(): word for word in words}, set()
        names = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))

        def mark(match):
            word = known.get((match["word"] or "").lower())
            first = "" if word in seen else ' tabindex="0"'
            seen.add(word)
            return f'<span class="word" data-word="{word}"{first}>{match[0]}</span>' if word else match[0]
        pattern = rf"{KEPT}|(?<![\w-])(?P<word>{names})(?:s|es)?(?![\w-])"
        return re.sub(pattern, mark, self.html, flags=re.DOTALL | re.IGNORECASE)

    def explanations(self, note):
        """The paragraphs and items that cite an anchor."""
        return [block for block in BLOCKS.split(self.html) if f'data-note="{note}"' in block]
