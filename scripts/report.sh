#!/usr/bin/env bash
# report.sh: trains the GPT with every stage over an emulated link, and writes one web page about it: the ranks'
# timelines, where a step's time goes, the losses of 1 and more ranks, the memory of each rank, and sliders for "what
# if". The page is one file. It opens without a network. Under four minutes on two cores.
#
# usage: scripts/report.sh [--quick] [--build DIRECTORY] [--keep DIRECTORY] [OUT.html]
#   --quick   the small MLP and few steps: a page in some seconds, for a look at the page itself
#   --build   use the programs in DIRECTORY, and build nothing
#   --keep    leave the files of the runs (JSON, traces) in DIRECTORY
# shellcheck disable=SC2086,SC2206 # flags are several words
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"
source "$repository/scripts/mpi.sh"

quick='' build='' keep='' out=report.html
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=1 ;;
        --build | --keep) [ $# -ge 2 ] || { echo "report.sh: $1 needs a directory" >&2 && exit 2; } ;;&
        --build) build=$(realpath "$2") && shift ;;
        --keep) mkdir -p "$2" && keep=$(realpath "$2") && shift ;;
        -*) sed -n '/^# usage/,/^# shellcheck/{/^# shellcheck/d;s/^# //p}' "$0" >&2 && exit 2 ;;
        *) out=$1 ;;
    esac
    shift
done
out=$(realpath "$out")
# Found now, not after all runs. (Root may write to every file, so the mode is looked at, too.)
if [ -d "$out" ] || [ ! -w "$(dirname "$out")" ] ||
    { [ -e "$out" ] && [ -z "$(find "$out" -writable -perm /222)" ]; }; then
    echo "report.sh: $out cannot be written: name a file that may be replaced, or a new one" >&2
    exit 2
fi
cd "$repository"
use_own_openblas_kernels
if [ -z "$build" ]; then
    build=build
    scripts/setup.sh
    build_targets=(train_stage{1..5} whatif)
    if command -v clang >/dev/null && command -v wasm-ld >/dev/null; then
        build_targets+=(simulate_wasm)
    fi
    build_preset release
fi
results=${keep:-$(mktemp -d)}
[ -n "$keep" ] || trap 'rm -rf "$results"' EXIT

# The runs of the timelines, with two ranks; alone: one rank with the same share of the batch, for the simulator. The
# lengths of the runs whose losses are compared.
link=1,50
flags="--model gpt --batch-size 16 --steps 30 --eval-samples 8 --wire $link"
alone="--model gpt --batch-size 8 --steps 30 --eval-samples 8"
caps="--bucket-cap-mb 1"
lengths="1 3 10 20 40 70 120 200 300"
if [ -n "$quick" ]; then
    flags="--model mlp --batch-size 128 --steps 8 --eval-samples 8 --wire $link"
    alone="--model mlp --batch-size 64 --steps 8 --eval-samples 8"
    caps="--bucket-cap-mb 0.5 --first-bucket-mb 0.5"
    lengths="1 4"
fi

# show RANKS COMMAND...: prints the command line that repeats this run.
show() {
    local ranks=$1
    shift
    local words=${*//"$build"/build}
    echo "mpiexec -n $ranks ${words//"$results/"/}"
}

# run RANKS COMMAND...: runs it silently, and ends the script if it fails.
run() {
    echo "$ $(show "$@")"
    if ! run_ranks "$@" >"$results/log"; then
        cat "$results/log" >&2
        echo "report: error: the command above failed" >&2
        exit 1
    fi
}

# record NAME LABEL STAGE FLAG...: one run with a timeline and a summary.
record() {
    local name=$1 label=$2 command=("$build/$3/train")
    shift 3
    command+=($flags "$@" --trace "$results/$name.trace.json" --json "$results/$name.json")
    run 2 "${command[@]}"
    printf '%s\t%s\t%s\n' "$name" "$label" "$(show 2 "${command[@]}")" >>"$results/runs.tsv"
}

: >"$results/runs.tsv"
echo "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores, $(date +%F)" >"$results/machine"
micro="2 micro-batches"
record stage1 "stage 1" stage1_naive
record stage2 "stage 2" stage2_bucketed $caps
record stage3 "stage 3" stage3_overlap $caps
record stage4 "stage 4, $micro" stage4_accumulation $caps --accumulate 2
for zero in 1 2 3; do
    record "stage5z$zero" "stage 5, --zero $zero" stage5_sharded --zero $zero
done

if [ -e "$build/bench/simulate.wasm" ]; then
    cp "$build/bench/simulate.wasm" "$results/"
    command=("$build/stage3_overlap/train" $alone --bucket-cap-mb 0 --first-bucket-mb 0)
    command+=(--trace "$results/alone.trace.json")
    run 1 "${command[@]}"
    show 1 "${command[@]}" >"$results/whatif.command"
    whatif=("$build/bench/whatif" "$results/alone.trace.json" "$results/stage3.trace.json" --recorded-link $link)
    "${whatif[@]}" --link $link --recording >"$results/own_cores.json"
    "${whatif[@]}" --link $link --recording --cores "$(nproc)" >"$results/shared_cores.json"
else
    echo "report: note: clang or wasm-ld is missing (Debian: packages clang and lld), so the page has no sliders"
fi

losses="build/stage3_overlap/train --model mlp --lr-schedule constant --eval-samples 8"
cat >"$results/losses.command" <<END
for steps in $lengths; do
    mpiexec -n 1 $losses --steps \$steps --json losses.1.\$steps.json
    for ranks in 2 4; do
        mpiexec -n \$ranks $losses --steps \$steps --verify --json losses.\$ranks.\$steps.json
    done
done
END
losses=${losses/#build/$build}
for steps in $lengths; do
    run 1 $losses --steps "$steps" --json "$results/losses.1.$steps.json"
    for ranks in 2 4; do
        run $ranks $losses --steps "$steps" --verify --json "$results/losses.$ranks.$steps.json"
    done
done

python3 tools/report/make_report.py "$results" "$out"
