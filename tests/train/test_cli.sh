#!/bin/sh
# test_cli.sh: many ways of typing `train`'s flags wrongly, on 1 and on 2 ranks.
# Its usage and the expected behaviour: cli/cases.sh. The stage of TRAIN is read from its --help.

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
if [ "$stage" -ge 4 ]; then # all flags; after a change on purpose, write the file again with --help
    diff "$(dirname "$0")/help_of_stage$stage.txt" "$scratch/out" >"$scratch/diff" ||
        fail "--help is not tests/train/help_of_stage$stage.txt: $(cat "$scratch/diff")" --help
fi

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
tiny="--steps 1 --batch-size 4"
# $tiny is a list of words on purpose, here and below
# shellcheck disable=SC2086
{
accepted --model mlp-toy $tiny
accepted --model=mlp-toy --steps=1 --batch-size=4 --verify exact
accepted --model mlp $tiny --data "$scratch/images"

# ---- words that are not flags ----

refused --no-such-flag --no-such-flag
refused --no-such-flag --no-such-flag=3
refused --mod --mod mlp                   # no abbreviations
refused --model --mod mlp                 # ... and the full name is offered
refused --boot --boot=1
refused --s --s 3
refused -m -m mlp
refused -model -model mlp
refused stray stray
refused stray --model mlp stray
refused stray --drop-last stray
refused -- -- stray
refused -- --
refused "''" ""
refused --drop-last --drop-last=yes
refused --same-init --same-init=1
refused --debug-collectives --debug-collectives=yes
refused --help --help=all

# ---- values: missing, empty, unknown ----

for flag in model hidden activation norm layers heads width context data mask-tokens dropout skip-layer steps epochs \
    batch-size rank-samples seed optimizer lr lr-schedule warmup-steps momentum weight-decay clip-grad-norm precision \
    threads backend allreduce wire timeout check-every on-nan eval-samples eval-every save save-every save-best resume \
    generate log log-every trace json; do
    refused --$flag --$flag
    refused --$flag --$flag=
    refused --$flag --$flag --drop-last
done
for flag in model activation optimizer lr-schedule precision backend allreduce on-nan; do
    refused --$flag --$flag nonsense
done
refused --verify --verify nonsense
refused --verify --verify=nonsense
refused --verify --verify=
refused --join --join nonsense
refused --join --join=
refused --model --model MLP
refused --model --model 'two
lines'

# ---- numbers ----

for flag in steps epochs batch-size threads; do
    for value in 0 -1 1.5 1e3 12x '' ' 5' x nan 99999999999999999999; do
        refused --$flag --model mlp-toy --$flag "$value"
    done
done
for flag in seed check-every eval-samples eval-every warmup-steps save-every; do
    for value in -1 1.5 12x nan 99999999999999999999; do
        refused --$flag --model mlp-toy --$flag "$value"
    done
done
for flag in layers heads width context generate; do
    for value in -1 1.5 12x nan 99999999999999999999; do
        refused --$flag --model gpt --$flag "$value"
    done
done
for flag in mask-tokens dropout lr momentum weight-decay clip-grad-norm timeout; do
    for value in -1 nan inf 1e999 1e-400 0.1x 0,1 x '0.1 '; do
        refused --$flag --model mlp-toy --$flag "$value"
    done
done
refused --lr --model mlp-toy --lr 0
refused --timeout --model mlp-toy --timeout 0
refused --momentum --model mlp-toy --momentum 1
refused --mask-tokens --model gpt --mask-tokens 1
refused --dropout --model gpt --dropout 1
refused --skip-layer --model gpt --skip-layer -1
refused --layers --model gpt --layers 0
refused --heads --model gpt --heads 0
for value in 512 "512," ",512" 512,0 512,512,512 512x512 512,x; do
    refused --hidden --model mlp --hidden "$value"
done
for value in "5," ",5" -5 5,-5 5,x 5,,5 1.5 '5, 5' nan 99999999999999999999 1e3; do
    refused --rank-samples --model mlp-toy --rank-samples "$value"
done
for value in 1 "1," ",1" 0,10 -1,10 9e-7,10 1e-300,0 1,-1 nan,1 1,inf 1,2,3; do
    refused --wire --model mlp-toy --wire "$value"
done

# ---- flags that do not go together ----

refused --epochs --model mlp-toy --steps 1 --epochs 1
refused --hidden --model gpt --hidden 8,8
refused --layers --model mlp --layers 2
refused --context --model mlp-toy --context 8
refused --generate --model mlp --generate 10
refused --generate --model gpt2 --generate 5 # its tokens are not bytes
refused --heads --model gpt --width 10 --heads 4
refused --data --model mlp-toy --data "$scratch/images"
refused --momentum --model gpt --momentum 0.9
refused --warmup-steps --model mlp-toy --steps 5 --warmup-steps 6
refused --save-every --model mlp-toy --save-every 5
refused --save-best --model mlp-toy --save-best "$scratch/best"
refused --log-every --model mlp-toy --log-every 5
refused --log-every --model mlp-toy --log "$scratch/log" --log-every 0
refused --join --model mlp-toy --join --drop-last
refused --mask-tokens --model mlp --mask-tokens 0.5
refused --binary-data --model mlp --binary-data
refused --binary-data --model gpt --binary-data=yes
refused --mask-tokens --model gpt --mask-tokens 0.5 --join initial
refused --skip-layer --model gpt --layers 2 --skip-layer 3
refused --skip-layer --model mlp-toy --skip-layer 3
refused --backend --model mlp-toy --backend nccl
refused train_cuda --model mlp-toy --backend nccl
refused train_cuda --model mlp-toy --share-gpu # this is the CPU's program; train_cuda: test_cuda_cli.sh
refused --share-gpu --share-gpu=yes
refused train_cuda --model mlp-toy --tf32
refused --tf32 --tf32=yes
if [ "$stage" -ge 3 ]; then
    refused --batch-size --model mlp-toy --batch-size 3 --accumulate 4
    for value in '' 0 -1 1.5 1e3 12x nan 99999999999999999999; do
        refused --accumulate --model mlp-toy --accumulate "$value"
    done
fi

# ---- flags of later stages ----

if [ "$stage" -lt 2 ]; then
    refused --bucket-cap-mb --bucket-cap-mb 25
    refused stage2_bucketed --bucket-cap-mb 25
    refused --first-bucket-mb --first-bucket-mb 1
else
    for flag in bucket-cap-mb first-bucket-mb; do
        for value in -1 nan inf x 1x; do
            refused --$flag --model mlp-toy --$flag "$value"
        done
    done
fi
if [ "$stage" -lt 3 ]; then
    refused --rebuild-buckets --rebuild-buckets
    refused stage3_overlap --find-unused-parameters
    refused stage3_overlap --static-graph
else
    refused --rebuild-buckets --rebuild-buckets=yes
    refused --find-unused-parameters --find-unused-parameters=yes
    refused --static-graph --static-graph=yes
fi
if [ "$stage" -lt 4 ]; then
    refused --precision --precision bf16
    refused stage4_accumulation --precision fp16
    refused --grad-dtype --grad-dtype bf16
    refused --loss-scale --loss-scale 1024
else
    refused --grad-dtype --grad-dtype int4
    refused --powersgd-rank --model mlp-toy --steps 1 --powersgd-rank 2
    refused --powersgd-rank --model mlp-toy --steps 1 --grad-dtype powersgd --powersgd-rank 0
    refused --grad-dtype --model mlp-toy --steps 1 --grad-dtype powersgd --precision fp16
    refused --grad-dtype --model mlp-toy --steps 1 --grad-dtype powersgd --find-unused-parameters
    refused --verify --model mlp-toy --steps 1 --grad-dtype noop --verify exact
    refused --check-every --model mlp-toy --steps 1 --grad-dtype noop --check-every 1
    refused --verify --model mlp-toy --steps 1 --grad-dtype bf16 --verify # a process on whole batches sends nothing
    refused --loss-scale --loss-scale 1024 # in fp32
    for value in 0 -1 nan inf x; do
        refused --loss-scale --model mlp-toy --precision fp16 --loss-scale "$value"
    done
fi
}

# ---- the number of ranks ----

refused --rank-samples --model mlp-toy --steps 1 --rank-samples 5,5,5
for count in $ranks_list; do
    if [ "$count" -gt 1 ]; then
        ranks_list=$count
        refused --batch-size --model mlp-toy --steps 1 --batch-size $((count - 1))
        [ "$stage" -lt 3 ] ||
            refused --batch-size --model mlp-toy --steps 1 --batch-size $((count * 3 - 1)) --accumulate 3
    fi
    if [ "$count" -eq 2 ]; then # uneven ends: test_join.sh
        refused --batch-size --model mlp-toy --steps 1 --rank-samples 5,5 --batch-size 5
        refused --rank-samples --model mlp-toy --steps 1 --rank-samples 0,0
        refused --rank-samples --model mlp-toy --steps 1 --rank-samples 600,401
    fi
done

finish
