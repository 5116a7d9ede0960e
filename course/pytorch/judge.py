#!/usr/bin/env python3
"""Judges a student's PyTorch class: python judge.py FILE.py:CLASS [--stage NAME] [--json FILE]; see README.md."""
import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before PyTorch is imported: threads for GPUs would not survive a fork

import checks  # noqa: E402
import stages  # noqa: E402

HANG = 150  # seconds until a case that has not ended is called hung; every call between ranks is compared before that


def run_ranks(context, path, name, case):
    """The texts that all ranks have sent, or None for those that have sent nothing."""
    with tempfile.TemporaryDirectory() as directory:
        ranks, pipes = [], []
        for rank in range(case["ranks"]):
            mine, theirs = context.Pipe()
            arguments = (path, name, case, rank, f"{directory}/store", theirs)
            ranks.append(context.Process(target=stages.main, args=arguments, daemon=True))
            ranks[-1].start()
            theirs.close()  # so that a rank's end is seen
            pipes.append(mine)
        texts, limit = [None] * case["ranks"], time.monotonic() + HANG
        open_ones = {mine: rank for rank, mine in enumerate(pipes)}
        while open_ones and time.monotonic() < limit:
            for mine in wait(list(open_ones), timeout=1):
                rank = open_ones.pop(mine)
                try:
                    texts[rank] = json.loads(mine.recv_bytes())
                except (EOFError, OSError, ValueError):
                    texts[rank] = {"error": f"rank {rank} has ended before its work was done", "kind": "ended"}
                if texts[rank]["error"]:  # the others wait for it in a collective: they get a moment
                    limit = min(limit, time.monotonic() + 3)
        for process, mine in zip(ranks, pipes):
            process.kill()  # all have sent what they have to say
            process.join()
            mine.close()
        return texts


def judge_case(context, path, name, case):
    """The checks that have failed, each with a message."""
    texts = run_ranks(context, path, name, case)
    told = [t for t in texts if t and t["error"]]
    told.sort(key=lambda text: ("usage", "ended", "differ", "raised").index(text["kind"]))
    if told:
        message = told[0]["error"]
        if told[0]["kind"] == "differ":
            message = (f"the ranks call different collectives: {message}. Usual causes: buckets launched as they "
                       "become ready, in another order on each rank; or a call that only some ranks make")
        return [(check, f"{case['name']}: {message}") for check in case["checks"]]
    if None in texts:
        return [(check, f"{case['name']}: hangs: rank {texts.index(None)} has not ended") for check in case["checks"]]
    try:
        return [(check, f"{case['name']}: {text}") for check, text in getattr(checks, case["run"])(case, texts)]
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, StopIteration) as error:
        message = f"{case['name']}: what the ranks sent cannot be judged ({type(error).__name__}: {error})"
        return [(check, message) for check in case["checks"]]


def judge(path, name, stage, only=None):
    """The result, in the form of course/grade.sh --json."""
    begin = time.monotonic()
    context = multiprocessing.get_context("fork")  # PyTorch is imported once, here; the student's file on ranks only
    failed, seen = {}, set()
    for case in stages.cases(stage):
        if only is None or only & set(case["checks"]):
            seen |= set(case["checks"])
            for check, message in judge_case(context, path, name, case):
                failed.setdefault(check, message)
    items = []
    for points, names, idea, read in stages.POINTS[stage]:
        messages = [failed[n] for n in names if n in failed] + [f"{n} was not tried" for n in names if n not in seen]
        items.append({"points": 0 if messages else points, "of": points, "idea": idea, "passed": not messages,
                      "message": messages[0] if messages else "", "read": read, "checks": names})
    return {"stage": f"pytorch_{stage}", "submission": f"{path}:{name}", "seconds": round(time.monotonic() - begin, 1),
            "built": True, "errors": "", "points": sum(i["points"] for i in items), "of": sum(i["of"] for i in items),
            "items": items, "failed": failed}


def table(result):
    for number, item in enumerate(result["items"], 1):
        verdict = "passed" if item["passed"] else "FAILED"
        print(f"{number:3} {item['points']:4}/{item['of']:3}  {verdict}  {item['idea']}")
        if not item["passed"]:
            print(f"                      {item['message']}\n                      Read: {item['read']}")
    print(f"{result['points']} of {result['of']} points, {result['seconds']:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("submission", metavar="FILE.py:CLASS")
    parser.add_argument("--stage", choices=list(stages.POINTS), help="what is judged (default: as the class is named)")
    parser.add_argument("--json", help="writes the result, as grade.sh does; course/results.py reads it")
    arguments = parser.parse_args()
    path, _, name = arguments.submission.rpartition(":")
    if not Path(path).is_file():
        parser.error(f"there is no file '{path}': give FILE.py:CLASS")
    stage = arguments.stage or stages.guess(name) or parser.error(f"--stage: the name '{name}' does not say it")
    result = judge(os.path.abspath(path), name, stage)
    table(result)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
