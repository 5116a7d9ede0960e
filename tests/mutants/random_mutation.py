"""random_mutation.py: tries random mistakes in common/ and train/ against the tests. random.sh has prepared the directory:

    tree/                      the source, which is never edited
    plain/ address/ thread/    built from it: without a sanitizer, and with one
    entered/                   built so that it writes down which functions a test enters (entered.c)

A mutant is one object compiled anew, and the programs of the tests that enter the changed function, linked with it.
"""
import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter, defaultdict
from pathlib import Path

import mutations
from mutant_builds import Build, Stopped, Worker, running

WORKERS = 2
ROOMS = ["common", "train"]
# What is neither communication nor buckets does the same on 3 ranks and more as on 2, and in stages 2 and 3 as in 1 or 4.
ABOUT_RANKS = ("common/comm/", "common/ddp/")
MORE_OF_THE_SAME = re.compile(r".*_[3-9]_ranks|stage[23]_.*|bits")
# First come the quickest tests, QUICK_SECONDS of them, then the same under the sanitizers, then OTHER_SECONDS of others:
# what has survived until then seldom dies later.
QUICK_SECONDS, OTHER_SECONDS = 30, 60
SHOWN = {"killed": "killed", "address": "killed under the address sanitizer", "thread": "killed under the thread "
         "sanitizer", "SURVIVED": "survived", "equal": "same object code, another one was drawn",
         "uncompilable": "did not compile, another one was drawn"}


def in_parallel(workers, items, function):
    """function(worker, item) for all items, on as many threads as there are workers."""
    items, lock, errors = iter(items), threading.Lock(), []

    def work(worker):
        while not errors:
            with lock:
                item = next(items, None)
            if item is None:
                return
            try:
                function(worker, item)
            except BaseException as error:  # Stopped, too
                errors.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# ---- what is measured once: how long each test takes, and what it enters ----


def measure(work):
    """test -> its seconds, and for each program that it runs the functions that it enters: [[path, number], ...]"""
    build = Build(work, "entered")
    seconds, marks = {}, {}

    def note(worker, test):
        directory = worker.home / "marks"
        directory.mkdir()
        _, seconds[test] = worker.run(test, 1800, {"ENTERED_DIRECTORY": str(directory)})
        marks[test] = {file.name.replace("!", "/").removeprefix(f"{worker.programs}/"):
                       [i for i, byte in enumerate(file.read_bytes()) if byte] for file in directory.iterdir()}
        shutil.rmtree(directory)
        print(f"{len(marks):4} of {len(build.tests)} tests of the unchanged tree: {test}", flush=True)

    in_parallel([Worker(build, number) for number in range(WORKERS)], build.tests, note)
    addresses = defaultdict(set)
    for programs in marks.values():
        for program, entered in programs.items():
            addresses[program].update(entered)
    names = {program: name_functions(work, build.directory / program, sorted(entered))
             for program, entered in addresses.items()}
    return {test: {"seconds": seconds[test],
                   "programs": {program: sorted({names[program][a] for a in entered if a in names[program]})
                                for program, entered in programs.items()}} for test, programs in marks.items()}


def name_functions(work, program, addresses):
    """address -> (path, number of the function in the file), for functions of common/ and train/."""
    lines = subprocess.run(["addr2line", "-e", str(program)], input="\n".join(map(hex, addresses)), check=True,
                           text=True, stdout=subprocess.PIPE).stdout.splitlines()
    found = {}
    for address, place in zip(addresses, lines):
        match = re.match(rf"{re.escape(str(work / 'tree'))}/((?:common|train)/[^:]*):(\d+)", place)
        if match:
            text = (work / "tree" / match.group(1)).read_text()
            ends = [text.count("\n", 0, end) for _, end in mutations.function_bodies(mutations.mask(text))]
            found[address] = (match.group(1), sum(end < int(match.group(2)) for end in ends))
    return found


# ---- mutants ----


