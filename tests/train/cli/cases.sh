# cases.sh: runs `train` with given arguments and checks how it ended. Sourced by test_cli*.sh, test_cuda_cli.sh
# and test_outputs.sh.
#
# usage of all: test_cli.sh TRAIN [MPIEXEC]
#
# Each mistake must end the program within the time limit, with status 2 and one line on stderr that begins
# "train: error:" and names the flag or file.
# `program`: set by the test if the program's name in messages is not "train".
# CLI_RANKS="1" tests one rank only (quick). MPIEXEC_FLAGS: more words for mpiexec, such as "--oversubscribe -q"
# for Open MPI.
#
# Interface: refused WORD ARGUMENTS..., accepted ARGUMENTS...; finish at the end.
# shellcheck shell=sh

set -u
if [ $# -lt 1 ]; then
    echo "usage: $0 TRAIN [MPIEXEC]" >&2
    exit 2
fi
train=$(realpath "$1")
mpiexec=$(command -v "${2:-mpiexec}")
program=${program:-train}
ranks_list=${CLI_RANKS:-1 2}
limit=20
cases=0
failures=0

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM
work=$scratch/work # every run starts here, and may not leave a file
mkdir "$work"

# ---- running and checking a case ----

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
    echo "FAIL on $ranks rank(s): $program $*"
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
        fail "still running after $limit s: a rank waits for one that has ended, or training began" "$@"
    elif [ "$status" -eq 0 ]; then
        fail "expected status $expected, got 0: the mistake was not noticed" "$@"
    else
        fail "expected status $expected, got $status" "$@"
    fi
    return 1
}

# refused WORD ARGUMENTS...: a user's mistake; the message must contain WORD
refused()
{
    word=$1
    shift
    for count in $ranks_list; do
        run "$count" "$@"
        ended 2 "$@" || continue
        lines=$(wc -l <"$scratch/err")
        if [ "$lines" -ne 1 ]; then
            fail "expected one line on stderr, got $lines: did every rank print one, or is there a newline in it?" "$@"
        elif ! grep -q "^$program: error: " "$scratch/err"; then
            fail "the line does not begin with '$program: error: '" "$@"
        elif ! grep -qF -e "$word" "$scratch/err"; then
            fail "the message does not name '$word'" "$@"
        elif [ -s "$scratch/out" ]; then
            fail "a wrong call printed something on stdout: $(head -1 "$scratch/out")" "$@"
        fi
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

# Call last in a test: prints the result and returns it.
finish()
{
    left=$(ls -A "$work")
    if [ -n "$left" ]; then
        failures=$((failures + 1))
        echo "FAIL: refused runs left files behind: $left"
    fi
    echo "$cases runs, $failures failure(s)"
    [ "$failures" -eq 0 ]
}

# ---- files for the cases ----

byte() # one byte of value $1
{
    # the format is data here
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

# image_directory NAME: a valid, tiny data set: 60 + 20 black images of class 0
image_directory()
{
    mkdir "$scratch/$1"
    idx_images "$scratch/$1/train-images-idx3-ubyte" 60 $((60 * 784))
    idx_labels "$scratch/$1/train-labels-idx1-ubyte" 60 60
    idx_images "$scratch/$1/t10k-images-idx3-ubyte" 20 $((20 * 784))
    idx_labels "$scratch/$1/t10k-labels-idx1-ubyte" 20 20
}
