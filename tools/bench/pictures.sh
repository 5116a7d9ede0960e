#!/usr/bin/env bash
# pictures.sh: trains, and draws a picture of notes/ from the traces.
#
# usage: tools/bench/pictures.sh timeline|overlap|sharded_step|memory_over_a_step [OUT.svg]     OUT.svg: notes/NAME.svg
# Needs build/ and MPI. Other programs on the machine show in the pictures: keep them off the cores.
set -u
export LC_ALL=C
root=$(cd "$(dirname "$0")/../.." && pwd)
name=${1-} out=$(realpath "${2-$root/notes/${1-}.svg}")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

train() { # STAGE TRACE FLAG...: two ranks over an emulated link, unless the flags say otherwise
    mpiexec -n 2 "$root/build/$1/train" --model gpt --trace "$2" "${@:3}" >run.log || { cat run.log && exit 1; }
}

draw() { # PROGRAM ARGUMENT...
    python3 "$root/tools/bench/$1" "${@:2}"
}

case $name in
timeline) # of each stage, the step whose computing is nearest to the median of all stages
    for run in 1 2 3; do
        flags=(--batch-size 16 --steps 14 --wire '1,50' --eval-samples 16)
        train stage1_naive "stage1.$run.json" "${flags[@]}"
        flags+=(--bucket-cap-mb 1 --first-bucket-mb 0.25)
        train stage2_bucketed "stage2.$run.json" "${flags[@]}"
        train stage3_overlap "stage3.$run.json" "${flags[@]}"
        train stage4_accumulation "stage4.$run.json" "${flags[@]}" --grad-dtype bf16
    done
    draw draw_timeline.py "$out" typical "stage 1=stage1.*.json" "stage 2=stage2.*.json" "stage 3=stage3.*.json" \
        "stage 4, bf16=stage4.*.json"
    ;;
overlap) # one run, with the buckets' numbers and what is hidden
    train stage3_overlap stage3.json --steps 6 --optimizer sgd --batch-size 16 --eval-samples 16 --wire 1,50 \
        --bucket-cap-mb 1
    draw draw_timeline.py "$out" 5 "stage 3=stage3.json"
    ;;
sharded_step) # every fourth step ends with a loss report, which waits for the gathers; step 102 does not follow one
    flags=(--batch-size 8 --steps 120 --eval-samples 16 --wire '1,50')
    train stage4_accumulation stage4.json "${flags[@]}" --bucket-cap-mb 1
    for zero in 2 3; do train stage5_sharded "level$zero.json" "${flags[@]}" --zero $zero; done
    draw draw_timeline.py --without-times "$out" 102 "stage 4=stage4.json" "--zero 2=level2.json" "--zero 3=level3.json"
    ;;
memory_over_a_step)
    flags=(--width 384 --layers 6 --heads 6 --batch-size 8 --steps 6 --eval-samples 2)
    train stage4_accumulation stage4.json "${flags[@]}"
    for zero in 1 2 3; do train stage5_sharded "level$zero.json" "${flags[@]}" --zero $zero; done
    train stage5_sharded recompute.json "${flags[@]}" --zero 3 --recompute
    draw draw_memory.py "$out" 4 "stage 4=stage4.json" "level 1=level1.json" "level 2=level2.json" \
        "level 3=level3.json" "level 3, --recompute=recompute.json"
    ;;
*)
    sed -n 's/^# usage: /usage: /p' "$0" >&2
    exit 2
    ;;
esac
