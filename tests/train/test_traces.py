#!/usr/bin/env python3
"""test_traces.py: what --trace writes, in every stage, compared with the run's summary and its checkpoint.

usage: test_traces.py BUILD MPIEXEC [FLAGS OF MPIEXEC...]     BUILD: holds stage1_naive/train and so on

Exit status: 0 all is right, 1 something is wrong.
"""
import json
import struct
import subprocess
import sys
import tempfile

RANKS, STEPS, LAYERS, BLOCK = 2, 4, 2, 1024
# In buckets, gradients begin at multiples of 64 bytes. All of this model have such a size: no bytes are between them.
GPT = (f"--model gpt --layers {LAYERS} --heads 2 --width 32 --context 16 --batch-size 8 --eval-samples 8 "
       f"--lr-schedule constant --warmup-steps 0 --steps {STEPS}").split()
BUCKETS = ["--bucket-cap-mb", "0.03", "--first-bucket-mb", "0.01"]
RUNS = [("stage1_naive", ["--allreduce", "mpi"]),
        ("stage2_bucketed", [*BUCKETS, "--allreduce", "ordered"]),
        ("stage3_overlap", [*BUCKETS, "--wire", "1,50"]),
        ("stage4_accumulation", [*BUCKETS, "--accumulate", "2", "--allreduce", "ring", "--grad-dtype", "bf16"]),
        ("stage5_sharded", ["--zero", "2"]),
        ("stage5_sharded", ["--zero", "3", "--wire", "1,50"]),
        ("stage5_sharded", ["--zero", "3", "--recompute", "--precision", "bf16"])]
WIRE_STEPS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}  # times (N-1)/N of the bytes
MEMORY = ("weights", "gathered_weights", "operands", "gradients", "whole_gradients", "optimizer", "activations")
failures = 0


def expect(condition, what):
    global failures
    if not condition:
        failures += 1
        print(f"FAIL: {title}: {what}")
    return condition


def read_parameters(path):
    """Names and numbers of elements, in the order of registration, from the header of a safetensors file."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    entries = [(entry["data_offsets"], name) for name, entry in header.items() if name != "__metadata__"]
    return [(name, (end - start) // 4) for (start, end), name in sorted(entries) if not name.startswith("optimizer.")]


def end(event):
    return event["ts"] + event["dur"]


def check_kinds(trace):
    """Every event is of a kind with what this kind needs; names and rows; the clocks' note comes first."""
    expect(trace[0]["name"] == "clock_alignment" and trace[0]["ph"] == "M" and trace[0]["args"] == {"error_us": 0},
           f"on one machine there is one clock, so the first event must say error_us 0: {trace[0]}")
    names = [(e["pid"], e.get("tid"), e["args"]["name"]) for e in trace[1:] if e["ph"] == "M"]
    expect(sorted(names, key=str) == sorted(((rank, tid, name) for rank in range(RANKS) for tid, name in
           ((None, f"rank {rank}"), (0, "compute"), (1, "communication"))), key=str), f"names of rows: {names}")
    for e in trace:
        good = {"M": lambda: True, "X": lambda: e["dur"] > 0,
                "i": lambda: e["s"] == "t" and e["name"].startswith("gradient-ready "),
                "C": lambda: e["name"] == "memory" and e["args"].keys() == set(MEMORY),
                "s": lambda: e["cat"] == "launch", "f": lambda: e["cat"] == "launch" and e["bp"] == "e"}
        expect(e["ph"] in good and good[e["ph"]](), f"this kind of event: {e}")
    times = [e["ts"] for e in trace if "ts" in e]
    expect(min(times) == 0, f"the earliest event must be at 0, not {min(times)}")


def check_what_is_freed(samples, events, summary):
    """Within a pass, activations only grow, but a block that is computed again frees its own: in forward, and in
    backward. Whole gradients are gone before the update."""
    falls = set()
    for e in events:
        if e["name"] in ("forward", "backward"):
            held = [s["args"]["activations"] for s in samples if e["ts"] <= s["ts"] <= end(e)]
            falls.add(sum(after < before for before, after in zip(held, held[1:])))
        if e["name"] == "optimizer":
            held = [s["args"]["whole_gradients"] for s in samples if s["ts"] <= e["ts"]][-1]
            expect(held == 0, f"step {e['args']['step']}: {held} bytes of whole gradients when the update begins")
    blocks = LAYERS if summary["flags"]["recompute"] else 0
    expect(falls == {blocks}, f"activations must be freed {blocks} times in each pass, not {falls}")


