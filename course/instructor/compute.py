#!/usr/bin/env python3
"""Checks the quiz: 34 questions, four options each, one key each; and computes every key that is a number.

    course/instructor/compute.py [DIR]      DIR holds quiz.md and quiz_key.md; by default this script's directory

A formula gets the numbers of its question's text, in their order. The first formula of a row gives the right answer.
The other three are the mistakes that quiz_key.md explains. All four must be the options of the question, and the key
must be the letter of the first. Prints the computed answers. Exit status 1 if something does not fit.
"""
import math
import re
import sys
from pathlib import Path


def buckets(*kb):
    """(first cap, cap, sizes) of question 11, whose last two numbers are the caps."""
    return kb[-2], kb[-1], kb[:-2]


def plan(*kb):
    """A bucket closes when it holds at least its cap; the last one may stay below it."""
    first, cap, sizes = buckets(*kb)
    closed = filled = 0
    for size in sizes:
        filled += size
        if filled >= (cap if closed else first):
            closed, filled = closed + 1, 0
    return closed, closed + (filled > 0)


def plan_that_never_exceeds(*kb):
    """A bucket closes before the gradient that would exceed its cap."""
    first, cap, sizes = buckets(*kb)
    count, filled = 1, 0
    for size in sizes:
        if filled and filled + size > (first if count == 1 else cap):
            count, filled = count + 1, 0
        filled += size
    return count


def wait(count, *times):
    """How long one all-reduce after the other goes on after backward. times: ready..., end of backward, duration."""
    done = 0
    for ready in times[:count]:
        done = max(done, ready) + times[-1]
    return done - times[-2]


def summed_again(ranks, micro_batches):
    gradient = 0
    for _ in range(micro_batches):
        gradient = ranks * (gradient + 1)
    return gradient


FORMULAS = {
    2: (lambda layers, frozen: 2 * layers - frozen,
        lambda layers, frozen: layers,                           # one for each layer
        lambda layers, frozen: 2 * layers - 2 * frozen,          # the frozen layers' weights left out as well
        lambda layers, frozen: 2 * layers),                      # the frozen ones sent, too
    5: (lambda _, n0, m0, __, n1, m1: (n0 * m0 + n1 * m1) / (n0 + n1),
        lambda _, n0, m0, __, n1, m1: (m0 + m1) / 2,             # mean of means
        lambda _, n0, m0, __, n1, m1: (n0 * m0 + n1 * m1) / 2,   # sum, divided by the world size
        lambda _, n0, m0, __, n1, m1: n0 * m0 + n1 * m1),        # not divided
    6: (lambda ranks, k, samples, tokens: ranks * k * samples * tokens,
        lambda ranks, k, samples, tokens: ranks * k * samples,   # samples
        lambda ranks, k, samples, tokens: k * samples * tokens,  # this rank's
        lambda ranks, k, samples, tokens: ranks * samples * tokens),  # one micro-batch
    8: (lambda ranks, samples: (ranks - 1) * samples,
        lambda ranks, samples: ranks - 1,                        # ranks, not samples
        lambda ranks, samples: samples,                          # one rank's
        lambda ranks, samples: ranks * samples),                 # --join initial
    9: (lambda ranks, mb: 2 * (ranks - 1) / ranks * mb,
        lambda ranks, mb: (ranks - 1) / ranks * mb,              # the reduce-scatter alone
        lambda ranks, mb: mb,                                    # the buffer once
        lambda ranks, mb: 2 * (ranks - 1) * mb),                 # what all ranks send together
    10: (lambda _, ms, rate, count, mb: count * 2 * ms + mb / rate * 1000,
         lambda _, ms, rate, count, mb: mb / rate * 1000,        # no latency
         lambda _, ms, rate, count, mb: 2 * ms + mb / rate * 1000,  # latency once
         lambda _, ms, rate, count, mb: count * ms + mb / rate * 1000),  # one message for each all-reduce
    11: (lambda *kb: plan(*kb)[1],
         lambda *kb: plan(*kb)[0],                               # the last one forgotten
         plan_that_never_exceeds,
         lambda *kb: len(kb) - 2),                               # one for each gradient
    16: (wait,
         lambda count, *times: 0,                                # everything hidden
         lambda count, *times: times[-1],                        # only the last bucket
         lambda count, *times: count * times[-1]),               # nothing hidden
    20: (lambda step, flight, exposed: 100 * (1 - exposed / flight),
         lambda step, flight, exposed: 100 * exposed / step,     # share of communication
         lambda step, flight, exposed: 100 * exposed / flight,   # exposed fraction
         lambda step, flight, exposed: 100 * (1 - exposed / step)),
    23: (lambda mb, _, k: mb / 2,
         lambda mb, _, k: mb,                                    # float32
         lambda mb, _, k: k * mb / 2,                            # every micro-batch, as stage 3
         lambda mb, _, k: k * mb),
    24: (lambda ranks, gradient, k: gradient * summed_again(ranks, k),
         lambda ranks, gradient, k: ranks * gradient,            # the last micro-batch alone
         lambda ranks, gradient, k: ranks * k * gradient,        # the right sum
         lambda ranks, gradient, k: ranks * k * gradient * ranks),  # all of it summed once more
    27: (lambda scale, skipped: scale / 2 ** skipped,
         lambda scale, skipped: scale / 2 ** (skipped - 1),   # one halving too few
         lambda scale, skipped: round(scale / skipped),       # divided by the number of steps
         lambda scale, skipped: scale),                       # never halved
    28: (lambda millions, ranks, _: millions * (4 + 12 / ranks),
         lambda millions, ranks, _: millions * 16 / ranks,       # level 3
         lambda millions, ranks, _: millions * (8 + 8 / ranks),  # level 1
         lambda millions, ranks, _: millions * 16),              # stage 4
    29: (lambda ranks, mb, _: 3 * (ranks - 1) / ranks * mb,
         lambda ranks, mb, _: (ranks - 1) / ranks * mb,          # the reduce-scatter alone
         lambda ranks, mb, _: 2 * (ranks - 1) / ranks * mb,      # stage 4, levels 1 and 2
         lambda ranks, mb, _: 3 * mb),                           # without (N-1)/N
    31: (lambda ranks, _: math.ceil(math.log2(ranks)),
         lambda ranks, _: ranks - 1,                             # the root sends to each
         lambda ranks, _: math.floor(math.log2(ranks)),          # rounded down
         lambda ranks, _: 1),                                    # along a chain
    33: (lambda ranks: 2 * math.floor(math.log2(ranks)) + 2,
         lambda ranks: 2 * ranks,                                # two for each rank
         lambda ranks: 2 * math.floor(math.log2(ranks)),         # without the rank beyond
         lambda ranks: 2 * (ranks - 1)),                         # a ring's
}


