#!/bin/sh
# test_cli.sh: every way of calling `train` wrongly that we could think of, on 1 and on 2 ranks.
#
# usage: test_cli.sh TRAIN [MPIEXEC]
#
# Each mistake must end the program within the time limit, with status 2 and one line on stderr that begins
# "train: error:" and names the flag or file. A fault at run time: status 1, and "train: fault:".
# CLI_RANKS="1" tests one rank only (quick). MPIEXEC_FLAGS: more words for mpiexec, such as "--oversubscribe -q"
# for Open MPI. The stage of TRAIN is read from its --help.

set -u
if [ $# -lt 1 ]; then
    echo "usage: $0 TRAIN [MPIEXEC]" >&2
    exit 2
fi
train=$(realpath "$1")
mpiexec=$(command -v "${2:-mpiexec}")
ranks_list=${CLI_RANKS:-1 2}
limit=20
cases=0
failures=0

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
work=$scratch/work # every run starts here; none may leave a file behind
mkdir "$work"

# ---- how a case is run and judged ----

# run RANKS ARGUMENTS...: sets status; output goes to $scratch/out and $scratch/err
run()
{
    ranks=$1
    shift
    if [ "$ranks" -eq 1 ]; then
        (cd "$work" && timeout -k 5 "$limit" "$train" "$@") >"$scratch/out" 2>"$scratch/err" </dev/null
    else
        # MPIEXEC_FLAGS is a list of words on purpose
        # shellcheck disable=SC2086
        (cd "$work" && timeout -k 5 "$limit" "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "$train" "$@") \
            >"$scratch/out" 2>"$scratch/err" </dev/null
    fi
    status=$?
    cases=$((cases + 1))
}

# fail REASON ARGUMENTS...: reports the case just run
fail()
{
    reason=$1
    shift
    failures=$((failures + 1))
    echo "FAIL on $ranks rank(s): train $*"
    echo "     $reason"
    sed 's/^/     stderr: /' "$scratch/err" | head -5
}

# ended STATUS ARGUMENTS...: did the case just run end with STATUS?
ended()
{
    expected=$1
    shift
    if [ "$status" -eq "$expected" ]; then
        return 0
    elif [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        fail "still running after $limit s: a rank waits for another that is gone, or training began" "$@"
    elif [ "$status" -eq 0 ]; then
        fail "expected status $expected, got 0: the mistake was not noticed" "$@"
    else
        fail "expected status $expected, got $status" "$@"
    fi
    return 1
}

# refused WORD ARGUMENTS...: a mistake of the user's; the message must contain WORD
refused()
{
    word=$1
    shift
    for count in $ranks_list; do
        run "$count" "$@"
        ended 2 "$@" || continue
        lines=$(wc -l <"$scratch/err")
        if [ "$lines" -ne 1 ]; then
            fail "expected one line on stderr, got $lines: usually every rank speaks, or the message holds a newline" "$@"
        elif ! grep -q '^train: error: ' "$scratch/err"; then
            fail "the line does not begin with 'train: error: '" "$@"
        elif ! grep -qF -e "$word" "$scratch/err"; then
            fail "the message does not name '$word'" "$@"
        elif [ -s "$scratch/out" ]; then
            fail "a wrong call printed something on stdout: $(head -1 "$scratch/out")" "$@"
        fi
    done
}

# faulted WORD ARGUMENTS...: goes wrong while running; the launcher may add lines of its own to stderr
faulted()
{
    word=$1
    shift
    for count in $ranks_list; do
        run "$count" "$@"
        ended 1 "$@" || continue
        grep '^train: fault: rank ' "$scratch/err" | grep -qF -e "$word" ||
            fail "no line 'train: fault: rank ...' that names '$word'" "$@"
    done
}

# accepted ARGUMENTS...
accepted()
{
    for count in $ranks_list; do
        run "$count" "$@"
        ended 0 "$@"
    done
}

# ---- files to go wrong with ----

byte() # one byte of value $1
{
    # the format is the data here
    # shellcheck disable=SC2059
    printf "\\$(printf %03o "$1")"
}

# idx_images FILE COUNT BYTES: the header claims COUNT (< 256) images of 28 x 28; BYTES bytes of zero follow
idx_images()
{
    { printf '\0\0\010\003\0\0\0'; byte "$2"; printf '\0\0\0\034\0\0\0\034'; head -c "$3" /dev/zero; } >"$1"
}

# idx_labels FILE COUNT BYTES
idx_labels()
{
    { printf '\0\0\010\001\0\0\0'; byte "$2"; head -c "$3" /dev/zero; } >"$1"
}

# image_directory NAME: a sound, tiny data set: 60 + 20 black images of class 0
image_directory()
{
    mkdir "$scratch/$1"
    idx_images "$scratch/$1/train-images-idx3-ubyte" 60 $((60 * 784))
    idx_labels "$scratch/$1/train-labels-idx1-ubyte" 60 60
    idx_images "$scratch/$1/t10k-images-idx3-ubyte" 20 $((20 * 784))
    idx_labels "$scratch/$1/t10k-labels-idx1-ubyte" 20 20
}

# ---- what is right must work, or the refusals below prove nothing ----

run 1 --help
ended 0 --help
stage=$(sed -n '1s/.*stage \([1-4]\) .*/\1/p' "$scratch/out")
if [ -z "$stage" ]; then
    fail "the first line of --help does not name the stage" --help
    exit 1
fi
echo "train of stage $stage, ranks: $ranks_list"

for count in $ranks_list; do
    run "$count" --help
    titles=$(grep -c '^usage:' "$scratch/out")
    [ "$titles" -eq 1 ] || fail "expected the help once, got it $titles times" --help
    [ ! -s "$scratch/err" ] || fail "--help wrote to stderr" --help
    if grep -q -e '--bucket-cap-mb' "$scratch/out"; then has_buckets=2; else has_buckets=1; fi
    if [ "$stage" -ge 2 ]; then expected=2; else expected=1; fi
    [ "$has_buckets" -eq "$expected" ] || fail "--help of stage $stage: --bucket-cap-mb belongs to stages 2 to 4" --help
done

image_directory images
tiny="--steps 1 --batch-size 4"
# $tiny is a list of words on purpose, here and below
# shellcheck disable=SC2086
{
accepted --model mlp-toy $tiny
accepted --model=mlp-toy --steps=1 --batch-size=4 --verify exact
accepted --model mlp $tiny --data "$scratch/images"

# ---- words that are no flags ----

refused --no-such-flag --no-such-flag
refused --no-such-flag --no-such-flag=3
refused --mod --mod mlp                   # no abbreviations, though getopt_long() would take them
refused --model --mod mlp                 # ... and the full name is offered
refused --boot --boot=1
refused --s --s 3
refused -m -m mlp
refused -model -model mlp
refused stray stray
refused stray --model mlp stray
refused stray --drop-last stray
refused stray -- stray
refused -- --
refused "''" ""
refused --drop-last --drop-last=yes
refused --same-init --same-init=1
refused --help --help=all

# ---- values: missing, empty, unknown ----

for flag in model hidden layers heads width context data steps epochs batch-size accumulate seed optimizer lr \
    lr-schedule warmup-steps momentum weight-decay clip-grad-norm precision device threads backend allreduce wire \
    timeout check-every save save-every resume generate trace json; do
    refused --$flag --$flag
    refused --$flag --$flag=
    refused --$flag --$flag --drop-last
done
for flag in model optimizer lr-schedule precision device backend allreduce; do
    refused --$flag --$flag nonsense
done
refused --verify --verify nonsense
refused --verify --verify=nonsense
refused --verify --verify=
refused --model --model MLP
refused --model --model 'two
lines'

# ---- numbers ----

for flag in steps epochs batch-size accumulate threads; do
    for value in 0 -1 1.5 1e3 12x '' ' 5' x nan 99999999999999999999; do
        refused --$flag --model mlp-toy --$flag "$value"
    done
done
for flag in seed check-every warmup-steps save-every; do
    for value in -1 1.5 12x nan 99999999999999999999; do
        refused --$flag --model mlp-toy --$flag "$value"
    done
done
for flag in layers heads width context generate; do
    for value in -1 1.5 12x nan 99999999999999999999; do
        refused --$flag --model gpt --$flag "$value"
    done
done
for flag in lr momentum weight-decay clip-grad-norm timeout; do
    for value in -1 nan inf 1e999 0.1x 0,1 x '0.1 '; do
        refused --$flag --model mlp-toy --$flag "$value"
    done
done
refused --lr --model mlp-toy --lr 0
refused --timeout --model mlp-toy --timeout 0
refused --momentum --model mlp-toy --momentum 1
refused --layers --model gpt --layers 0
refused --heads --model gpt --heads 0
for value in 512 "512," ",512" 512,0 512,512,512 512x512 512,x; do
    refused --hidden --model mlp --hidden "$value"
done
for value in 1 "1," ",1" 0,10 -1,10 1,-1 nan,1 1,inf 1,2,3; do
    refused --wire --model mlp-toy --wire "$value"
done

# ---- flags that do not go together ----

refused --epochs --model mlp-toy --steps 1 --epochs 1
refused --hidden --model gpt --hidden 8,8
refused --layers --model mlp --layers 2
refused --context --model mlp-toy --context 8
refused --generate --model mlp --generate 10
refused --heads --model gpt --width 10 --heads 4
refused --data --model mlp-toy --data "$scratch/images"
refused --momentum --model gpt --momentum 0.9
refused --warmup-steps --model mlp-toy --steps 5 --warmup-steps 6
refused --save-every --model mlp-toy --save-every 5
refused --device --model mlp-toy --device cuda
refused train_cuda --model mlp-toy --device cuda
refused --backend --model mlp-toy --backend nccl
refused --batch-size --model mlp-toy --batch-size 3 --accumulate 4

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
else
    refused --rebuild-buckets --rebuild-buckets=yes
    refused --find-unused-parameters --find-unused-parameters=yes
fi
if [ "$stage" -lt 4 ]; then
    refused --precision --precision bf16
    refused stage4_accumulation --precision fp16
    refused --grad-dtype --grad-dtype bf16
    refused --loss-scale --loss-scale 1024
else
    refused --grad-dtype --grad-dtype int8
    refused --loss-scale --loss-scale 1024 # in fp32
    for value in 0 -1 nan inf x; do
        refused --loss-scale --model mlp-toy --precision fp16 --loss-scale "$value"
    done
fi

# ---- files to write ----

for flag in save trace json; do
    refused "$scratch/absent/file" --model mlp-toy $tiny --$flag "$scratch/absent/file"
    refused "$scratch/images" --model mlp-toy $tiny --$flag "$scratch/images"
    refused --$flag --model mlp-toy $tiny --$flag "$scratch/images/train-images-idx3-ubyte/file"
done
refused --json --model mlp-toy $tiny --json same --trace same
if [ -w /dev/full ]; then
    faulted /dev/full --model mlp-toy $tiny --json /dev/full
    faulted /dev/full --model mlp-toy $tiny --trace /dev/full
fi

# ---- files to go on from ----

: >"$scratch/empty"
head -c 200 /dev/zero | tr '\0' 'x' >"$scratch/noise"
printf '\377\377\377\377\377\377\377\177{}' >"$scratch/huge_header"
printf '\002\0\0\0\0\0\0\0{}' >"$scratch/no_tensors"
refused "$scratch/absent" --model mlp-toy $tiny --resume "$scratch/absent"
refused "$scratch/images" --model mlp-toy $tiny --resume "$scratch/images"
for file in empty noise huge_header no_tensors; do
    refused "$scratch/$file" --model mlp-toy $tiny --resume "$scratch/$file"
done
run 1 --model mlp-toy $tiny --save "$scratch/saved"
ended 0 --model mlp-toy $tiny --save "$scratch/saved"
if [ -s "$scratch/saved" ]; then
    size=$(wc -c <"$scratch/saved")
    for part in 4 8 100 $((size / 2)) $((size - 1)); do
        head -c "$part" "$scratch/saved" >"$scratch/cut"
        refused "$scratch/cut" --model mlp-toy --steps 2 --batch-size 4 --resume "$scratch/cut"
    done
    { cat "$scratch/saved"; echo; } >"$scratch/longer"
    refused "$scratch/longer" --model mlp-toy --steps 2 --batch-size 4 --resume "$scratch/longer"
    refused "$scratch/saved" --model mlp --data "$scratch/images" $tiny --resume "$scratch/saved"
    refused "$scratch/saved" --model mlp-toy --hidden 8,8 $tiny --resume "$scratch/saved"
fi

# ---- images ----

refused "$scratch/absent" --model mlp $tiny --data "$scratch/absent"
refused "$scratch/noise" --model mlp $tiny --data "$scratch/noise" # a file, not a directory
mkdir "$scratch/nothing"
refused "$scratch/nothing" --model mlp $tiny --data "$scratch/nothing"

# bad_images NAME: the directory just spoilt must be refused, and the message must say which directory
bad_images()
{
    refused "$scratch/$1" --model mlp $tiny --data "$scratch/$1"
}
for file in train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte; do
    image_directory "without-$file"
    rm "$scratch/without-$file/$file"
    bad_images "without-$file"

    image_directory "empty-$file"
    : >"$scratch/empty-$file/$file"
    bad_images "empty-$file"

    image_directory "header-$file" # not even the header is whole
    head -c 7 "$scratch/images/$file" >"$scratch/header-$file/$file"
    bad_images "header-$file"

    image_directory "short-$file" # one byte is missing
    head -c -1 "$scratch/images/$file" >"$scratch/short-$file/$file"
    bad_images "short-$file"

    image_directory "noise-$file"
    cp "$scratch/noise" "$scratch/noise-$file/$file"
    bad_images "noise-$file"

    image_directory "gzip-$file" # compressed, and cut in the middle
    rm "$scratch/gzip-$file/$file"
    gzip -c "$scratch/images/$file" >"$scratch/whole.gz"
    head -c $(($(wc -c <"$scratch/whole.gz") / 2)) "$scratch/whole.gz" >"$scratch/gzip-$file/$file.gz"
    bad_images "gzip-$file"

    image_directory "directory-$file"
    rm "$scratch/directory-$file/$file"
    mkdir "$scratch/directory-$file/$file"
    bad_images "directory-$file"
done
image_directory claims # a header that claims four milliard images
{ printf '\0\0\010\003\377\377\377\377\0\0\0\034\0\0\0\034'; head -c 784 /dev/zero; } \
    >"$scratch/claims/train-images-idx3-ubyte"
bad_images claims
image_directory square # 2^16 x 2^16 pixels: 32-bit products are 0
{ printf '\0\0\010\003\0\0\0\001\0\001\0\0\0\001\0\0'; head -c 784 /dev/zero; } >"$scratch/square/train-images-idx3-ubyte"
bad_images square
image_directory fewer # sound, but 59 labels for 60 images
idx_labels "$scratch/fewer/train-labels-idx1-ubyte" 59 59
bad_images fewer
image_directory none # sound, but no image at all
idx_images "$scratch/none/train-images-idx3-ubyte" 0 0
idx_labels "$scratch/none/train-labels-idx1-ubyte" 0 0
bad_images none
image_directory class # a label that is no class
{ printf '\0\0\010\001\0\0\0\074'; head -c 59 /dev/zero; byte 10; } >"$scratch/class/train-labels-idx1-ubyte"
bad_images class

# ---- text ----

refused "$scratch/absent" --model gpt $tiny --data "$scratch/absent"
refused "$scratch/images" --model gpt $tiny --data "$scratch/images" # a directory, not a file
refused "$scratch/empty" --model gpt $tiny --data "$scratch/empty"
refused "$scratch/noise" --model gpt $tiny --data "$scratch/noise" # shorter than the windows need
head -c 30000 /dev/urandom | gzip -c >"$scratch/text.gz"
head -c 15000 "$scratch/text.gz" >"$scratch/cut.gz"
refused "$scratch/cut.gz" --model gpt $tiny --data "$scratch/cut.gz"
}

# ---- the number of ranks ----

for count in $ranks_list; do
    if [ "$count" -gt 1 ]; then
        ranks_list=$count
        refused --batch-size --model mlp-toy --steps 1 --batch-size $((count - 1))
        refused --batch-size --model mlp-toy --steps 1 --batch-size $((count * 3 - 1)) --accumulate 3
    fi
done

left=$(ls -A "$work")
if [ -n "$left" ]; then
    failures=$((failures + 1))
    echo "FAIL: refused runs left files behind: $left"
fi
echo "$cases runs, $failures failure(s)"
[ "$failures" -eq 0 ]
