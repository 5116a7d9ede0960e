"""figure.py: what all figures of the notes have in common: colours, light and dark, and the elements of an SVG.

A figure is shown by <img>, so its SVG holds everything: a title and a description for screen readers, text as text, and
a style that follows the reader's light or dark mode. It also draws its own background, so that it stays readable where
the page and the system disagree about the mode. Used by tools/figures/draw_figures.py and the two in tools/bench/.
"""
import math
import textwrap
from html import escape

WIDTH = 880

# What a colour means in every figure. Each of them reads on white and on black, below text of the class "on".
COLOURS = {"forward": "#9ecae1", "backward": "#4f9fd4", "optimizer": "#b39ddb", "all_reduce": "#f28e2b",
           "reduce_scatter": "#e8718a", "all_gather": "#66bb6a", "weights": "#e6c84f"}

# The rest has two colours: in light mode, in dark mode.
THEME = {"paper": ("#ffffff", "#0d1117"), "ink": ("#1f2328", "#e6edf3"), "muted": ("#59636e", "#9da7b3"),
         "cell": ("#eaeef2", "#30363d"), "wrong": ("#b3261e", "#ff8a80"), "right": ("#1a7f37", "#5fd07a")}


def style():
    def rules(mode):
        return [f".{name}{{fill:{colours[mode]}}} .{name}-line{{fill:none;stroke:{colours[mode]}}}"
                for name, colours in THEME.items()] + [f".edge{{stroke:{THEME['paper'][mode]};stroke-width:0.5}}"]
    always = [f".{name}{{fill:{colour}}}" for name, colour in COLOURS.items()] + [".on{fill:#111111}"]
    lines = [textwrap.wrap(" ".join(part), 118, break_on_hyphens=False) for part in (rules(0) + always, rules(1))]
    return ["<style>", *lines[0], "@media (prefers-color-scheme: dark) {", *lines[1], "}", "</style>"]


def number(x):
    return f"{x:.1f}".removesuffix(".0")


class Figure:
    """The y axis points down. A kind is a name in COLOURS or THEME."""

    def __init__(self, title, description, height):
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" ' \
               'font-size="14" role="img">'
        self.lines = [head, f"<title>{escape(title)}</title>", "<desc>"]
        self.lines += textwrap.wrap(escape(description), 118) + ["</desc>"] + style()
        self.rect(0, 0, WIDTH, height, "paper")

    def rect(self, x, y, width, height, kind, hint=None, more=""):
        """hint: shown where the SVG is opened by itself, below the pointer. A kind may be followed by "edge"."""
        end = f"><title>{escape(hint)}</title></rect>" if hint else "/>"
        self.lines.append(f'<rect x="{number(x)}" y="{number(y)}" width="{number(max(width, 0.6))}" '
                          f'height="{number(height)}" class="{kind}"{more}{end}')

    def text(self, x, y, words, kind="ink", anchor="start", size=14, bold=False):
        more = f' text-anchor="{anchor}"' if anchor != "start" else ""
        more += f' font-size="{size}"' if size != 14 else ""
        more += ' font-weight="bold"' if bold else ""
        self.lines.append(f'<text x="{number(x)}" y="{number(y)}" class="{kind}"{more}>{escape(words)}</text>')

    def line(self, x1, y1, x2, y2, kind="muted", more=""):
        self.lines.append(f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" '
                          f'class="{kind}-line"{more}/>')

    def arrow(self, x1, y1, x2, y2, kind="ink"):
        """A line with a head at its end."""
        length = math.hypot(x2 - x1, y2 - y1)
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - 7 * dx, y2 - 7 * dy
        self.line(x1, y1, bx, by, kind, ' stroke-width="1.5"')
        points = ((x2, y2), (bx - 4 * dy, by + 4 * dx), (bx + 4 * dy, by - 4 * dx))
        self.lines.append('<polygon points="' + " ".join(f"{number(x)},{number(y)}" for x, y in points) +
                          f'" class="{kind}"/>')

    def box(self, x, y, width, height, kind, *words, size=13):
        """A rectangle with lines of text in its middle."""
        self.rect(x, y, width, height, kind, more=' rx="2"')
        for i, line in enumerate(words):
            below = (i - (len(words) - 1) / 2) * (size + 4) + size * 0.36
            self.text(x + width / 2, y + height / 2 + below, line, "ink" if kind in THEME else "on", "middle", size)

    def outline(self, x, y, width, height, kind="muted", dashed=False):
        more = ' stroke-dasharray="4 3"' if dashed else ""
        self.rect(x, y, width, height, kind + "-line", more=more)

    def legend(self, x, y, entries):
        """Pairs of a kind and what it means, one beside the other, by a rough estimate of the width of a text."""
        for kind, words in entries:
            self.rect(x, y - 12, 14, 14, kind)
            self.text(x + 20, y, words)
            x += 44 + 8 * len(words)
        return x

    def svg(self):
        return "\n".join(self.lines) + "\n</svg>\n"
