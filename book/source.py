"""source.py: source files as HTML. Highlighted lines, the places that the notes' anchors name, side-by-side diffs."""
import difflib
import re
from html import escape

import pygments
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename

# The same comment lines as tests/test_notes.sh knows.
ANCHOR = re.compile(r"[ \t]*(?:/\*\*?|\*|//|#)[ \t]*note: ([a-z0-9][a-z0-9-]*)[ \t]*(?:\*/)?[ \t]*$")
MOST_LINES = 60  # of an excerpt that begins with the comment at the top of a file
CONTEXT = 3  # equal lines of a diff that stay open beside a change


class Source:
    def __init__(self, root, path):
        self.path = path
        text = (root / path).read_text(encoding="utf-8")
        self.plain = text.removesuffix("\n").split("\n")
        try:
            lexer = get_lexer_for_filename(path, text, stripnl=False)
        except pygments.util.ClassNotFound:
            lexer = TextLexer(stripnl=False)
        html = pygments.highlight(text, lexer, HtmlFormatter(nowrap=True))
        self.html = re.sub(r'<span class="(?:n|p|w|o)">([^<]*)</span>', r"\1", html).split("\n")[:len(self.plain)]
        self.anchors = {match[1]: i for i, match in enumerate(map(ANCHOR.match, self.plain)) if match}

    def excerpt(self, name):
        """The lines from START up to, but without, END of the comment with this anchor and of what it is about."""
        at = start = self.anchors[name]
        while not self.plain[start].lstrip().startswith(("/*", "//", "#")):
            start -= 1
        count = len(self.plain)
        ends = [i for i in range(at, count - 1) if not self.plain[i] and self.plain[i + 1][:1].strip()] + [count]
        return start, max([end for end in ends if start == 0 and end <= MOST_LINES], default=ends[0])

    def lines(self, start, end, kinds=None, ids=False):
        """Lines as spans, numbered by book.css. kinds: line -> a class. With ids, links can lead to lines and anchors."""
        names = {i: name for name, i in self.anchors.items()} if ids else {}
        spans = []
        for i in range(start, end):
            more = f" {kinds[i]}" if kinds and i in kinds else ""
            line_id = f' id="L{i + 1}"' if ids else ""
            place = f'<a id="note-{names[i]}"></a>' if i in names else ""
            spans.append(f'<span class="l{more}"{line_id}>{place}{self.html[i]}\n</span>')
        return "".join(spans)

    def block(self, start, end, kinds=None, ids=False):
        return f'<pre class="code" style="counter-reset:line {start}"><code>' \
               f"{self.lines(start, end, kinds, ids)}</code></pre>"

    def article(self, name, tag, link):
        """The excerpt of an anchor. link(html, fragment): a link to a place on the whole file's page."""
        start, end = self.excerpt(name)
        heading = f"{link(self.path, f'#note-{name}')} <small>lines {start + 1} to {end}</small>"
        more = link("What follows, in the whole file", f"#L{min(end + 1, len(self.plain))}")
        return f'<article id="code-{name}" data-file="{self.path}" data-start="{start + 1}" data-end="{end}">' \
               f"<{tag}>{heading}</{tag}>{self.block(start, end, {self.anchors[name]: 'here'})}<p>{more}</p></article>"


def parts_of_diff(old, new):
    """[whether it is a change, begin and end in old, begin and end in new]. Equal parts of less than two lines with more
    than a brace on them belong to the changes around them: they are equal by chance."""
    parts, removed, added = [], {}, {}
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old.plain, new.plain, False).get_opcodes():
        changed = tag != "equal"
        if changed:
            removed.update(dict.fromkeys(range(i1, i2), "old"))
            added.update(dict.fromkeys(range(j1, j2), "new"))
        elif parts and i2 < len(old.plain):
            changed = sum(len(line.strip()) > 1 for line in old.plain[i1:i2]) < 2
        if parts and changed and parts[-1][0]:
            parts[-1][2], parts[-1][4] = i2, j2
        else:
            parts.append([changed, i1, i2, j1, j2])
    return parts, removed, added


def equal_part(old, new, i1, i2, j1, first, last):
    """Both sides of an equal part; its middle is folded if it is long."""
    def pair(begin, end):
        shift = j1 - i1
        return f'<div class="pair equal">{old.block(begin, end)}{new.block(begin + shift, end + shift)}</div>'
    head, tail = (i1 if first else i1 + CONTEXT), (i2 if last else i2 - CONTEXT)
    if tail - head <= CONTEXT:
        return pair(i1, i2)
    fold = f"<details><summary>{tail - head} equal lines</summary>{pair(head, tail)}</details>"
    return (pair(i1, head) if head > i1 else "") + fold + (pair(tail, i2) if i2 > tail else "")


def diff(old, new, explain):
    """The diff of two sources as HTML. explain(anchors): the HTML of what the notes say of anchors."""
    parts, removed, added = parts_of_diff(old, new)
    html = []
    for changed, i1, i2, j1, j2 in parts:
        if not changed:
            html.append(equal_part(old, new, i1, i2, j1, i1 == 0, i2 == len(old.plain)))
            continue
        said = explain([name for name, i in new.anchors.items() if j1 <= i < j2])
        sides = f'<div class="pair">{old.block(i1, i2, removed)}{new.block(j1, j2, added)}</div>'
        html.append(f'<section class="change" aria-label="Change at line {j1 + 1} of {escape(new.path)}">{sides}'
                    + (f"<aside>{said}</aside>" if said else "") + "</section>")
    return "\n".join(html)
