#!/usr/bin/env python3
"""Judges a student's PyTorch class: python judge.py FILE.py:CLASS [--stage NAME] [--json FILE]; see README.md."""
import argparse
import ctypes
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before PyTorch is imported: threads for GPUs would not survive a fork

import checks  # noqa: E402
import stages  # noqa: E402

SILENT, AGAIN = 45, 15  # seconds without a collective until a case is called hung, and once one has hung before
TOTAL = 400  # seconds for all cases of a class: those that are left are not tried


def children():
    return {int(pid) for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def end(ranks, others):
    """Ends the ranks with all processes that they have started, also those that have left the rank's group."""
    for process in ranks:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
    for _ in range(20):  # a process that ends may leave others to the judge
        for pid in children() - others:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def hear(ranks, pipes, silent, last):
    """What each rank has sent; None: nothing. An empty message says that a rank goes on."""
    texts, limit = [None] * len(ranks), time.monotonic() + silent
    while None in texts and time.monotonic() < min(limit, last):
        ready = wait([mine for mine, text in zip(pipes, texts) if text is None], timeout=0.5)
        for rank, mine in enumerate(pipes):
            # A rank that has ended may have left its end of the pipe to a process that it has started.
            if texts[rank] is None and (mine in ready or not ranks[rank].is_alive() and not mine.poll()):
                try:
                    sent = mine.recv_bytes(2**28) if mine in ready else "nothing"
                    limit, texts[rank] = time.monotonic() + silent, json.loads(sent) if sent else None
                except (EOFError, OSError, ValueError):
                    texts[rank] = {"error": f"rank {rank} has ended before its work was done", "kind": "ended"}
                if texts[rank] and texts[rank]["error"]:  # the others wait for it in a collective: they get a moment
                    last = min(last, time.monotonic() + 3)
    return texts


def run_ranks(context, path, name, case, silent, last):
    """What all ranks have sent; for those that have sent nothing in time, where they are."""
    others, ranks, pipes = children(), [], []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        try:
            for rank in range(case["ranks"]):
                mine, theirs = context.Pipe()
                arguments = (path, name, case | {"silent": silent}, rank, directory, theirs)
                ranks.append(context.Process(target=stages.main, args=arguments, daemon=True))
                ranks[-1].start()
                theirs.close()  # so that a rank's end is seen
                pipes.append(mine)
            texts = hear(ranks, pipes, silent, last)
        finally:
            end(ranks, others)  # all have sent what they have to say
        for rank in [rank for rank, text in enumerate(texts) if text is None]:
            trace = Path(directory, f"hangs{rank}").read_text().split("Thread ")[-1]  # the main thread comes last
            lines = re.findall(rf'File "{re.escape(path)}", (line \d+)', trace) or ["not in this file"]
            texts[rank] = {"error": f"rank {rank} hangs, {lines[0]}", "kind": "hangs"}
        return texts


def judge_case(context, path, name, case, silent, last):
    """The checks that have failed, each with a message."""
    texts = run_ranks(context, path, name, case, silent, last)
    told = [t for t in texts if t["error"]]
    told.sort(key=lambda text: ("usage", "ended", "differ", "raised", "hangs").index(text["kind"]))
    if told:
        message = told[0]["error"]
        if told[0]["kind"] == "hangs":
            message = "; ".join(t["error"] for t in told) + f": no collective for {silent} s"
            message = message if time.monotonic() < last else f"not over when all cases' {TOTAL} s were: too slow?"
        if told[0]["kind"] == "differ":
            message = (f"the ranks call different collectives: {message}. Usual causes: buckets launched as they "
                       "become ready, in another order on each rank; or a call that only some ranks make")
        return [(check, f"{case['name']}: {message}") for check in case["checks"]]
    try:
        return [(check, f"{case['name']}: {text}") for check, text in getattr(checks, case["run"])(case, texts)]
    except Exception as error:  # noqa: BLE001 (a class may have made the ranks send anything)
        message = f"{case['name']}: what the ranks sent cannot be judged ({type(error).__name__}: {error})"
        return [(check, message) for check in case["checks"]]


def judge(path, name, stage, only=None):
    """The result, in the form of course/grade.sh --json."""
    begin = time.monotonic()
    context = multiprocessing.get_context("fork")  # PyTorch is imported once, here; the student's file on ranks only
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: orphans of the ranks become the judge's children
    lines, failed, seen, silent = stages.table()[stage], {}, set(), SILENT  # read before a class can write there
    for case in stages.cases(stage):
        tried = set(case["checks"])
        if only is not None and not only & tried or tried <= set(failed) or time.monotonic() > begin + TOTAL:
            continue  # nothing would be learned, or no time is left
        seen |= tried
        for check, message in judge_case(context, path, name, case, silent, begin + TOTAL):
            silent = AGAIN if " hangs, " in message else silent
            failed.setdefault(check, message)
    items = []
    for points, names, idea, read in lines:
        messages = [failed.get(n, f"{n} was not tried: no time is left") for n in names if n in failed or n not in seen]
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
    parser.add_argument("--stage", choices=stages.STAGES, help="what is judged (default: as the class is named)")
    parser.add_argument("--json", help="writes the result, as grade.sh does; course/results.py reads it")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the ranks are ended, too
    path, _, name = arguments.submission.rpartition(":")
    if not Path(path).is_file():
        parser.error(f"there is no file '{path}': give FILE.py:CLASS")
    stage = arguments.stage or stages.guess(name) or parser.error(f"--stage: the name '{name}' does not say it")
    result = judge(os.path.abspath(path), name, stage)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2), encoding="utf-8")
    sys.stdout.reconfigure(errors="backslashreplace")  # a message may have any character
    table(result)


if __name__ == "__main__":
    sys.exit(main())
