"""Says why N ranks are not faster than one: measures the parts of a step, and names the first suspect.

    scripts/diagnose.sh [--json] [--ranks 2] [--program build/stage3_overlap/train] [--launch mpiexec] -- FLAG...

FLAGs: those of the slow run. --launch: what starts its ranks, e.g. "mpiexec -bind-to core:2"; "-n N" and the program
follow. Short runs take turns, in three to eight rounds; the median run of each kind counts. Under a minute, if a step
takes half a second. --figures FILE: no runs, decides again from what --json printed. Exit status: 0 it has named a
suspect, or there is none; 1 a run failed; 2 wrong usage; 3 it cannot tell, because it found none while other programs
used the cores.
"""
import argparse
import json
import math
import os
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COLLECTIVES = ROOT / "build/bench/collectives"

# All that decides: ratios of times that were measured in turns.
WORTH = 0.15  # the part of the step that a suspect costs at least (equal runs differ by less); of the cores, for others
APART = 1.3   # of two times that are equal without the cause; those of two sound ranks differed by up to 1.15
SMALL = 0.2   # a step with next to nothing to compute, to a rank's computing: no rank saves this; or to its loading
SAME = 0.5    # a part's time alone, to how long a step waits for it: if it is shorter, the wait has another cause

MESSAGES = 4000000, 40000000, 200000000  # bytes
SECONDS_OF_ROUNDS, SECONDS_OF_RUN, SECONDS_OF_MESSAGE = 30, 0.6, 4
FEWEST_ROUNDS, MOST_ROUNDS = 3, 8
CANNOT_TELL = 3  # exit status
BUCKET_FLAGS = ["--bucket-cap-mb", "--first-bucket-mb"]
OUR_FLAGS = ["--steps", "--epochs", "--eval-samples", "--json", "--trace", "--save", "--save-every", "--resume",
             "--verify", "--generate", "--check-every", "--flight-recorder", "--eval-every", "--save-best", "--log",
             "--log-every"]
TINY_MODEL = {"mlp": ["--hidden", "1,1"], "gpt": ["--layers", "1", "--heads", "1", "--width", "1"]}


# ---- measuring ----

def without(flags, names):
    """The flags without those named, and their values."""
    kept, drops = [], False
    for word in flags:
        drops = word.split("=")[0] in names if word.startswith("--") else drops
        kept += [] if drops else [word]
    return kept


def output_of(command):
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit("\n".join(["diagnose: this failed: " + shlex.join(command), *result.stderr.splitlines()[-5:]]))
    return result.stdout


class Runs:
    def __init__(self, arguments, directory):
        self.program, self.ranks, self.steps = arguments.program, arguments.ranks, 3
        self.launch = [*shlex.split(arguments.launch), "-n", str(arguments.ranks)]
        self.flags, self.file = without(arguments.flags, OUR_FLAGS), Path(directory, "file")
        if not COLLECTIVES.exists():
            sys.exit(f"diagnose: {COLLECTIVES} is missing: cmake --build {ROOT / 'build'} --target collectives")

    def train(self, ranks, *more, flags=None, before=()):
        """A run's summary, and its parts in ms. A rank's "own": what it waits neither for its loader nor for others."""
        command = [self.program, *(self.flags if flags is None else flags), *more, "--steps", str(self.steps),
                   "--eval-samples", str(ranks), "--json", str(self.file)]
        output_of([*before, *(self.launch if ranks > 1 else []), *command])
        run = json.loads(self.file.read_text())
        each = [{"own": rank["step_ms"] - rank["data_ms"] - rank["exposed_comm_ms"], "data": rank["data_ms"],
                 "exposed": rank["exposed_comm_ms"], "forward": rank["forward_ms"]} for rank in run["ranks"]]
        return run, {"step": run["step_ms"]["p50"], "forward": run["forward_ms"], "backward": run["backward_ms"],
                     "comm": run["comm_ms"], "buckets": run["buckets"], "ranks": each,
                     "exposed": min(rank["exposed"] for rank in each)}  # the other ranks may wait for a slow one

    def message(self, size, run):
        """ms of an all-reduce of `size` bytes, alone, as the run does it."""
        wire = run["flags"]["wire"]
        link = ["--wire", "{:.9g},{:.9g}".format(*wire)] if wire else []
        output_of([*self.launch, str(COLLECTIVES), "--sizes", str(size), "--algorithms",
                   run["allreduce"], "--samples", "3", "--budget", "0.3", "--csv", str(self.file), *link])
        return float(self.file.read_text().splitlines()[1].split(",")[6]) / 1e3

    def cores(self):
        """How many cores the ranks may run on, all together; how many their hosts have; how many a container's quota
        allows, or None."""
        ranks = []
        while len(ranks) < self.ranks:  # MPICH 4.0.2 at times loses what a program printed that is not MPI's
            shown = output_of([*self.launch, "python3", str(ROOT / "scripts/cores.py")]).splitlines()
            ranks = [line.split()[1:] for line in shown if line.startswith("cores ")]
        quota = sum({host: float(quota) for host, _, quota, *_ in ranks}.values())
        return (len({(host, core) for host, _, _, *cores in ranks for core in cores}),
                sum({host: int(count) for host, count, *_ in ranks}.values()), quota if math.isfinite(quota) else None)


