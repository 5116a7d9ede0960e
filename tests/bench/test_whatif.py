#!/usr/bin/env python3
"""bench/whatif reads traces that are made by hand, finds in them what was put in, and says the same as the WebAssembly.

usage: test_whatif.py WHATIF            the reading of traces
       test_whatif.py WHATIF WASM NODE  the same question, answered by both: every bit
"""
import json
import os
import subprocess
import sys
import tempfile

READY = (10, 20, 30, 40)  # ms; the recording of test_simulate.c
MB = 1e6


def event(name, rank, row, start, duration, step, **args):
    return {"name": name, "ph": "X", "pid": rank, "tid": row, "ts": 1e3 * start, "dur": 1e3 * duration,
            "args": {"step": step, **{key: value for key, value in args.items()}}}


def step_events(rank, step, at, crowded, link, taken):
    """Forward 20, backward 40, (scaling 4, optimizer 5) and left 1; crowded: how many times as long the first two take.
    link: the all-reduces' ms, which follow one another; they begin 0.5 after they are queued. taken: of backward."""
    forward, backward, done = 20 * crowded, 40 * crowded + taken, 0
    out = [event("forward", rank, 0, at, forward, step)]
    begin = at + forward
    for bucket, ready in enumerate(READY):
        queued = begin + ready * crowded
        start = max(queued + 0.5, done) if link else queued
        done = start + link
        out.append(event(f"all_reduce bucket {bucket}", rank, 1, start, link, step, bytes=MB * (1 + (bucket == 1)),
                         queued=1e3 * queued, sequence=4 * step + bucket + 1, algorithm="shm"))
    out.append(event("backward", rank, 0, begin, backward, step))
    optimizer = max(done, begin + backward) + 4
    out.append(event("optimizer", rank, 0, optimizer, 5, step))
    return out, optimizer + 6


def write_trace(path, ranks, crowded, link, taken=0):
    events = [{"name": "clock_alignment", "ph": "M", "pid": 0, "args": {"error_us": 0}}]
    for rank in range(ranks):
        at = 100
        for step in range(8):
            slow = 1.5 if step < 3 else crowded * (1 + 0.1 * (step % 3 - 1))  # the median is `crowded`
            more, at = step_events(rank, step, at, slow, link, taken)
            events += more
    with open(path, "w") as file:
        json.dump(events, file)


