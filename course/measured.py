#!/usr/bin/env python3
"""Says which figures of a student's answers to course/measured.md cannot be true.

    course/measured.py FILE

A figure must lie in the interval that follows from the others, from the model or from the link. Prints a line for each
figure that does not, and for each that is missing. Whether the sentence after `why` is right is for a person to say.
Exit status 0: all can be true. 1: some cannot. 2: wrong usage, or FILE cannot be read.
"""
import math
import sys

ENDLESS = math.inf
FIGURES = {  # by exercise: what an answer has
    1: "ranks parameters all_reduces mb_per_step in_flight_ms exposed_ms step_ms latency_ms".split(),
    2: "ranks batch samples_per_s_1 samples_per_s step_ms exposed_ms speed_up".split(),
    3: "ranks parameters mb_per_step all_reduces_many exposed_many_ms all_reduces_few exposed_few_ms saved_ms".split(),
    4: "parameters mb_per_step wire_mb_2 wire_mb_3 wire_mb_4".split(),
    5: "ranks parameters all_reduces mb_per_step backward_ms in_flight_ms exposed_ms hidden_percent step_ms".split(),
    6: "parameters all_reduces_1 mb_1 all_reduces_4 mb_4 mb_bf16".split(),
    7: ["ranks", "parameters"] + [f"{what}_mb_{n}" for what in ("weights", "gradients", "optimizer") for n in "123"],
    8: "ranks ring_short_us ring_long_us alpha_us beta_us_per_mb predicted_kb ring_faster_from_kb".split(),
}


def about(value, percent, more=0.0):
    """Gaps between gradients, rounded output and noise make figures differ by some percent."""
    return value * (1 - percent / 100) - more, value * (1 + percent / 100) + more


def ring_ms(a, all_reduces, latency_ms):
    """What a ring needs over a link of 1 Gbit/s, for a step's bytes and for the latency of its messages."""
    return a["mb_per_step"] * 8 * 2 * (a["ranks"] - 1) / a["ranks"] + all_reduces * 2 * (a["ranks"] - 1) * latency_ms


LONG_MB = 1048576 * 4 / 1e6  # of exercise 8


def crossover_kb(a):
    """From which buffer on a ring is faster than halving-doubling, on 5 to 7 ranks: with P = 4, that folds N - 4 in."""
    n = a["ranks"]
    latencies = 2 * (n - 1) - (2 * 2 + 2)
    buffers = 2 * 3 / 4 + 2 - 2 * (n - 1) / n
    return latencies * a["alpha_us"] / (buffers * a["beta_us_per_mb"]) * 1e3


# (exercises, figure, its least and largest value from the answer's other figures, why)
RULES = [
    ((1, 2, 3, 5, 7), "ranks", lambda a: (2, ENDLESS), "one rank sends nothing"),
    ((1, 3, 4, 6), "parameters", lambda a: (669706, 669706), "the weights and biases of 784-512-512-10"),
    ((5, 7), "parameters", lambda a: (3257856, 3257856), "the GPT's, as the run's first lines say"),
    ((1, 3, 4, 5), "mb_per_step", lambda a: about(4e-6 * a["parameters"], 1), "4 bytes for each parameter"),
    ((1,), "all_reduces", lambda a: (6, 6), "one for each of 3 weights and 3 biases"),
    ((1,), "latency_ms", lambda a: about(a["all_reduces"] * 2 * (a["ranks"] - 1), 1),
     "an all-reduce over a ring is 2 (N-1) messages of 1 ms"),
    ((1,), "in_flight_ms", lambda a: (0.95 * ring_ms(a, a["all_reduces"], 1), ENDLESS),
     "the link needs this long for these bytes and messages"),
    ((1,), "exposed_ms", lambda a: (0.9 * a["in_flight_ms"], ENDLESS), "stage 1 hides nothing of what is in flight"),
    ((1, 5), "exposed_ms", lambda a: (0, 1.05 * a["in_flight_ms"] + 0.1), "training waits only for what is in flight"),
    ((1, 2), "step_ms", lambda a: (0.9 * a["exposed_ms"], ENDLESS), "the exposed time is a part of the step"),
    ((2,), "speed_up", lambda a: about(a["samples_per_s"] / a["samples_per_s_1"], 2, 0.01),
     "samples_per_s / samples_per_s_1"),
    ((2,), "speed_up", lambda a: (0, 1.1 * a["ranks"]), "N ranks do not compute more than N times as fast as one"),
    ((2,), "samples_per_s", lambda a: about(1e3 * a["batch"] / a["step_ms"], 35), "batch / step_ms"),
    ((3,), "all_reduces_many", lambda a: (6, 6), "one for each of 3 weights and 3 biases"),
    ((3,), "all_reduces_few", lambda a: (1, 1), "with these caps all gradients fit into one bucket"),
    ((3,), "saved_ms", lambda a: about(a["exposed_many_ms"] - a["exposed_few_ms"], 2, 0.1), "many less few"),
    ((5,), "in_flight_ms", lambda a: (0.95 * ring_ms(a, a["all_reduces"], 0.05), ENDLESS),
     "the link needs this long for these bytes and messages"),
    ((5,), "exposed_ms", lambda a: (a["in_flight_ms"] - 1.1 * a["backward_ms"], ENDLESS),
     "only backward can hide what is in flight"),
    ((5,), "hidden_percent", lambda a: about(100 * (1 - a["exposed_ms"] / a["in_flight_ms"]), 0, 3),
     "hidden + exposed = in flight"),
    ((5,), "step_ms", lambda a: (0.9 * (a["backward_ms"] + a["exposed_ms"]), ENDLESS),
     "a step is at least backward and what is exposed"),
    ((6,), "all_reduces_4", lambda a: (a["all_reduces_1"],) * 2, "a step is synchronised once"),
    ((6,), "mb_1", lambda a: about(4e-6 * a["parameters"], 1), "4 bytes for each parameter"),
    ((6,), "mb_4", lambda a: about(a["mb_1"], 1), "a step is synchronised once"),
    ((6,), "mb_bf16", lambda a: about(a["mb_4"] / 2, 1), "2 bytes instead of 4"),
    ((8,), "ranks", lambda a: (5, 7), "on 4 and 8 ranks nobody is beyond the power of two"),
    ((8,), "ring_long_us", lambda a: (1.05 * a["ring_short_us"], ENDLESS), "65536 times as many bytes take longer"),
    ((8,), "alpha_us", lambda a: about(a["ring_short_us"] / (2 * (a["ranks"] - 1)), 2),
     "the short one's time is that of 2 (N-1) latencies"),
    ((8,), "beta_us_per_mb", lambda a: about((a["ring_long_us"] - a["ring_short_us"]) /
                                             (2 * (a["ranks"] - 1) / a["ranks"] * LONG_MB), 2),
     "what the long one takes more is for 2 (N-1)/N of its 4.19 MB"),
    ((8,), "predicted_kb", lambda a: about(crossover_kb(a), 3), "where both formulas give the same time"),
    ((8,), "ring_faster_from_kb", lambda a: (0, 16778), "the sizes of the table, or 0 for none"),
] + [((3,), f"exposed_{what}_ms", lambda a, what=what: (0.95 * ring_ms(a, a[f"all_reduces_{what}"], 1), ENDLESS),
      "the link needs this long, and stage 2 hides nothing") for what in ("many", "few")
] + [((4,), f"wire_mb_{n}", lambda a, n=n: about(a["mb_per_step"] * 2 * (n - 1) / n, 1),
      "a ring sends 2 (N-1)/N of the bytes") for n in (2, 3, 4)
] + [((7,), f"{what}_mb_{level}", lambda a, size=size, divided=level >= least:
      about(size * a["parameters"] / (a["ranks"] if divided else 1), 2),
      f"{size * 1e6:.0f} bytes for each parameter" + (", divided by N" if level >= least else ", on every rank"))
     for what, size, least in (("weights", 4e-6, 3), ("gradients", 4e-6, 2), ("optimizer", 8e-6, 1))
     for level in (1, 2, 3)]


