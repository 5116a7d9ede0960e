"""source.py: source files as HTML. Highlighted lines, the places that the notes' anchors name, side-by-side diffs."""
import difflib
import re

import pygments
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename

# The comment lines that tests/test_notes.sh takes for anchors.
ANCHOR = re.compile(r"[ \t]*(?:/\*\*?|\*|//|#)[ \t]*note: ([a-z0-9][a-z0-9-]*)[ \t]*(?:\*/)?[ \t]*$")
MOST_LINES = 60  # of an excerpt that begins with the comment at the top of a file
CONTEXT = 3  # equal lines that a diff shows on both sides of a change


class Source:
    def __init__(self, path, text):
        self.path, self.plain = path, text.removesuffix("\n").split("\n")
        try:
            lexer = get_lexer_for_filename(path, stripnl=False)
        except pygments.util.ClassNotFound:
            lexer = TextLexer(stripnl=False)
        self.html = pygments.highlight(text, lexer, HtmlFormatter(nowrap=True)).split("\n")[:len(self.plain)]
        self.anchors = {match[1]: i for i, match in enumerate(map(ANCHOR.match, self.plain)) if match}

    def excerpt(self, name):
        """Begin and end of the comment with this anchor and of what it is about, which ends where the next thing begins
        in column 0 after an empty line. The comment at the top of a file is about several things."""
        start, last = self.anchors[name], len(self.plain)
        ends = [i for i in range(start, last - 1) if not self.plain[i] and self.plain[i + 1][:1].strip()] + [last]
        while not self.plain[start].lstrip().startswith(("/*", "//", "#")):
            start -= 1
        return start, max([end for end in ends if start == 0 and end <= MOST_LINES], default=ends[0])

    def block(self, start, end, kind="", marked=(), ids=False):
        """Lines, numbered by book.css. kind: of the marked ones. With ids, links can lead to lines and anchors."""
        names, spans = {i: name for name, i in self.anchors.items()}, []
        for i in range(start, end):
            place = f'<a id="L{i + 1}"></a>' if ids else ""
            place += f'<a id="note-{names[i]}"></a>' if ids and i in names else ""
            spans.append(f'<span class="l {kind if i in marked else ""}">{place}{self.html[i]}\n</span>')
        return f'<pre class="code" style="counter-reset:line {start}"><code>{"".join(spans)}</code></pre>'

    def article(self, name, link):
        """The excerpt of an anchor. link(html, fragment): a link to a place of the whole file."""
        start, end = self.excerpt(name)
        heading = link(self.path, f"#note-{name}") + f" <small>lines {start + 1} to {end}</small>"
        more = link("What follows, in the whole file", f"#L{min(end + 2, len(self.plain))}")
        code = self.block(start, end, "here", [self.anchors[name]])
        return f'<article id="code-{name}"><h3>{heading}</h3>{code}<p>{more}</p></article>'


def diff(old, new, explain):
    """Two sources side by side, long equal parts folded. explain(anchors): what the notes say of these, as HTML."""
    def pair(kind, i1, i2, j1, j2):
        marked = range(0 if kind == "equal" else len(old.plain + new.plain))
        return f'<div class="pair {kind}">{old.block(i1, i2, "old", marked)}{new.block(j1, j2, "new", marked)}</div>'
    html = []
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old.plain, new.plain, False).get_opcodes():
        if kind != "equal":
            said = explain([name for name, i in new.anchors.items() if j1 <= i < j2])
            said = said and f"<aside>{said}</aside>"
            html.append(f'<div class="change">{pair(kind, i1, i2, j1, j2)}{said}</div>')
            continue
        head, tail = i1 + CONTEXT * (i1 > 0), i2 - CONTEXT * (i2 < len(old.plain))
        if tail - head <= CONTEXT:
            head = tail = i2
        first, folded, last = (pair(kind, begin, end, begin + j1 - i1, end + j1 - i1)
                               for begin, end in ((i1, head), (head, tail), (tail, i2)))
        folded = f"<details><summary>{tail - head} equal lines</summary>{folded}</details>" if tail > head else ""
        html.append(first + folded + last)
    return "".join(html)
