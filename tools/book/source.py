"""source.py: source files as HTML. Highlighted lines, the places that the notes' anchors name, side-by-side diffs."""
import difflib
import re

import pygments
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename

# The comment lines that tests/test_notes.sh takes for anchors.
ANCHOR = re.compile(r"[ \t]*(?:/\*\*?|\*|//|#)[ \t]*note: ([a-z0-9][a-z0-9-]*)[ \t]*(?:\*/)?[ \t]*$")
MOST_LINES = 60  # of an excerpt that begins with the comment at the top of a file


class Source:
    def __init__(self, path, text):
        self.path, self.plain = path, text.removesuffix("\n").split("\n")
        try:
            lexer = get_lexer_for_filename(path, stripnl=False)
        except pygments.util.ClassNotFound:
            lexer = TextLexer(stripnl=False)
        html = pygments.highlight(text, lexer, HtmlFormatter(nowrap=True))
        html = re.sub(r'<span class="[npw]">(.*?)</span>', r"\1", html)  # names, punctuation, blanks: without a colour
        self.html = html.split("\n")[:len(self.plain)]
        self.anchors = {match[1]: i for i, match in enumerate(map(ANCHOR.match, self.plain)) if match}

    def excerpt(self, name):
        """Begin and end of the comment with this anchor and of what it is about, which ends where the next thing begins
        in column 0 after an empty line. The comment at the top of a file is about several things."""
        start, last = self.anchors[name], len(self.plain)
        ends = [i for i in range(start, last - 1) if not self.plain[i] and self.plain[i + 1][:1].strip()] + [last]
        while not self.plain[start].lstrip().startswith(("/*", "//", "#")):
            start -= 1
        return start, max([end for end in ends if start == 0 and end <= MOST_LINES], default=ends[0])

    def block(self, start=0, end=None, kind="", marked=(), ids=False):
        """Lines, numbered by book.css. kind: of the marked ones. With ids, links can lead to lines and anchors."""
        names, spans = {i: name for name, i in self.anchors.items()}, []
        for i in range(len(self.plain))[start:end]:
            line = f' id="L{i + 1}"' if ids else ""
            place = f'<a id="note-{names[i]}"></a>' if ids and i in names else ""
            spans.append(f'<span class="l {kind if i in marked else ""}"{line}>{place}{self.html[i]}\n</span>')
        return f'<pre class="code" style="counter-reset:line {start}"><code>{"".join(spans)}</code></pre>'

    def article(self, name, link):
        """The excerpt of an anchor. link(html, fragment): a link to a place of the whole file."""
        start, end = self.excerpt(name)
        heading = link(self.path, f"#note-{name}") + f" <small>lines {start + 1} to {end}</small>"
        more = link("What follows, in the whole file", f"#L{min(end + 2, len(self.plain))}")
        code = self.block(start, end, "here", [self.anchors[name]])
        return f'<article id="code-{name}"><h3>{heading}</h3>{code}<p>{more}</p></article>'


def diff(old, new, explain):
    """Two sources side by side, but only what is near changes, which are cut where an anchor's comment begins.
    explain(anchor): what the notes say of it, as HTML."""
    html, matcher = [], difflib.SequenceMatcher(lambda line: line in ("", "{", "}"), old.plain, new.plain, False)
    for group in matcher.get_grouped_opcodes():
        html.append('<p class="gap">⋮</p>' if group[0][1] else "")
        for kind, i1, i2, j1, j2 in group:
            marked = range(0 if kind == "equal" else max(i2, j2))
            starts = {name: max(new.excerpt(name)[0], j1) for name, i in new.anchors.items() if j1 <= i < j2 and marked}
            cuts = sorted({j1, *starts.values()})
            for start, end in zip(cuts, cuts[1:] + [j2]):
                pair = f'{old.block(i1, i2, "old", marked)}{new.block(start, end, "new", marked)}'
                said = "".join(explain(name) for name in starts if starts[name] == start)
                html.append(f'<div class="change"><div class="pair {kind}">{pair}</div><aside>{said}</aside></div>')
                i1 = i2
    return "".join(html)