def check_memory(samples, rank, summary):
    """The summary is of rank 0: what is there all the time, and the most of what comes and goes."""
    most = {kind: max(e["args"][kind] for e in samples) for kind in MEMORY}
    least = {kind: min(e["args"][kind] for e in samples) for kind in MEMORY}
    steady = [kind for kind in ("weights", "gradients", "optimizer") if most[kind] != least[kind]]
    expect(len(samples) > 2 * STEPS and not steady, f"{steady} is not there all the time, or too few samples")
    expect(0 < least["activations"] < most["activations"], f"activations come and go: {least}, {most}")
    if rank == 0:
        memory = {kind: round(1e6 * summary["memory"][f"{kind}_mb"]) for kind in MEMORY}
        differ = [kind for kind in MEMORY if kind not in ("activations", "operands") and memory[kind] != most[kind]]
        expect(not differ and most["activations"] <= memory["activations"],
               f"samples have at most {most}, the summary has {memory}")


def check_compute(events, micro_batches):
    for name, count in (("forward", micro_batches), ("backward", micro_batches), ("optimizer", 1)):
        steps = [e["args"]["step"] for e in events if e["tid"] == 0 and e["name"] == name]
        expect(steps == sorted(list(range(STEPS)) * count), f"{count} '{name}' in each step: {steps}")


