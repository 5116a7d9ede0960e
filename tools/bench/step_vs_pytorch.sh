#!/usr/bin/env bash
# Step time of lockstep and of PyTorch, eager and compiled, on this machine: one rank, one thread.
#
#   tools/bench/step_vs_pytorch.sh [--precision fp32|bf16] [--rounds N] [--build DIR] [--python PYTHON]
#
# mlp: 784-512-512-10, batch 256, SGD. gpt: 4 layers, width 256, context 128, batch 16, AdamW. The programs run in
# turns, round by round, so that the machine's noise affects all alike; a round's result is the median of its steps.
# The table shows the median, minimum and maximum over the rounds. bf16: stage 4's --precision bf16, PyTorch's autocast,
# and lockstep in float32 as well. It needs a build with -DLOCKSTEP_ONEDNN=ON: otherwise bf16 is emulated.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/../.."

precision=fp32 rounds=5 build=build python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
    case $1 in
        --precision) precision=$2 ;;
        --rounds) rounds=$2 ;;
        --build) build=$2 ;;
        --python) python=$2 ;;
        *) sed -n '2,10s/^# \{0,1\}//p' tools/bench/step_vs_pytorch.sh; exit 2 ;;
    esac
    shift 2
done
case $precision in
    fp32) train=$build/stage1_naive/train ours=lockstep autocast='' ;;
    bf16) train=$build/stage4_accumulation/train ours='lockstep fp32' autocast=--bf16 ;;
    *) echo "step_vs_pytorch.sh: --precision $precision: there are fp32 and bf16" >&2; exit 2 ;;
esac
[ -x "$train" ] || { echo "step_vs_pytorch.sh: $train is missing: build first, or give --build DIR" >&2; exit 2; }
"$python" -c 'import torch' 2>/dev/null ||
    { echo "step_vs_pytorch.sh: $python has no PyTorch; give another with --python" >&2; exit 2; }

if [ -n "${OPENBLAS_CORETYPE:-}" ]; then
    echo "note: OPENBLAS_CORETYPE=$OPENBLAS_CORETYPE was set and is unset here: OpenBLAS chooses its kernels itself"
    unset OPENBLAS_CORETYPE
fi
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# lockstep MODEL BATCH OPTIMIZER STEPS NAME [FLAGS]
lockstep() {
    local flags="--clip-grad-norm 0" # like torch_step.py, which has neither momentum nor clipping
    [ "$3" = adamw ] || flags="--momentum 0"
    # shellcheck disable=SC2086 # flags are words
    "$train" --model "$1" --batch-size "$2" --optimizer "$3" $flags ${6-} --steps $(($4 + 3)) --threads 1 \
        --eval-samples 1 --json "$results/$5" > "$results/log" 2>&1 || { cat "$results/log" >&2; exit 1; }
}

# one_round MODEL BATCH OPTIMIZER STEPS ROUND
one_round() {
    lockstep "$1" "$2" "$3" "$4" "$1.$ours.$5"
    [ "$precision" = fp32 ] || lockstep "$1" "$2" "$3" "$4" "$1.lockstep.$5" "--precision $precision"
    # shellcheck disable=SC2086 # none or one word
    "$python" tools/bench/torch_step.py --model "$1" --batch-size "$2" --steps "$4" $autocast > "$results/$1.eager.$5"
    # shellcheck disable=SC2086
    "$python" tools/bench/torch_step.py --model "$1" --batch-size "$2" --steps "$4" $autocast --compile \
        > "$results/$1.compiled.$5"
}

awk -v cores="$(nproc --all)" '$1 > cores / 2 {
    print "note: a load of " $1 " on " cores " cores: other programs run, too, and disturb every figure here" }' \
    /proc/loadavg
for round in $(seq "$rounds"); do
    one_round mlp 256 sgd 150 "$round"
    one_round gpt 16 adamw 12 "$round"
done

"$python" - "$results" "$precision" <<'PYTHON'
import glob, json, statistics, sys

def load(model, program):
    return [json.load(open(path)) for path in sorted(glob.glob(f"{sys.argv[1]}/{model}.{program}.*"))]

torch = load("gpt", "eager")[0]["torch"]
precision = sys.argv[2]
print(f"milliseconds, one rank, one thread, {precision}; PyTorch {torch}")
print("median over rounds of a round's median [min .. max];")
print("a ratio is lockstep's time to that of the program before it, the median over rounds")
others = ("eager", "compiled") + (("lockstep fp32",) if precision == "bf16" else ())
for model in ("mlp", "gpt"):
    ours = load(model, "lockstep")
    print(f"{model}: {ours[0]['parameters']} parameters, {len(ours)} rounds")
    parts = [("step", lambda run: run["step_ms"]["p50"])]
    parts += [(name, lambda run, name=name: run[name + "_ms"]) for name in ("forward", "backward", "optimizer")]
    for name, part in parts:
        show = lambda v: f"{statistics.median(v):8.2f} [{min(v):8.2f} .. {max(v):8.2f}]"
        line = f"  {name:10} lockstep {show([part(run) for run in ours])}"
        for mode in others:
            theirs = load(model, mode)
            ratio = statistics.median(part(x) / part(y) for x, y in zip(ours, theirs))
            line += f"   {mode} {show([part(run) for run in theirs])} ratio {ratio:.2f}"
        print(line)
PYTHON
