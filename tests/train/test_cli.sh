#!/bin/sh
# test_cli.sh: the real program, on 1 and on 2 ranks, with flags that are right, and with a mistake for each place where
# one is found. (All mistakes: test_refusals.c, test_settings.c.) Its usage and the expected behaviour: cli/cases.sh. The
# stage of TRAIN is read from its --help.

# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/cli/cases.sh"

# ---- correct calls must work, or the refusals below prove nothing ----

run 1 --help
ended 0 --help
stage=$(sed -n '1s/.*stage \([1-5]\) .*/\1/p' "$scratch/out")
if [ -z "$stage" ]; then
    fail "the first line of --help does not name the stage" --help
    exit 1
fi
echo "train of stage $stage, ranks: $ranks_list"
flags=$(grep -c '^  --' "$scratch/out")
[ "$flags" -ge 60 ] || fail "--help names $flags flags only" --help

for count in $ranks_list; do
    run "$count" --help
    titles=$(grep -c '^usage:' "$scratch/out")
    [ "$titles" -eq 1 ] || fail "expected the help once, got it $titles times" --help
    [ ! -s "$scratch/err" ] || fail "--help wrote to stderr" --help
    if grep -q -e '--bucket-cap-mb' "$scratch/out"; then has_buckets=2; else has_buckets=1; fi
    if [ "$stage" -ge 2 ]; then expected=2; else expected=1; fi
    [ "$has_buckets" -eq "$expected" ] || fail "--help of stage $stage: --bucket-cap-mb belongs to the stages from 2 on" --help
done

image_directory images
accepted --model mlp-toy --steps 1 --batch-size 4
accepted --model=mlp-toy --steps=1 --batch-size=4 --verify exact
accepted --model mlp --steps 1 --batch-size 4 --data "$scratch/images"

# ---- mistakes ----

refused '--no-such-flag: ' --model mlp-toy --no-such-flag
refused "'': not a flag" ""
refused '--drop-last: takes no value' --drop-last=yes
refused "--model: 'two?lines' is unknown" --model 'two
lines'
refused "--steps: '0' is not a whole number" --model mlp-toy --steps 0
refused '--epochs: not together with --steps' --model mlp-toy --steps 1 --epochs 1
refused '--rank-samples: has 3 number(s) for ' --model mlp-toy --steps 1 --rank-samples 5,5,5
case $stage in # what the next stage has
    1) refused stage2_bucketed --bucket-cap-mb 25 ;;
    2) refused stage3_overlap --find-unused-parameters ;;
    3) refused stage4_accumulation --precision fp16 ;;
    4) refused stage5_sharded --zero 2 ;;
    5) refused 'not in stage 5' --rebuild-buckets ;;
esac
if [ "$ranks_list" = "1 2" ]; then
    ranks_list=2
    refused --batch-size --model mlp-toy --steps 1 --batch-size 1
    refused --rank-samples --model mlp-toy --steps 1 --rank-samples 600,401 # of 1000: found when there is data
fi

finish