def check_collectives(collectives, summary):
    """One rank's: numbers, times, and the bytes of all steps."""
    expect([c["args"]["sequence"] for c in collectives] == list(range(1, len(collectives) + 1)),
           f"sequences: {[c['args']['sequence'] for c in collectives]}")
    for before, c in zip([None, *collectives], collectives):
        args, done = c["args"], end(c) + 0.002  # times are rounded to 0.001
        expect(args["queued"] <= c["ts"], f"queued after its start: {c}")
        expect(before is None or before["args"]["queued"] <= args["queued"] and end(before) <= c["ts"] + 0.002,
               f"begins, or is queued, before the one before: {c}")
        expect(args["algorithm"] == summary["allreduce"] or not c["name"].startswith("all_reduce bucket"),
               f"the summary has {summary['allreduce']}: {c}")
        if "waited" in args:
            expect(args["queued"] <= args["waited_from"] and args["waited"] >= 0, f"waited for before the call: {c}")
            expect(args["waited_from"] + args["waited"] >= done - 0.004 and
                   (args["waited"] > 0 or args["waited_from"] >= done - 0.004), f"the wait ended too early: {c}")
    waited = [c for c in collectives if "waited" in c["args"]]
    expect({c["args"]["step"] for c in waited} == set(range(STEPS)), "a step waits for no collective")
    total = sum(c["args"]["bytes"] for c in waited)
    wire = sum(c["args"]["bytes"] * WIRE_STEPS[c["name"].split()[0]] * (RANKS - 1) // RANKS for c in waited)
    expect((len(waited), total, wire) == tuple(round(STEPS * summary[key]) for key in
           ("collectives_per_step", "bytes_per_step", "wire_bytes_per_step")),
           f"{len(waited)} collectives of {total} bytes, {wire} on the wire, but the summary has "
           f"{summary['collectives_per_step']}, {summary['bytes_per_step']}, {summary['wire_bytes_per_step']} per step")


def check_waits(stage, collectives, summary):
    """Waits that must be long: for a blocking collective, and for the last bucket over a slow link."""
    waited = [c for c in collectives if "waited" in c["args"]]
    blocking = [c for c in waited if stage < 3 or c["name"] == "all_reduce squares of the gradients"]
    expect(stage == 2 or all(c["args"]["waited_from"] == c["args"]["queued"] for c in blocking),
           "the wait for a blocking collective does not begin with its call")
    expect(summary["flags"]["wire"] is None or any(c["args"]["waited"] > 0 for c in waited if c not in blocking),
           "no wait, although the last bucket fills when backward ends")


def check_arrows(events, collectives):
    """Both ends of each arrow lie at events; returns {sequence of a collective: the event that launched it}."""
    launched = {}
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    expect(len(starts) + len(ends) == sum(e["ph"] in "sf" for e in events), "two arrows with one id")
    expect(starts.keys() == ends.keys(), f"arrows with one end: {starts.keys() ^ ends.keys()}")
    for number in starts.keys() & ends.keys():
        s, f = starts[number], ends[number]
        ready = [e for e in events if e["ph"] == "i" and (e["tid"], e["ts"]) == (s["tid"], s["ts"])]
        carried = [c for c in collectives if (c["tid"], c["ts"]) == (f["tid"], f["ts"])]
        if expect(len(carried) == 1 and ready, f"an end of an arrow at no event: {s} {f}"):
            launched[carried[0]["args"]["sequence"]] = ready[-1]
    return launched


def take_bucket(left, stage, expected):
    """Takes the gradients of the next bucket from `left`: as many as fill `expected` bytes. None: they do not fit."""
    size, names = 0, []
    while left and size < expected:
        name, elements = left.pop(0)
        names.append(name)
        size += 2 * elements if stage == 4 else 4 * elements
        if stage == 5:  # every parameter begins at a block, and a bucket is the same number of blocks for each rank
            size = -(-size // (4 * BLOCK)) * 4 * BLOCK
    if stage == 5:
        size = -(-size // (4 * BLOCK * RANKS)) * 4 * BLOCK * RANKS
    return names if size == expected else None


def check_launches(stage, events, collectives, launched, parameters):
    """A bucket is launched by the last of its gradients, or by the last one of a bucket before it."""
    of_gradients = [c for c in collectives if c["name"].startswith(("all_reduce bucket", "reduce_scatter gradients"))]
    if stage < 3:
        return expect(not launched, f"arrows in a stage that communicates after backward: {launched}")
    expect(launched.keys() == {c["args"]["sequence"] for c in of_gradients},
           f"arrows lead to the collectives {sorted(launched)}, not to those of gradients")
    for step in range(STEPS):
        buckets = [c for c in of_gradients if c["args"]["step"] == step]
        left, latest = parameters[::-1], 0
        backward = [e for e in events if e["name"] == "backward" and e["args"]["step"] == step][-1]
        ready = {e["name"].split()[1]: e["ts"] for e in events if e["ph"] == "i" and
                 backward["ts"] <= e["ts"] <= end(backward)}
        for c in buckets:
            names = take_bucket(left, stage, c["args"]["bytes"])
            if not expect(names, f"{c['args']['bytes']} bytes are no whole gradients: {c}"):
                return False
            latest = max([latest, *(ready[name] for name in names)])
            launch = launched.get(c["args"]["sequence"], {"ts": -1, "name": "nothing"})
            expect(launch["ts"] == latest and c["args"]["queued"] >= latest, f"step {step}: {c['name']} has {names}; "
                   f"{launch['name']} launched it at {launch['ts']}, not at {latest}")
        expect(not left, f"step {step}: gradients in no bucket: {left}")
    return True


def check_run(launcher, build, directory, flags, scratch):
    stage = int(directory[5])
    files = {name: f"{scratch}/{name}" for name in ("trace", "json", "save")}
    command = [*launcher, "-n", str(RANKS), f"{build}/{directory}/train", *GPT, *flags]
    for name, path in files.items():
        command += [f"--{name}", path]
    run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if not expect(run.returncode == 0, f"status {run.returncode}: {run.stderr[-500:]}"):
        return
    with open(files["trace"]) as trace_file, open(files["json"]) as json_file:
        trace, summary = json.load(trace_file), json.load(json_file)
    parameters = read_parameters(files["save"])
    check_kinds(trace)
    calls = []
    for rank in range(RANKS):
        events = [e for e in trace if e["pid"] == rank and e["ph"] not in "MC"]
        samples = [e for e in trace if e["pid"] == rank and e["ph"] == "C"]
        check_memory(samples, rank, summary)
        check_what_is_freed(samples, events, summary)
        collectives = [e for e in events if e["tid"] == 1 and e["ph"] == "X"]
        check_compute(events, summary["flags"]["accumulate"] or 1)
        check_collectives(collectives, summary)
        check_waits(stage, collectives, summary)
        check_launches(stage, events, collectives, check_arrows(events, collectives), parameters)
        calls.append([(c["name"], c["args"]["bytes"]) for c in collectives])
    ids = [e["id"] for e in trace if e["ph"] == "s"]
    expect(len(ids) == len(set(ids)), "an arrow of one rank has the id of another rank's")
    expect(calls[0] == calls[1], "the ranks' collectives differ")


if len(sys.argv) < 3:
    sys.exit(__doc__)
for stage_directory, stage_flags in RUNS:
    title = " ".join([stage_directory, *stage_flags])
    with tempfile.TemporaryDirectory() as place:
        check_run(sys.argv[2:], sys.argv[1], stage_directory, stage_flags, place)
print(f"{len(RUNS)} runs, {failures} failure(s)")
sys.exit(failures > 0)