class Trial:
    """All that judging a mutant needs: the builds, their tests' times, and what they enter."""

    def __init__(self, work):
        self.builds = [Build(work, name) for name in ("plain", "address", "thread")]
        self.workers = [{build.name: Worker(build, number) for build in self.builds} for number in range(WORKERS)]
        measured = work / "measured.json"
        if not measured.exists():
            measured.write_text(json.dumps(measure(work), indent=1))
        self.measured = json.loads(measured.read_text())
        self.kills = defaultdict(Counter)  # path -> test -> mutants of that file that it has killed
        self.fails_unchanged = {}  # (build, test) -> whether it does, where that was asked
        self.lock = threading.Lock()

    def programs(self, test, mutation):
        return [program for program, functions in self.measured[test]["programs"].items()
                if [mutation.path, mutation.function] in functions]

    def in_order(self, build, mutation):
        """The tests that enter the changed function, the best buy first: likely to kill it, and quick."""
        kills = self.kills[mutation.path]
        seconds = {test: self.measured[test]["seconds"] for test in self.measured
                   if test in build.tests and self.programs(test, mutation) and
                   (mutation.path.startswith(ABOUT_RANKS) or not MORE_OF_THE_SAME.fullmatch(test))}
        return sorted(seconds, key=lambda test: (seconds[test] + 0.1) / (kills[test] + 0.3))

    def quick_and_others(self, tests):
        parts = []
        for limit in (QUICK_SECONDS, OTHER_SECONDS):
            count, total = 0, 0
            while count < len(tests) and total < limit:
                total += self.measured[tests[count]]["seconds"]
                count += 1
            parts.append(tests[:count])
            tests = tests[count:]
        return parts

    def fails(self, worker, test):
        """A test of several processes must fail twice, as it may have failed because the machine was busy."""
        factor, extra = (5, 5) if worker.build.name == "plain" else (20, 30)
        busy = max(1, os.getloadavg()[0] / os.cpu_count())  # with other work beside this one, all takes longer
        limit = (factor * self.measured[test]["seconds"] + extra) * busy
        tries = 1 if worker.build.tests[test]["one process"] else 2
        return not any(worker.run(test, limit)[0] for _ in range(tries))

    def fails_anyway(self, worker, test):
        """A failure counts only where the unchanged programs pass."""
        key = (worker.build.name, test)
        if key not in self.fails_unchanged:
            worker.restore_programs()
            self.fails_unchanged[key] = self.fails(worker, test)
            if self.fails_unchanged[key]:
                print(f"left out, as the unchanged tree fails it: {test} ({worker.build.name})", flush=True)
        return self.fails_unchanged[key]

    def killer(self, worker, mutation, others):
        """The first of the quick tests that fails, or of the others, or None."""
        for test in self.quick_and_others(self.in_order(worker.build, mutation))[others]:
            for program in self.programs(test, mutation):
                worker.link(program)
            if self.fails(worker, test) and not self.fails_anyway(worker, test):
                with self.lock:
                    self.kills[mutation.path][test] += 1
                return test
        return None

    def judge(self, workers, mutation):
        """(verdict, test)"""
        for name, others in (("plain", False), ("address", False), ("thread", False), ("plain", True)):
            worker = workers[name]
            try:
                verdict = worker.compile(mutation)
                if verdict == "equal" and name != "plain":
                    continue
                if verdict:
                    return verdict, ""
                test = self.killer(worker, mutation, others)
                if test:
                    return "killed" if name == "plain" else name, test
            finally:
                worker.clear()
        return "SURVIVED", ""


class Results:
    """A line per mutant in a file, so that a run that was interrupted goes on where it was."""

    def __init__(self, path, again):
        self.path, self.lock, self.rows = path, threading.Lock(), {}
        for line in path.read_text().splitlines() if path.exists() else []:
            row = line.split("\t")
            if not (again and row[1] == "SURVIVED"):
                self.rows[int(row[0])] = row[1:]
        if again:
            path.write_text("".join("\t".join([str(i)] + row) + "\n" for i, row in self.rows.items()))

    def add(self, index, row):
        with self.lock:
            self.rows[index] = row
            with open(self.path, "a") as file:
                file.write("\t".join([str(index)] + row) + "\n")

    def tried(self):
        return sum(row[0] not in ("equal", "uncompilable") for row in self.rows.values())


