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
    "$python" -B "$root/tests/pytorch/planted.py" Overlap TorchDDP WaitsForAFutureOfCpp DividesUnderWay SumNotMean \
        LaunchedAsReady EveryRankKeepsAll WaitAll ArraysForBackward || fail "planted.py: see above"
fi

# A skeleton fails by naming what is to be written, and in no other way.
"$python" -B "$root/tests/pytorch/skeletons.py" || fail "skeletons.py: see above"

# A class that all-reduces after backward trains the right weights, and has no points for overlap.
status 0 judge "$root/tests/pytorch/right.py:Bucketed" --stage overlap --json "$scratch/result.json" &&
    grep -q 'nothing travels during backward' "$scratch/out" || fail "the missing overlap is not named"
points=$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["points"])' "$scratch/result.json")
[ "$points" = 65 ] || fail "an all-reduce after backward has $points points of stage overlap, expected 65"
status 0 python3 "$root/course/results.py" gradescope "$scratch/result.json"
grep -q '"max_score"' "$scratch/out" || fail "results.py does not read the judge's result"

# A class that hangs in one case loses its line, and leaves no process behind: neither a child nor one that has left
# its session. Another, which ends while its child lives on, is not waited for.
# The class's file imports a file of the student's that is named like one of the judge's.
echo 'from right import Naive' >"$scratch/group.py"
cat >"$scratch/hangs.py" <<END
import os, subprocess, sys, time
sys.path.insert(0, "$root/tests/pytorch")
from group import Naive

def start_others():
    others = [subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, os.fork()]
    if others[1] == 0:
        time.sleep(1000)
    with open("$scratch/pids", "a") as file:
        print(*others, file=file)

class NaiveHangs(Naive):
    def finish_gradient_synchronization(self):
        if self.module.kind == "tied":
            start_others()
            time.sleep(1000)
        if self.module.kind == "frozen":
            start_others()
            os._exit(0)
        super().finish_gradient_synchronization()
END
status 0 judge "$scratch/hangs.py:NaiveHangs" --json "$scratch/result.json"
grep -q '^70 of 100 points' "$scratch/out" || fail "a class that hangs with a tied weight, and ends with a frozen one, has not lost three lines"
grep -q 'rank 0 hangs, line 16; rank 1 hangs, line 16' "$scratch/out" || fail "the line that hangs is not named"
grep -q 'frozen parameters: rank 0 has ended before' "$scratch/out" || fail "a rank's end is not seen"
python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$scratch/result.json" || fail "the result is not JSON"
[ "$(wc -w <"$scratch/pids")" = 8 ] || fail "the ranks should have started 8 processes"
for pid in $(cat "$scratch/pids"); do
    ! kill -0 "$pid" 2>/dev/null || fail "process $pid, which the class has started, goes on"
done

# What cannot be judged is said; and of a slow class, that its time is over, but not that it hangs.
echo 'class Naive: pass' >"$scratch/empty.py"
status 0 judge "$scratch/empty.py:Naive"
grep -q '^0 of 100 points' "$scratch/out" || fail "an empty class has points"
status 2 judge "$scratch/empty.py:Unnamed"
printf '%s\n' 'import time' 'class Naive:' '    def __init__(self, module):' '        time.sleep(1000)' >"$scratch/slow.py"
status 0 "$python" -B -c 'import sys; sys.path.insert(0, sys.argv[1]); import judge; judge.TOTAL = 4
judge.table(judge.judge(sys.argv[2], "Naive", "naive"))' "$root/course/pytorch" "$scratch/slow.py"
grep -q "not over when all cases' 4 s were" "$scratch/out" && ! grep -q 'hangs' "$scratch/out" ||
    fail "a slow class: $(cat "$scratch/out")"
finish
