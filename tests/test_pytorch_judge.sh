#!/usr/bin/env bash
# test_pytorch_judge.sh: course/pytorch/judge.py gives all points to its right classes, names what is wrong with others,
# and writes results that course/results.py reads. Without --all, some classes; with it, all of them.
#
# usage: test_pytorch_judge.sh ROOT [--all]
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
export LC_ALL=C
root=$1
python=${LOCKSTEP_TORCH_PYTHON-$root/build/pytorch_venv/bin/python}
[ -x "$python" ] || python=python3
version='import sys, importlib.metadata as m
sys.exit([int(n) for n in m.version("torch").split(".")[:2]] < [2, 15])'
"$python" -c "$version" 2>/dev/null || {
    echo "skipped: PyTorch 2.15 is missing: course/pytorch/venv.sh makes a virtual environment that has it"
    exit 77
}
judge() { "$python" -B "$root/course/pytorch/judge.py" "$@"; }

if [ "${2-}" = --all ]; then
    "$python" -B "$root/tests/pytorch/planted.py" || fail "planted.py: see above"
else
    "$python" -B "$root/tests/pytorch/planted.py" Overlap TorchDDP WaitsInTheHook DividesUnderWay SumNotMean \
        LaunchedAsReady EveryRankKeepsAll || fail "planted.py: see above"
fi

# A class that all-reduces after backward trains the right weights, and has no points for overlap.
status 0 judge "$root/tests/pytorch/right.py:Bucketed" --stage overlap --json "$scratch/result.json" &&
    grep -q 'nothing travels during backward' "$scratch/out" || fail "the missing overlap is not named"
points=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["points"])' "$scratch/result.json")
[ "$points" = 65 ] || fail "an all-reduce after backward has $points points of stage overlap, expected 65"
status 0 python3 "$root/course/results.py" gradescope "$scratch/result.json"
grep -q '"max_score"' "$scratch/out" || fail "results.py does not read the judge's result"

# What cannot be judged is said.
echo 'class Naive: pass' >"$scratch/empty.py"
status 0 judge "$scratch/empty.py:Naive"
grep -q '^0 of 100 points' "$scratch/out" || fail "an empty class has points"
status 2 judge "$scratch/empty.py:Unnamed"
finish