def row_of(work, mutation, verdict, test, seconds):
    line, before, after = mutations.describe((work / "tree" / mutation.path).read_text(), mutation)
    return [verdict, f"{mutation.path}:{line}", mutation.operator, test, f"{seconds:.1f}", before, after]


def try_mutants(trial, work, seed, rooms, count, results):
    def wanted():
        for index, mutation in enumerate(mutations.draw(work / "tree", seed, rooms)):
            if index not in results.rows:
                if results.tried() >= count:
                    return
                yield index, mutation

    def one(workers, item):
        index, mutation = item
        begin = time.monotonic()
        verdict, test = trial.judge(workers, mutation)
        row = row_of(work, mutation, verdict, test, time.monotonic() - begin)
        results.add(index, row)
        print(f"{results.tried():4} {row[0]:13} {row[1]:44} {row[2]:18} {row[4]:>6} s  {row[3]}", flush=True)

    for row in results.rows.values():
        trial.kills[row[1].split(":")[0]][row[3]] += 1
    in_parallel(trial.workers, wanted(), one)


def report(seed, rooms, results):
    tally = Counter(row[0] for row in results.rows.values())
    tried = results.tried()
    print(f"\nseed {seed}, {' and '.join(rooms)}: {tried} mutants, {100 * (tried - tally['SURVIVED']) / max(tried, 1):.1f} % killed")
    for verdict, text in SHOWN.items():
        print(f"{tally[verdict]:6} {text}")
    for row in results.rows.values():
        if row[0] == "SURVIVED":
            print(f"\nsurvived: {row[1]} ({row[2]})\n    - {row[5]}\n    + {row[6]}")


def check(trial, rounds):
    """How often would a mutant that changes nothing be called killed?"""
    failed = []

    def one(workers, test):
        if trial.fails(workers["plain"], test):
            print(f"{test} fails", flush=True)
            failed.append(test)

    for _ in range(rounds):
        in_parallel(trial.workers, trial.measured, one)
    print(f"{rounds * len(trial.measured)} tests of the unchanged tree, {len(failed)} failed: so often would a mutant "
          "that changes nothing have been called killed")


def main():
    parser = argparse.ArgumentParser(prog="random.sh", description="How many random mistakes in common/ and train/ do the tests "
                                     "notice? README.md says what is tried.")
    parser.add_argument("--work", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help="which mutants (default: 1)")
    parser.add_argument("--room", choices=ROOMS, help="only mistakes in this directory (default: in both)")
    parser.add_argument("--count", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--again", action="store_true", help="try those again that survived: the tests have changed")
    parser.add_argument("--check", type=int, metavar="N", help="run the tests N times without any change instead: what "
                        "fails then would be counted as killed")
    arguments = parser.parse_args()
    work = Path(arguments.work).resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    rooms = [arguments.room] if arguments.room else ROOMS
    results = Results(work / f"results-{'-'.join(rooms)}-{arguments.seed}.tsv", arguments.again)

    def run():
        trial = Trial(work)
        if arguments.check:
            check(trial, arguments.check)
        else:
            try_mutants(trial, work, arguments.seed, rooms, arguments.count, results)

    outcome = []
    thread = threading.Thread(target=lambda: outcome.append(attempt(run)))
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        running.stop()
        thread.join()
        print("\nstopped; the same command goes on from here", file=sys.stderr)
    if not arguments.check:
        report(arguments.seed, rooms, results)
    return 130 if running.stopped else outcome[0]


def attempt(function):
    """The exit status: 1 where the function could not go on."""
    try:
        function()
        return 0
    except Stopped:
        return 130
    except SystemExit as error:
        print(error, file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return 1


if __name__ == "__main__":
    sys.exit(main())