def turns(runs, f, share, run):
    """The runs that take turns: name: (ranks, more flags, keywords). Beside the first four, remedies are tried."""
    tiny = (runs.ranks, TINY_MODEL[run["flags"]["model"][:3]], {"flags": without(runs.flags, ["--wire", "--norm"])})
    planned = {"one": (1, [], {}), "tiny": tiny, "share": (1, share, {}), "all": (runs.ranks, [], {})}
    if f["threads"] > 1 and runs.ranks * f["threads"] > f["cores_of_ranks"]:
        planned["fewer_threads"] = (runs.ranks, ["--threads", str(f["fewer"])], {})
    if without(runs.flags, BUCKET_FLAGS) != runs.flags:
        planned["chosen_buckets"] = (runs.ranks, [], {"flags": without(runs.flags, BUCKET_FLAGS)})
    if f["norm"] != "none":
        planned["no_norm"] = (runs.ranks, [], {"flags": without(runs.flags, ["--norm"])})
    if f["coretype"]:
        planned["best_kernel"] = (1, share, {"before": ["env", "-u", "OPENBLAS_CORETYPE"]})
    return planned


def median_run(runs):
    """Not the fastest: threads that share a core are lucky at times, and that is no reason to keep them."""
    return sorted(runs, key=lambda run: run["step"])[(len(runs) - 1) // 2]


def slowest_rank(rounds, stage, norm):
    """The rank that computes longest, and how much longer than the median of the others: the median of the rounds.
    Forward tells it, because backward may share its core with messages; but in stage 5 forward waits for gathers, and
    with --norm for statistics."""
    times = [[rank["forward" if stage < 5 and norm == "none" else "own"] for rank in one["all"]["ranks"]] for one in rounds]
    slow = max(range(len(times[0])), key=lambda rank: sum(t[rank] for t in times))
    ratio = statistics.median(t[slow] / statistics.median(t[:slow] + t[slow + 1:]) for t in times)
    return {"rank": slow, "ratio": ratio}


def busy_seconds():
    """Of all cores, without those of the runs. On Linux: user, nice, system, idle, iowait, irq, softirq, steal."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK") - ours.ru_utime - ours.ru_stime


def measure_communication(runs, run, f):
    f["alone"], rate = {}, f["wire"][0] * 1e6 / 8 if f["wire"] else 1e9  # bytes per ms, of the size before
    for size in MESSAGES:
        if 12 * size / rate < 1e3 * SECONDS_OF_MESSAGE:  # tools/bench/collectives calls it so often
            f["alone"][str(size)] = runs.message(size, run)
            rate = size / f["alone"][str(size)]
    nearest = min(f["alone"], key=lambda size: abs(int(size) - f["bytes"]), default=None)
    f["link"] = f["alone"][nearest] * f["bytes"] / int(nearest) if nearest else f["all"]["comm"]


def measure(runs):
    begin, busy = time.monotonic(), busy_seconds()
    run, first = runs.train(runs.ranks)
    cores_of_ranks, cores, quota = runs.cores()
    f = {"ranks": runs.ranks, "threads": run["flags"]["threads"], "cores": cores, "cores_of_ranks": cores_of_ranks,
         "quota": quota,
         "fewer": max(1, cores_of_ranks // runs.ranks), "coretype": os.environ.get("OPENBLAS_CORETYPE"),
         "stage": run["stage"], "norm": run["flags"]["norm"], "bytes": run["bytes_per_step"], "wire": run["flags"]["wire"]}
    share = ["--batch-size", str(-(-int(run["flags"]["batch_size"]) // runs.ranks))]
    runs.steps = min(max(int(1e3 * SECONDS_OF_RUN / first["step"]), 3), 1000)
    planned, rounds, until = turns(runs, f, share, run), [], time.monotonic() + SECONDS_OF_ROUNDS
    while len(rounds) < FEWEST_ROUNDS or len(rounds) < MOST_ROUNDS and time.monotonic() < until:
        rounds.append({name: runs.train(ranks, *more, **how)[1] for name, (ranks, more, how) in planned.items()})
    f |= {name: median_run([one[name] for one in rounds]) for name in planned}
    f |= {"rounds": len(rounds), "slowest": slowest_rank(rounds, run["stage"], f["norm"])}
    tiny = f.pop("tiny")["ranks"]
    f["loading"], f["fixed"] = (max(rank["own"] + rank[waits] for rank in tiny) for waits in ("data", "exposed"))
    measure_communication(runs, run, f)
    return f | {"others": (busy_seconds() - busy) / (time.monotonic() - begin)}  # cores that other programs used


# ---- deciding: suspects are (name, ms of the step that it costs, why, what to try) ----

def of_the_cores(f):
    step, ranks, cores, share = f["all"]["step"], f["ranks"], f["cores_of_ranks"], f["share"]["step"]
    if f.get("quota") and f["quota"] < min(ranks, cores) and step > APART * share:
        yield "quota", step - share, f"{ranks} ranks share {f['quota']:.3g} core(s), a container's limit (cpu.max)", (
            "docker run --cpus, or another limit; or fewer ranks")
    elif cores < min(ranks, f["cores"]) and step > APART * share:
        yield "binding", step - share, f"all ranks share {cores} of {f['cores']} cores", "mpiexec -bind-to none"
    elif ranks > cores and step > APART * share:
        yield "threads", step - share, f"{ranks} ranks share {cores} core(s)", f"mpiexec -n {cores}"
    elif "fewer_threads" in f:
        fewer = f["fewer_threads"]["step"]
        yield "threads", step - fewer, f"{ranks} ranks x {f['threads']} BLAS threads share {cores} core(s)", (
            f"--threads {f['fewer']} (the step then took {fewer:.3g} ms, not {step:.3g})")


def of_computing(f):
    every, share, slow, ratio = f["all"], f["share"]["ranks"][0]["own"], f["slowest"]["rank"], f["slowest"]["ratio"]
    kernel = f.get("best_kernel", f["share"])["ranks"][0]["own"]
    if share > APART * kernel:
        yield "kernel", share - kernel, (f"one rank computes {share:.3g} ms with OPENBLAS_CORETYPE={f['coretype']}, "
                                         f"{kernel:.3g} without"), "unset OPENBLAS_CORETYPE"
    if ratio > APART:
        yield "slow rank", every["ranks"][slow]["own"] * (1 - 1 / ratio), (
            f"rank {slow} computes for {ratio:.2f} times as long as the others, and they wait"), (
            "top, on its host: what else runs there; the rank's nice value")
    if f["fixed"] > SMALL * share:
        yield "small model", max(min(f["fixed"], every["step"]), every["step"] - share - every["exposed"]), (
            f"a rank computes {share:.3g} ms; a step with next to nothing to compute takes {f['fixed']:.3g}"), (
            "a larger --batch-size or model, or one rank")


def of_waiting(f):
    share, buckets, best = f["share"], f["all"]["buckets"], f.get("chosen_buckets", f["all"])
    waits, data = best["exposed"], max(rank["data"] for rank in f["all"]["ranks"])
    if f["loading"] > SAME * share["ranks"][0]["own"] and SMALL * f["loading"] > f["fixed"]:
        yield "loader", data, (f"a step waits {data:.3g} ms for its batch; loading takes up to {f['loading']:.3g}, "
                               f"computing {share['ranks'][0]['own']:.3g}"), "faster storage, or a larger model"
    if best is not f["all"]:
        yield "tiny buckets" if buckets > best["buckets"] else "one bucket", f["all"]["exposed"] - waits, (
            f"with {buckets:.0f} bucket(s) a step waits {f['all']['exposed']:.3g} ms for messages, with "
            f"{best['buckets']:.0f} {waits:.3g}"), "leave out " + " and ".join(BUCKET_FLAGS)
    if "no_norm" in f:
        of_norm = f["all"]["exposed"] - f["no_norm"]["exposed"]
        waits -= max(of_norm, 0)
        yield "norm", of_norm, f"a step waits {of_norm:.3g} ms for the statistics of --norm {f['norm']}", (
            "a network of less latency, larger batches, fewer ranks, or no --norm")
    if f["link"] > SAME * waits:
        yield "link", waits, (f"gradients alone take {f['link']:.3g} ms, backward {share['backward']:.3g}; {waits:.3g} "
                              "are not hidden"), ("stage 3, " if f["stage"] < 3 else "") + "a faster network" + (
            " (not --wire)" if f["wire"] else "") + ", larger batches, stage 4's --grad-dtype bf16 or --accumulate"


def suspects(f):
    found = [{"name": name, "part_of_step": cost / f["all"]["step"], "why": why, "try": remedy}
             for name, cost, why, remedy in [*of_the_cores(f), *of_computing(f), *of_waiting(f)]]
    return sorted((one for one in found if one["part_of_step"] > WORTH), key=lambda one: -one["part_of_step"])


def cannot_tell(f, found):
    """Why there is no answer, or None: other programs hide causes, and slow down sound runs."""
    used = f["others"] / f["cores"]
    return None if found or used <= WORTH else (
        f"cannot tell: other programs used the cores ({100 * used:.0f} %); run it again when they have ended")


def show(f, found, no_answer):
    one, all_ranks, share = f["one"]["step"], f["all"]["step"], f["share"]
    alone = ", ".join(f"{int(size) / 1e6:.0f} MB {ms:.3g}" for size, ms in f["alone"].items()) or "too slow"
    if no_answer:
        print(no_answer)
    print(f"medians of {f['rounds']} runs, in ms; {f['ranks']} ranks, {f['cores']} core(s)\n"
          f"  forward, a rank's share   {share['forward']:10.3g}\n"
          f"  + backward                {share['forward'] + share['backward']:10.3g}\n"
          f"  loading alone, at most    {f['loading']:10.3g}\n"
          f"  communication alone       {f['link']:10.3g}   ({alone})\n"
          f"  whole step, 1 rank        {one:10.3g}\n"
          f"  whole step, {f['ranks']} ranks       {all_ranks:10.3g}   ({one / all_ranks:.2f} times as fast)")
    for number, rank in enumerate(f["all"]["ranks"]):
        print(f"    rank {number}: {rank['own']:.3g} of its own, waits {rank['data']:.3g} for its loader, "
              f"{rank['exposed']:.3g} for messages and other ranks")
    if found and f["others"] > WORTH * f["cores"]:
        print(f"Other programs used {f['others']:.1f} of {f['cores']} cores meanwhile: measure again without them.")
    for number, suspect in enumerate(found):
        print(f"{'then' if number else 'first suspect'}: {suspect['name']}, {100 * suspect['part_of_step']:.0f} % of a "
              f"step: {suspect['why']}\n    try: {suspect['try']}")
    if not found and not no_answer:
        print("first suspect: nothing")


def parse_arguments(words):
    """Ours stand before the first --, and the flags of the slow run after it."""
    parser = argparse.ArgumentParser(prog="diagnose.sh", description=__doc__, usage=argparse.SUPPRESS,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--program", default=str(ROOT / "build/stage3_overlap/train"))
    parser.add_argument("--launch", default="mpiexec")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--figures", type=argparse.FileType())
    end = words.index("--") if "--" in words else len(words)
    arguments, misplaced = parser.parse_known_args(words[:end])
    arguments.flags = words[end + 1:]
    if misplaced:
        parser.error(f"{misplaced[0]} is no flag of this script; those of the slow run come after --, as in: "
                     f"scripts/diagnose.sh -- {shlex.join(misplaced + arguments.flags)}")
    if arguments.ranks < 2:
        parser.error("--ranks: give at least 2")
    return arguments


def main():
    arguments = parse_arguments(sys.argv[1:])
    with tempfile.TemporaryDirectory() as directory:
        figures = json.load(arguments.figures)["figures"] if arguments.figures else measure(Runs(arguments, directory))
    found = suspects(figures)
    no_answer = cannot_tell(figures, found)
    if arguments.json:
        print(json.dumps({"cannot_tell": no_answer, "suspects": found, "figures": figures}, indent=1))
    else:
        show(figures, found, no_answer)
    sys.exit(CANNOT_TELL if no_answer else 0)


if __name__ == "__main__":
    main()
