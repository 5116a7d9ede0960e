#!/usr/bin/env bash
# test_small_shm.sh TRAIN MPIEXEC...: runs where /dev/shm is small, as in a container. --allreduce shm: a line says how
# much is needed and how much is free, with status 2, instead of a bus error. The default, auto, does without what does
# not fit, and computes the same bits. With enough room, both train. If /dev/shm cannot be written, MPI uses /tmp, which
# may be small; if neither can be written, one line says so. The test needs a /dev/shm of its own, and so a mount
# namespace. Exit status 77 (skipped) if this user cannot get one, or if this MPI keeps shared memory elsewhere.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
train=$1
shift

may_mount() { # FLAGS of unshare
    unshare "$@" sh -c 'mount -t tmpfs -o size=1m tmpfs /dev/shm' 2>/dev/null
}
if may_mount -m; then namespace=-m; elif may_mount -rm; then namespace=-rm; else
    echo "SKIP: no mount namespace is permitted here (unshare -m), so /dev/shm cannot be made small"
    exit 77
fi

# with OPTIONS WORDS...: runs train on 2 ranks with a /dev/shm that is mounted with these options: "1m", "1m,ro". If they
# are two ("ro 2m"), the second is for /tmp, where the program sees none of this test's files. It may lie there itself, so
# it is run from /mnt. Sets status.
with() {
    local options=$1
    shift
    # shellcheck disable=SC2016,SC2086 # the inner shell's; MPIEXEC_FLAGS is a list
    timeout -k 2 60 unshare "$namespace" sh -c 'mount --bind "$1" /mnt && cd /mnt && shift || exit 99
        place=/dev/shm
        for options in $0; do mount -t tmpfs -o "$options" tmpfs $place || exit 99; place=/tmp; done
        exec "$@"' "${options//ro/size=1m,ro}" \
        "$(dirname "$train")" "${mpiexec[@]}" ${MPIEXEC_FLAGS:-} -n 2 "/mnt/${train##*/}" --model gpt --batch-size 2 --steps 1 --eval-samples 2 \
        "$@" >"$scratch/out" 2>"$scratch/err"
    status=$?
}
mpiexec=("$@")

with size=400m --allreduce shm
[ "$status" -eq 0 ] || fail "with 400 MB, which is enough: ended with status $status"
with size=24m --allreduce shm
if [ "$status" -eq 0 ] && "${mpiexec[0]}" --version 2>/dev/null | grep -qi hydra; then
    fail "with 24 MB: trains, although MPICH keeps shared memory in /dev/shm, where the gradients do not fit"
elif [ "$status" -eq 0 ]; then
    echo "SKIP: trains with a small /dev/shm: this MPI keeps shared memory elsewhere ($failures failure(s) before)"
    [ "$failures" -eq 0 ] && exit 77
    exit 1
fi
[ "$status" -eq 2 ] || fail "with 24 MB, less than the gradients of 2 ranks need: expected status 2, got $status"
grep -Eq '^train: error: .*\(shm\): the next [0-9]+ MiB do not fit into /dev/shm, which has [0-9]+ MiB left.*ordered$' \
    "$scratch/err" || fail "with 24 MB: no line says how much is needed, and how much there is"
# The default. With 24 MB, the mailboxes fit, and the gradients do not. With 1 MB, neither do the mailboxes, nor MPI's own
# messages, which it keeps elsewhere.
trains() { # SIZE ALGORITHM: sets hash
    with "size=$1" --json "$scratch/json"
    hash=$(grep '"weights_hash"' "$scratch/json")
    [ "$status" -eq 0 ] || fail "with $1, at the defaults: ended with status $status"
    grep -q "sums by $2," "$scratch/out" || fail "with $1, at the defaults: the sums are not made by $2"
}
trains 400m shm
with_windows=$hash
trains 24m shm
{ [ -n "$hash" ] && [ "$hash" = "$with_windows" ]; } ||
    fail "gradients in ordinary memory give other weights: $hash, not $with_windows"
trains 1m mpi
elsewhere='^train: note: /dev/shm cannot be written or has little room, so MPI was asked to keep its messages elsewhere'
grep -q "$elsewhere" "$scratch/err" || fail "with 1 MB: no note says that MPI's messages lie elsewhere"

with size=24m --allreduce ordered
[ "$status" -eq 0 ] || fail "with 24 MB, and --allreduce ordered, as the line advises: ended with status $status"

# /dev/shm cannot be written. In /tmp there is room for all, for the mailboxes, or for nothing that train needs.
algorithm() { # OPTIONS ALGORITHM
    with "$1"
    { [ "$status" -eq 0 ] && grep -q "sums by $2," "$scratch/out"; } ||
        fail "mounts $1, at the defaults: status $status, or the sums are not made by $2"
    grep -q "$elsewhere" "$scratch/err" || fail "mounts $1: no note says that MPI's messages lie elsewhere"
    ! grep -q UCX.*ERROR "$scratch/err" || fail "mounts $1: UCX reports errors"
}
algorithm ro shm
algorithm "ro size=24m" shm
algorithm "ro size=128k" mpi
with "ro size=24m" --allreduce shm
{ [ "$status" -eq 2 ] && grep -Eq '^train: error: .* do not fit into /tmp, which has [0-9]+ MiB left \(MPI uses it' "$scratch/err"; } ||
    fail "a /tmp of 24 MB in the place of /dev/shm: status $status, or no line says that the windows do not fit there"
with "ro ro"
{ [ "$status" -ne 0 ] && [ "$(grep -c '^train: fault: rank 0: .*/dev/shm, or else in /tmp, but neither' "$scratch/err")" -eq 1 ] &&
    [ "$(grep -vc '^=\|^YOUR\|^$\|^Please\|^This' "$scratch/err")" -eq 1 ]; } ||
    fail "neither /dev/shm nor /tmp can be written: status $status, or more or less than one line says so"

finish
