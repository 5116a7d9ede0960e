"""mutations.py: draws random mistakes in the code of common/ and train/: one change of one place in a function's body.

To list the operators, see OPERATORS. To draw, see draw(): the same seed and source give the same sequence.
"""
import random
import re
from dataclasses import dataclass
from pathlib import Path

# Code that only a GPU runs, or that needs NCCL: no test on a CPU could see a change.
NOT_ON_A_CPU = re.compile(r"device_cuda|pg_nccl\.c$")
# Statements that do nothing on a CPU: they name ranges for a GPU's profiler.
FOR_A_PROFILER = re.compile(r"device_(range_begin|range_begin_on|range_end|mark|timeline_begin|timeline_end)\b")


@dataclass(frozen=True)
class Mutation:
    path: str  # below the tree: common/autograd/tape.c
    function: int  # which of the file's functions
    operator: str
    start: int  # the text from start to end is replaced
    end: int
    after: str


def hide(match):
    """The same length and the same lines, but nothing that looks like code: a comment becomes blank."""
    return re.sub(r"[^\n]", " " if match.group().startswith("/") else "_", match.group())


def mask(text):
    """The text without what is not to be changed: comments, strings, preprocessor lines, static assertions."""
    hidden = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*'
    return re.sub(hidden + r"|_Static_assert\([^;]*;", hide, text, flags=re.S | re.M)


def function_bodies(text):
    """(start, end) of each function's body, by the house's style: its braces stand alone at the beginning of a line."""
    return [match.span(1) for match in re.finditer(r"^\{\n(.*?)^\}$", text, flags=re.S | re.M)]


# ---- operators: each yields (start, end, replacement) for every place in `body` (masked) where it applies ----


def swapped(pattern, replacements):
    """The pattern's group 1 becomes another one."""

    def find(body):
        for match in re.finditer(pattern, body):
            for after in replacements[match.group(1)]:
                yield match.start(1), match.end(1), after

    return find


def constants(body):
    for match in re.finditer(r"(?<![\w.])(\d+)(?![\w.])", body):
        value = int(match.group())
        yield match.start(), match.end(), str(value + 1)
        if value > 0:
            yield match.start(), match.end(), str(value - 1)
    for match in re.finditer(r"(?<![\w.])(\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+)(f?)(?![\w.])", body):
        after = f"{2 * float(match.group(1))!r}{match.group(2)}" if float(match.group(1)) else "1.0" + match.group(2)
        yield match.start(), match.end(), after


def closing(body, opening):
    depth = 0
    for i in range(opening, len(body)):
        depth += (body[i] == "(") - (body[i] == ")")
        if depth == 0:
            return i
    return None


def negated_conditions(body):
    for match in re.finditer(r"\b(?:if|while) (\()", body):
        end = closing(body, match.start(1))
        if end is not None:
            yield match.start(1) + 1, end, f"!({body[match.start(1) + 1:end]})"


def shortened_loops(body):
    for match in re.finditer(r"\bfor \([^;]*; ([^;]*?<=? [^;&|]+?)(?= &&|;)", body):
        yield match.end(1), match.end(1), " - 1"


DECLARATION = re.compile(r"(const|static|struct|unsigned|volatile|char|return|goto|case|default)\b"
                         r"|[A-Za-z_]\w*( \**|\** )[A-Za-z_]\w*\W")
KEYWORD = re.compile(r"(if|for|while|switch|do|else)\b")


def dropped_statements(body):
    for match in re.finditer(r"(?:^|(?<=else ))[ \t]*([A-Za-z_*(+-][^;{}]*;)", body, flags=re.M):
        statement = match.group(1)
        before = body[:match.start()].rstrip()
        begins = before == "" or before[-1] in ";{}):" or before.endswith(("else", "do")) or before.endswith("_")
        if not begins or KEYWORD.match(statement) or DECLARATION.match(statement):
            continue
        if statement.count("(") == statement.count(")") and not FOR_A_PROFILER.match(statement):
            yield match.start(1), match.end(1), ";" + "\n" * statement.count("\n")


OPERATORS = {
    "comparison": swapped(r" (<=?|>=?|[=!]=) ", {"<": ["<="], "<=": ["<"], ">": [">="], ">=": [">"], "==": ["!="],
                                                "!=": ["=="]}),
    "arithmetic": swapped(r" ([-+*/%]) ", {"+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["/"]}),
    "assignment": swapped(r" ([-+*/|&]=) ", {"+=": ["-=", "="], "-=": ["+="], "*=": ["/="], "/=": ["*="],
                                            "|=": ["="], "&=": ["="]}),
    "increment": swapped(r"(\+\+|--)", {"++": ["--"], "--": ["++"]}),
    "sign": swapped(r"[(=,?:] ?(-)(?=[\w(])", {"-": [""]}),
    "logic": swapped(r" (&&|\|\|)\s", {"&&": ["||"], "||": ["&&"]}),
    "boolean": swapped(r"\b(true|false)\b", {"true": ["false"], "false": ["true"]}),
    "negated condition": negated_conditions,
    "constant": constants,
    "bound": shortened_loops,
    "dropped statement": dropped_statements,
}


def places(root, path):
    """All mutations of a file, by line."""
    text = (root / path).read_text()
    masked = mask(text)
    by_line = {}
    for index, (first, last) in enumerate(function_bodies(masked)):
        body = masked[first:last]
        for operator, find in OPERATORS.items():
            for start, end, after in find(body):
                if operator == "negated condition":  # the condition itself, not what mask() left of it
                    after = f"!({text[first + start:first + end]})"
                line = text.count("\n", 0, first + start)
                by_line.setdefault(line, []).append(Mutation(path, index, operator, first + start, first + end, after))
    return by_line


def draw(root, seed, rooms):
    """Mutations without end, none twice: a random file (by its number of lines that can be changed), a random one of
    these lines, a random change of it. The rooms are directories of the tree."""
    root = Path(root)
    lines = []
    for file in sorted(file for room in rooms for file in root.glob(f"{room}/**/*.[ch]")):
        path = str(file.relative_to(root))
        if not NOT_ON_A_CPU.search(path):
            lines += [mutations for _, mutations in sorted(places(root, path).items())]
    rng = random.Random(f"lockstep {seed}")
    drawn = set()
    while len(drawn) < sum(map(len, lines)):
        mutation = rng.choice(rng.choice(lines))
        if mutation not in drawn:
            drawn.add(mutation)
            yield mutation


def apply(text, mutation):
    return text[:mutation.start] + mutation.after + text[mutation.end:]


def describe(text, mutation):
    """(line number, the lines before, the lines after), each without line breaks."""
    first = text.rfind("\n", 0, mutation.start) + 1
    last = text.find("\n", mutation.end)
    after = text[first:mutation.start] + mutation.after + text[mutation.end:last]
    squeeze = lambda lines: " ".join(lines.split())
    return text.count("\n", 0, mutation.start) + 1, squeeze(text[first:last]), squeeze(after)
