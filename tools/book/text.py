"""text.py: a Markdown document as HTML, as GitHub shows it: names of headings, links, commands, figures, words."""
import posixpath
import re
import sys
from html import escape, unescape
from pathlib import Path

import markdown
from markdown.extensions.toc import TocExtension

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from check_examples import is_whole

# How a block without "$ " begins that holds commands.
COMMAND = re.compile(r"flags=|for \w+ in |docker |mpiexec |cmake |ctest |nsys |srun |\./check|# the proof|"
                     r"(build|tools/bench|course|scripts|tests)/\S")
COPY = '<button type="button">copy</button>'
KEPT = r"<(a|code|pre|h\d|figure|table)\b.*?</\1>|<[^>]+>"  # no words of the glossary are looked for there
BLOCKS = re.compile(r"</?(?:p|li|td|th|tr|ul|ol|table|tbody|h\d|pre|div|figure)\b[^>]*>")


def words_of(text):
    """{word: its line} of the glossary, the table Words of notes/README.md."""
    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", text.split("\n## Words\n")[1].split("\n## ")[0], re.MULTILINE)[1:]
    return {word: f"{word}: {line}".replace("`", "") for words, line in rows for word in words.split(", ")}


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
        other = "output" if prompts else "command" if COMMAND.match(block[0]) else "sketch"
        kind = "command prompt" if command else other
        code = f"<pre><code>{escape(chr(10).join(block).removeprefix('$ '), False)}</code></pre>"
        length = f' style="--longest:{max(map(len, block))}"' if kind == "sketch" else ""
        blocks.append(f'<div class="{kind}"{length}>{code}{COPY if "command" in kind else ""}</div>')
    return f'<div class="run">{"".join(blocks)}</div>'


class Text:
    """A document as HTML, with its title, its parts (id and name of each), and what it cites {(file, anchor): None}."""

    def __init__(self, path, source, book):
        self.path, self.book, self.cited = path, book, {}
        names = TocExtension(slugify=lambda text, _: re.sub(r"[^a-z0-9 _-]", "", text.lower()).replace(" ", "-"))
        reader = markdown.Markdown(extensions=["tables", "sane_lists", names])
        html = reader.convert(for_python_markdown(source))
        for pattern, replacement in (
                (r"<pre><code>(.*?)</code></pre>", code_block),
                (r'<p>(<img [^>]*src="(.*?)"[^>]*/>)</p>', r'<figure><a class="whole" href="\2">\1</a></figure>'),
                (r'<a href="([^"]*)">(.*?)</a>', self.link),
                (r"<(?:a|pre)\b.*?</(?:a|pre)>|<code>([^<]*)</code>", self.name_of_file),
                (r"<table>.*?</table>", lambda table: f'<div class="scroll">{table[0]}</div>'.replace(r"\|", "|"))):
            html = re.sub(pattern, replacement, html, flags=re.DOTALL)
        self.html, self.title, self.parts = html, *(reader.toc_tokens[0][key] for key in ("name", "children"))

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
        names, seen = "|".join(map(re.escape, sorted(words, key=len, reverse=True))), set()

        def mark(match):
            line = words.get(match["word"], words.get((match["word"] or "").lower()))  # "zero" is not ZeRO
            first = "" if line in seen else ' tabindex="0"'
            seen.add(line)
            return f'<span class="word" data-line="{escape(line)}"{first}>{match[0]}</span>' if line else match[0]
        pattern = rf"{KEPT}|(?<![\w-])(?P<word>{names})(?:s|es)?(?![\w-])"
        return re.sub(pattern, mark, self.html, flags=re.DOTALL | re.IGNORECASE)
