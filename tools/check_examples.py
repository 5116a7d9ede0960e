#!/usr/bin/env python3
"""Runs the commands that the documents show, and compares what they print with what is written below them.

    tools/check_examples.py [--elsewhere] [FILE.md ...]    all documents, unless some are named

They run programs in build/, so build the target `everything` before.
A command is an indented line that begins with "$ ". It goes on while a line ends with a backslash, or until the shell
has a whole command; the rest of the indented block, up to the next "$ ", is what it prints. "[...]" stands for any
lines. A document's commands run in one directory, which at first has only links to the project's directories.
Times, shares of hidden time (but 0 %), process numbers, the order of several ranks' messages and what the launcher adds
to them differ from run to run and are not compared. Nor are the numbers of an example whose buckets were chosen by
measuring.

Losses, differences and hashes belong to the processor that notes/README.md names. With --elsewhere, for any other one:
two numbers with an exponent or fewer than six decimals are equal up to 1 %, or if both are below 1e-5 (but a written 0
is only 0). Two hashes of a document are equal where they are written as equal, and nowhere else. Where weights are
compared, the verdicts are equal; by how much the weights differ, and which one most, is the processor's affair. Exit
status 1 if something differs.
"""
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600  # for one command
os.environ["LC_ALL"] = "C"  # the documents show English messages and decimal points
VARYING = [
    (r"\d+(\.\d+)?(e[-+]\d+)? (ms|us|s|tokens/s)\b", r"N \3"),
    (r"(?<![\d.])0 % hidden", "nothing hidden"),
    (r"\d+(\.\d+)? % (hidden|waiting|of the step)", r"N % \2"),
    (r"process \d+", "process N"),
    (r"(forward|backward|optimizer|data) \d+(\.\d+)?", r"\1 N"),
    (r"waiting for \d+(\.\d+)?", "waiting for N"),
    (r"done \d+(\.\d+)? s ago", "done N s ago"),
    (r"\w+\.c:\d+", "FILE:LINE"),
]
NUMBER = r"\d+(?:\.\d+)?(?:e[-+]\d+)?"
HASH = r"\b(?=[0-9]*[a-f])[0-9a-f]{8,16}\b" # with a letter, else it is a number
ROUNDED = [ # not compared with --elsewhere. Of a comparison of weights the verdict is left; 0 is a verdict, too.
    (HASH, "HASH"),
    (r"\S+ +(same|DIFFERENT)$", r"D \1"),
    (r"max \|diff\| (?!0\.000e\+00)\S+ in \S+,", "max |diff| D in NAME,"),
]
NOT_COMPARED = re.compile(r"now$|all_reduce bucket \d+$|Abort\(") # may stand anywhere


def is_whole(command):
    """Whether the shell would begin to run this."""
    syntax = subprocess.run(["bash", "-n", "-c", command], capture_output=True)
    return not command.endswith("\\") and syntax.returncode == 0


def examples(path):
    """(number of the line, command, lines that it prints) of each example of a document."""
    lines = path.read_text().splitlines()
    i = 0
    while i < len(lines):
        if not lines[i].startswith("    $ "):
            i += 1
            continue
        start, command = i + 1, lines[i][6:]
        while not is_whole(command) and i + 1 < len(lines) and lines[i + 1].startswith("    "):
            i += 1
            command += "\n" + lines[i][4:]
        i += 1
        printed = []
        while i < len(lines) and lines[i].startswith("    ") and not lines[i].startswith("    $ "):
            printed.append(lines[i][4:].rstrip())
            i += 1
        yield start, command, printed


def without_varying(line):
    for pattern, replacement in VARYING:
        line = re.sub(pattern, replacement, line)
    return re.sub(r" +", " ", line.strip())


def compared(lines, numbers):
    lines = [without_varying(line) for line in lines if not NOT_COMPARED.match(line)]
    if not numbers:
        lines = [re.sub(NUMBER, "N", line) for line in lines]
    return sorted(lines) if any(line.startswith("train: fault: ") for line in lines) else lines


def is_rounded_like(expected, printed):
    """Whether two numbers are the same one, computed by two processors. Counts are whole, MB have six decimals."""
    if expected.isdigit() or re.search(r"\.\d{6}$", expected):
        return expected == printed
    x, y = float(expected), float(printed)
    return math.isclose(x, y, rel_tol=0.01) or (x != 0 and abs(x) < 1e-5 and abs(y) < 1e-5)


def is_like(expected, printed):
    """As ==, but for another processor."""
    for pattern, replacement in ROUNDED:
        expected, printed = re.sub(pattern, replacement, expected), re.sub(pattern, replacement, printed)
    if re.sub(NUMBER, "N", expected) != re.sub(NUMBER, "N", printed):
        return False
    return all(map(is_rounded_like, re.findall(NUMBER, expected), re.findall(NUMBER, printed)))


def matched(expected, printed, same):
    """The printed lines that stand for those expected, with any lines for "[...]"; or None."""
    if not expected:
        return None if printed else []
    if expected[0] == "[...]":
        rests = (matched(expected[1:], printed[i:], same) for i in range(len(printed) + 1))
        return next((["[...]"] + rest for rest in rests if rest is not None), None)
    if not printed or not same(expected[0], printed[0]):
        return None
    rest = matched(expected[1:], printed[1:], same)
    return None if rest is None else [printed[0]] + rest


def hashes_agree(expected, printed, known):
    """Whether each written hash stands for one printed hash, and no two for the same. known: the document's pairs."""
    pairs = known | set(zip(re.findall(HASH, "\n".join(expected)), re.findall(HASH, "\n".join(printed))))
    agree = len({written for written, _ in pairs}) == len(pairs) == len({other for _, other in pairs})
    known.update(pairs if agree else ())
    return agree


def check(path, elsewhere, directory):
    """Returns how many examples of a document differ, and how many it has."""
    differing, count, known = 0, 0, set()
    for entry in ROOT.iterdir():
        if entry.is_dir():
            os.symlink(entry, Path(directory, entry.name))
    for line, command, expected in examples(path):
        count += 1
        result = subprocess.run(["timeout", str(SECONDS), "bash", "-c", command], cwd=directory, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, errors="replace")
        printed = [text.rstrip() for text in result.stdout.splitlines()]
        numbers = not any("; expected: " in text for text in expected) # else the buckets were chosen by measuring
        written = compared(expected, numbers)
        found = matched(written, compared(printed, numbers), is_like if elsewhere else str.__eq__)
        if not expected or (found is not None and hashes_agree(written, found, known)):
            continue
        place = f"{os.path.relpath(path, ROOT)}:{line}"
        if "No module named 'torch'" in result.stdout:
            print(f"{place}: not compared: python3-torch is not installed", flush=True)
            continue
        differing += 1
        print(f"{place}: $ {command}\n  written:")
        print("".join(f"    {text}\n" for text in expected), end="  printed:\n")
        print("".join(f"    {text}\n" for text in printed[-40:]), end="", flush=True)
    return differing, count


def main():
    sys.setrecursionlimit(10000)
    names = [name for name in sys.argv[1:] if name != "--elsewhere"]
    paths = [Path(name).resolve() for name in names] or sorted(
        path for path in ROOT.rglob("*.md") if "/build" not in f"/{path.relative_to(ROOT)}")
    differing = count = 0
    for path in paths:
        with tempfile.TemporaryDirectory() as directory:
            here = check(path, "--elsewhere" in sys.argv, directory)
        differing, count = differing + here[0], count + here[1]
    print(f"{differing} of {count} example(s) differ")
    return 1 if differing or not count else 0


if __name__ == "__main__":
    sys.exit(main())