def whatif(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def answers(program, *arguments):
    status, out, err = whatif(program, "--json", *arguments)
    if status != 0:
        sys.exit(f"FAIL: whatif {arguments}: status {status}: {err}")
    return [json.loads(line) for line in out.splitlines()]


def expect(what, actual, expected, tolerance=1e-6):
    if abs(actual - expected) > tolerance:
        sys.exit(f"FAIL: {what}: expected {expected}, got {actual}")


def refused(program, words, *arguments):
    status, _, err = whatif(program, *arguments)
    if status != 2 or words not in err:
        sys.exit(f"FAIL: whatif {arguments}: expected status 2 and '{words}', got {status}: {err}")


def test_reading(program, directory):
    one, two, late = (os.path.join(directory, name) for name in ("one", "two", "late"))
    write_trace(one, 1, 1, 0)
    write_trace(two, 2, 1.2, 12)
    # 100 MB/s: the all-reduces take 2 + 10 and 2 + 20; as in test_simulate.c: 10-22, 22-44, 44-56, 56-68
    [row] = answers(program, one, "--ranks", "2", "--link", "0.8,1000", "--caps", "0")
    expect("one rank's trace, stage 3", row["step_ms"], 20 + 68 + 0.8 + 5 + 1)
    expect("its exposed communication", row["exposed_comm_ms"], 20 + 68 + 0.8 + 5 + 1 - 70)
    [row] = answers(program, one, "--ranks", "2", "--link", "0.8,1000", "--stage", "1")
    expect("one rank's trace, stage 1", row["step_ms"], 70 + 3 * 12 + 22)
    [row] = answers(program, one, "--ranks", "1", "--link", "ib-ndr", "--caps", "0", "--accumulate", "3", "--stage",
                    "4")
    expect("three micro-batches of one rank", row["step_ms"], 3 * 61 + 9)
    # all-reduces of several sizes in 12 ms: latency alone; backward takes 1.2 times as long, as forward does
    [row] = answers(program, one, two, "--ranks", "2", "--cores", "2", "--stage", "1")
    expect("the recorded link, crowded cores", row["step_ms"], 61 * 1.2 + 4 + 5 + 4 * 12, 1e-3)
    [row] = answers(program, one, two, "--ranks", "2", "--cores", "2", "--stage", "1", "--link", "0.8,0",
                    "--recorded-link", "1,5000")
    expect("another link, and 2 ms for each call", row["step_ms"], 61 * 1.2 + 9 + 4 * 2 + 50, 1e-3)
    # Two buckets, of 3 and 2 MB. The first is queued at 20 * 1.2, and scaled while the second is in flight.
    both = [one, two, "--ranks", "2", "--cores", "2", "--link", "0.8,0", "--recorded-link", "1,5000"]
    [row] = answers(program, *both, "--caps", "1")
    expect("and 0.5 ms to wake a thread", row["step_ms"], 24 + (24 + 0.5 + 2 + 30 + 2 + 20) + 4 * 2 / 5 + 5 + 1.2, 1e-3)
    # Step by step, at the speed of each step of the run of two ranks: 0.9, 1 and 1.1 of what it is at the median.
    steps = answers(program, *both, "--caps", "1", "--against", two)
    for step, slow, took in zip(steps, (0.9, 1, 1.1, 0.9, 1), (89.9, 93.5, 100.7, 89.9, 93.5), strict=True):
        expect("the step's forward pass", step["forward_ms"], 24 * slow, 1e-3)
        expect("the step", step["measured_ms"], took, 1e-3)
        expect("predicted for its speed", step["predicted_ms"], (24 + 24 + 1.6 + 5 + 1.2) * slow + 54.5, 1e-3)
    # The forward passes of rank 1 take 1.2 times as long. The other rank waits for it.
    events = json.load(open(two))
    for e in events:
        if e["pid"] == 1 and e["name"] == "forward":
            e["dur"] *= 1.2
    with open(late, "w") as file:
        json.dump(events, file)
    steps = answers(program, *both, "--caps", "1", "--against", late)
    expect("predicted for the slowest rank", steps[1]["predicted_ms"], (24 + 24 + 1.6 + 5 + 1.2) * 1.2 + 54.5, 1e-3)
    # Four ranks on 2 cores. Forward passes wait for a core and take 10 ms more, backward 10 less: as fast as before.
    write_trace(late, 4, 2.4, 12)
    shared = [*both, "--stage", "1", "--against", late]
    as_fast = answers(program, *shared)
    events = json.load(open(late))
    for e in events:
        later = {"forward": (0, 10e3), "backward": (10e3, -10e3)}.get(e["name"], (0, 0))
        e["ts"], e["dur"] = e.get("ts", 0) + later[0], e.get("dur", 0) + later[1]
    with open(late, "w") as file:
        json.dump(events, file)
    for step, before in zip(answers(program, *shared), as_fast, strict=True):
        expect("of ranks that share cores", step["predicted_ms"], before["predicted_ms"], 1e-3)
    # And rank 3's first gradient is complete 30 ms later than the others', 22.5 later than the mean rank's. Its backward
    # pass is as much shorter, so the last all-reduces are less late than the first one.
    stage_3 = [*both, "--stage", "3", "--against", late]
    as_fast = answers(program, *stage_3)
    events = json.load(open(late))
    for e in events:
        if e["pid"] == 3 and e["name"] == "all_reduce bucket 0":
            e["args"]["queued"] += 30e3
    with open(late, "w") as file:
        json.dump(events, file)
    for step, before in zip(answers(program, *stage_3), as_fast, strict=True):
        if not before["predicted_ms"] + 5 < step["predicted_ms"] < before["predicted_ms"] + 22.5:
            sys.exit(f"FAIL: a late first gradient: {before['predicted_ms']} ms became {step['predicted_ms']}")
    # In half of the steps, rank 1 has no last all-reduce: the others tell.
    write_trace(two, 2, 1.2, 20)
    events = json.load(open(two))
    gone = [e for e in events if e["name"] == "all_reduce bucket 3" and e["pid"] == 1 and e["args"]["step"] % 2 == 0]
    with open(late, "w") as file:
        json.dump([e for e in events if e not in gone], file)
    [row] = answers(program, one, late, "--ranks", "2", "--cores", "2", "--stage", "1")
    expect("the link, of whole steps", row["comm_ms"], 4 * 20, 1e-3)
    with open(late, "w") as file:
        json.dump([e for e in events if e["name"] != "all_reduce bucket 3" or e["pid"] != 1], file)
    refused(program, "the ranks have different all-reduces in every step", one, late, "--cores", "2", "--ranks", "2")
    # Backward takes 6 more. During it 4 MB are carried, and 5.5 of the 12 ms of another 1 MB.
    write_trace(two, 2, 1.2, 12, 6)
    recorded = json.loads(whatif(program, *both, "--recording")[1])
    expect("computing that a MB takes", 1e3 * MB * recorded["question"][11], 6 / (4 + 5.5 / 12) / 1.2, 1e-3)
    # Four all-reduces of 20 ms without a pause. The second one ends later, and the third has its data by then.
    write_trace(two, 2, 1.2, 20)
    events = json.load(open(two))
    for e in events:
        later = 10e3 if e["pid"] == 0 else 6e3
        if e["name"] == "all_reduce bucket 1":
            e["dur"] += later
        if e["name"] == "all_reduce bucket 2":
            e["ts"], e["dur"] = e["ts"] + later, e["dur"] - later
    with open(late, "w") as file:
        json.dump(events, file)
    for recorded in (two, late):
        [row] = answers(program, one, recorded, "--ranks", "2", "--cores", "2", "--stage", "1")
        expect("the link, whoever waits for its data", row["comm_ms"], 4 * 20, 1e-3)
    refused(program, "--recorded-link", one, two, "--link", "1,50")
    refused(program, "shows no link", one)
    number, whole = "is not a number from", "is not a whole number from"
    for flag, value, words in (
            ("--link", "fast", "--link GBPS,US: 'fast' is neither two numbers, such as 10,20, nor a name"),
            ("--link", "1,2,3", "'1,2,3' is neither"), ("--link", "1,", f"'' {number} 0 to 1e+07"),
            ("--link", ",5", f"--link GBPS,US: '' {number} 1e-06 to 1e+06"),
            ("--recorded-link", "1,x", f"--recorded-link GBPS,US: 'x' {number} 0 to"),
            ("--ranks", "0", f"--ranks N,N,...: '0' {whole} 1 to 65536"), ("--ranks", "2.5", f"'2.5' {whole}"),
            ("--ranks", "8,,4", f"'' {whole}"), ("--ranks", "8,", f"'' {whole}"),
            ("--ranks", "auto", f"'auto' {whole}"),
            ("--caps", "1,,2", f"--caps auto,MIB,...: '' {number} 0 to 1e+06"), ("--caps", "", f"'' {number}"),
            ("--caps", "auto,-1", f"'-1' {number}"), ("--caps", "nan", f"'nan' {number}"),
            ("--accumulate", "1.5", f"--accumulate: '1.5' {whole} 1 to 1024"),
            ("--accumulate", "2,4", f"'2,4' {whole}"),
            ("--stage", "2.5", f"--stage: '2.5' {whole} 1 to 4")):
        refused(program, words, one, "--link", "1,50", flag, value)
    refused(program, "cannot be read", os.path.join(directory, "none"))
    with open(late, "w") as file:
        json.dump([e for e in json.load(open(one)) if "all_reduce" not in e["name"]], file)
    refused(program, "does not show when gradients are ready", late, "--link", "1,50")
    events = json.load(open(one))
    for e in events:
        e.get("args", {}).pop("bytes", None)
    with open(late, "w") as file:
        json.dump(events, file)
    refused(program, "do not tell their bytes", late, "--link", "1,50")


SCRIPT = """
const [wasm, recorded, questions] = process.argv.slice(1);
WebAssembly.instantiate(require("fs").readFileSync(wasm), {}).then(({instance: {exports: x}}) => {
    const view = (place, count) => new Float64Array(x.memory.buffer, place, count);
    const {recording, bytes, ready, question} = JSON.parse(recorded);
    view(x.recording_bytes(), bytes.length).set(bytes);
    view(x.recording_ready(), ready.length).set(ready);
    view(x.recording(), recording.length).set(recording);
    const q = view(x.question(), question.length), a = view(x.answer(), 9), out = [];
    for (const [stage, ranks, accumulate, mb] of JSON.parse(questions)) {
        q.set(question);
        q.set([stage, ranks, accumulate, mb * 2 ** 20, mb * 2 ** 20, 1e-6 * 50, 125e6]);
        if (mb < 0) x.simulate_best_caps(); else x.simulate();
        out.push(Array.from(a));
    }
    q.fill(NaN); x.simulate_best_caps();
    q.fill(1e300); x.simulate(); // must not trap
    console.log(JSON.stringify(out));
});
"""


def test_wasm(program, wasm, node, directory):
    one = os.path.join(directory, "one")
    write_trace(one, 1, 1, 0)
    status, recorded, err = whatif(program, one, "--recording")
    if status != 0:
        sys.exit(f"FAIL: --recording: status {status}: {err}")
    questions = [(stage, ranks, k, mb) for stage in (1, 2, 3, 4) for ranks in (1, 2, 3, 64, 1000) for k in (1, 4)
                 for mb in (-1, 0, 1, 25)]
    out = subprocess.run([node, "-e", SCRIPT, wasm, recorded, json.dumps(questions)], capture_output=True, text=True)
    if out.returncode != 0:
        sys.exit(f"FAIL: node: {out.stderr}")
    for (stage, ranks, k, mb), theirs in zip(questions, json.loads(out.stdout), strict=True):
        caps = "auto" if mb < 0 else str(mb)
        [row] = answers(program, one, "--stage", str(stage), "--ranks", str(ranks), "--accumulate", str(k), "--caps",
                        caps, "--link", "1,50")
        ours = [row[name] for name in ("step_ms", "compute_ms", "comm_ms", "exposed_comm_ms", "efficiency", "buckets")]
        if ours != [1e3 * theirs[0], 1e3 * theirs[1], 1e3 * theirs[2], 1e3 * theirs[3], theirs[5], theirs[6]]:
            sys.exit(f"FAIL: stage {stage}, {ranks} ranks, {k} micro-batches, {caps}: whatif {row}, wasm {theirs}")
    print(f"{len(questions)} answers of the WebAssembly are whatif's, to the bit")


def main():
    with tempfile.TemporaryDirectory() as directory:
        if len(sys.argv) == 2:
            test_reading(sys.argv[1], directory)
            print("tools/bench/whatif: all checks passed")
        else:
            test_wasm(sys.argv[1], sys.argv[2], sys.argv[3], directory)


main()