def is_number(text):
    try:
        return 0 <= float(text) < ENDLESS
    except ValueError:
        return False


def mistake(answers, key, value):
    """What is wrong with a line, or None. It belongs to the exercise that was begun last."""
    exercise = next(reversed(answers), None)
    if key == "exercise":
        twice = f"exercise {value} is given twice" if value in map(str, answers) else None
        return twice if value in map(str, FIGURES) else "expected 'exercise: 1' (to 8)"
    if exercise is None:
        return "expected 'exercise: 1' (to 8) before it"
    names = [*FIGURES[exercise], "why"]
    if key not in names:
        return f"exercise {exercise} has no '{key}'; it has {', '.join(names)}"
    if key in answers[exercise]:
        return f"{key} is given twice in exercise {exercise}"
    return None if key == "why" or is_number(value) else "expected a number without a unit, such as 12.5"


def read(path):
    """The answers by exercise: their figures, and "why"."""
    answers = {}
    for number, line in enumerate(open(path, encoding="utf-8-sig"), 1):
        key, _, value = (part.strip() for part in line.partition(":"))
        if not key or key.startswith("#"):
            continue
        wrong = mistake(answers, key, value)
        if wrong:
            raise ValueError(f"line {number}, '{line.strip()[:60]}': {wrong}")
        if key == "exercise":
            answer = answers[int(value)] = {}
        else:
            answer[key] = value if key == "why" else float(value)
    if not answers:
        raise ValueError("no line begins an exercise: expected 'exercise: 1' (to 8)")
    return answers


def complaints(exercise, answer):
    """A line for each figure that cannot be true, or is missing."""
    missing = [name for name in FIGURES[exercise] if name not in answer]
    if missing or len(answer.get("why", "").split()) < 5:
        yield "missing: " + ", ".join(missing or ["a sentence after why:"])
    for exercises, name, interval, why in RULES:
        if exercise in exercises and not missing:
            try:
                low, high = interval(answer)
            except ZeroDivisionError:
                low, high = ENDLESS, ENDLESS
            if not low <= answer[name] <= high:
                expected = f"{low:.6g} to {high:.6g}" if high < ENDLESS else f"at least {low:.6g}"
                yield f"{name} is {answer[name]:.6g}, expected {expected}: {why}"


if __name__ == "__main__":
    try:
        if len(sys.argv) != 2:
            raise ValueError("one file is needed")
        answers = read(sys.argv[1])
    except (ValueError, OSError) as error:
        print(f"measured: error: {error}\nusage: course/measured.py FILE", file=sys.stderr)
        sys.exit(2)
    found = [f"exercise {number}: {text}" for number in answers for text in complaints(number, answers[number])]
    print(*found, f"{len(answers)} exercise(s), {len(found)} complaint(s)", sep="\n")
    sys.exit(found != [])