def numbers(text):
    """The numbers of a text; not those in words such as float32, fp16, or K-1."""
    return [float(n) if "." in n else int(n) for n in re.findall(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w.]*\w)", text)]


def questions(text):
    """number -> (text, {letter: option})"""
    found = {}
    for number, body in re.findall(r"^\*\*(\d+)\.\*\* (.*?)(?=^\*\*\d+\.\*\* |^## |\Z)", text, re.M | re.S):
        options = dict(re.findall(r"^- ([A-Z]): (.+)$", body, re.M))
        if int(number) in found:
            raise SystemExit(f"quiz.md has question {number} twice")
        found[int(number)] = (body.split("\n\n")[0], options)
    return found


def main():
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent
    quiz = questions((directory / "quiz.md").read_text())
    keys = re.findall(r"^\*\*(\d+): ([A-Z])\.\*\* (.*?)(?=^\*\*\d+: |^## |\Z)",
                      (directory / "quiz_key.md").read_text(), re.M | re.S)
    wrong = []
    if sorted(quiz) != list(range(1, 35)):
        wrong.append(f"the questions are {sorted(quiz)}, not 1 to 34")
    if [int(number) for number, _, _ in keys] != sorted(quiz):
        wrong.append("quiz_key.md has not one key for each question, in their order")
    for number, letter, reason in keys:
        text, options = quiz.get(int(number), ("", {}))
        if sorted(options) != list("ABCD") or len(set(options.values())) != 4:
            wrong.append(f"question {number} has not four different options A to D")
        explained = set("".join(re.findall(r"\b([A-D](?:, [A-D])*(?: and [A-D])?):", reason))) | {letter}
        for other in sorted(set(options) - explained):
            wrong.append(f"quiz_key.md does not say why option {other} of question {number} tempts")
        if letter not in options or int(number) not in FORMULAS:
            continue
        try:
            right, *mistakes = [formula(*numbers(text)) for formula in FORMULAS[int(number)]]
        except (TypeError, IndexError) as error:
            wrong.append(f"question {number}: its numbers {numbers(text)} do not fit its formulas: {error}")
            continue
        shown = {name: numbers(option)[0] for name, option in options.items()}
        print(f"question {number}: {right:g} from {numbers(text)}, key {letter}: {options[letter]}")
        if shown[letter] != right:
            wrong.append(f"question {number}: the key says {shown[letter]:g}, computed is {right:g}")
        if sorted(shown.values()) != sorted([right, *mistakes]):
            wrong.append(f"question {number}: the options are {sorted(shown.values())}, "
                         f"computed are {sorted([right, *mistakes])}")
    for line in wrong:
        print(f"FAIL: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
