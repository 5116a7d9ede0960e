#!/usr/bin/env python3
"""Runs the commands that the documents show, and compares what they print with what is written below them.

    scripts/check_examples.py [FILE.md ...]         all documents, unless some are named; needs build/

A command is an indented line that begins with "$ ". It goes on while a line ends with a backslash, or until the shell has
a whole command; the rest of the indented block, up to the next "$ ", is what it prints. "[...]" stands for any lines.
Times, shares of hidden time, process numbers, the order of several ranks' messages and what the launcher adds to them
differ from run to run and are not compared. Losses, differences and hashes are: they belong to the machine that
notes/README.md names. On another one they may differ, and nothing is wrong; so this is no test, but a tool for whoever
changes a default. Exit status 1 if something differs.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600  # for one command
VARYING = [
    (r"\d+(\.\d+)?(e[-+]\d+)? (ms|us|s|tokens/s)\b", r"N \3"),
    (r"\d+(\.\d+)? % (hidden|waiting|of the step)", r"N % \2"),
    (r"process \d+", "process N"),
    (r"(forward|backward|optimizer|data) \d+(\.\d+)?", r"\1 N"),
    (r"waiting for \d+(\.\d+)?", "waiting for N"),
    (r"done \d+(\.\d+)? s ago", "done N s ago"),
    (r"\w+\.c:\d+", "FILE:LINE"),
]
NOT_COMPARED = re.compile(r"now$|all_reduce bucket \d+$|Abort\(") # may stand anywhere


def is_whole(command):
    """Whether the shell would begin to run this."""
    return not command.endswith("\\") and subprocess.run(["bash", "-n", "-c", command], capture_output=True).returncode == 0


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


def compared(lines):
    lines = [line for line in lines if not NOT_COMPARED.match(line)]
    return sorted(lines) if any(line.startswith("train: fault: ") for line in lines) else lines


def fits(expected, printed):
    """Whether the printed lines are those expected, with any lines for "[...]"."""
    if not expected:
        return not printed
    if expected[0] == "[...]":
        return any(fits(expected[1:], printed[i:]) for i in range(len(printed) + 1))
    return bool(printed) and without_varying(expected[0]) == without_varying(printed[0]) and fits(expected[1:], printed[1:])


def check(path):
    differing = 0
    for line, command, expected in examples(path):
        result = subprocess.run(["bash", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, errors="replace", timeout=SECONDS)
        printed = [text.rstrip() for text in result.stdout.splitlines()]
        if not expected or fits(compared(expected), compared(printed)):
            continue
        differing += 1
        print(f"{path.relative_to(ROOT)}:{line}: $ {command}\n  written:")
        print("".join(f"    {text}\n" for text in expected), end="  printed:\n")
        print("".join(f"    {text}\n" for text in printed[-40:]), end="", flush=True)
    return differing


def main():
    sys.setrecursionlimit(10000)
    paths = [Path(name).resolve() for name in sys.argv[1:]] or sorted(
        path for path in ROOT.rglob("*.md") if "build" not in path.parts and not path.parts[-2].startswith("build"))
    differing = sum(check(path) for path in paths)
    print(f"{differing} example(s) differ")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
