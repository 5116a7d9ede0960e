#!/usr/bin/env bash
# test_small_shm.sh TRAIN MPIEXEC...: runs where /dev/shm is small, as in a container. --allreduce shm: a line says how
# much is needed and how much is free, with status 2, instead of a bus error. The default, auto, does without what does
# not fit, and computes the same bits. With enough room, both train. The test needs a /dev/shm of its own, and so a mount
# namespace. Exit status 77 (skipped) if this user cannot get one, or if this MPI
# keeps shared memory elsewhere.
set -u
train=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
    failures=$((failures + 1))
    echo "FAIL: $1"
    sed 's/^/     stderr: /' "$work/err" | head -n 5
}

may_mount() { # FLAGS of unshare
    unshare "$@" sh -c 'mount -t tmpfs -o size=1m tmpfs /dev/shm' 2>/dev/null
}
if may_mount -m; then namespace=-m; elif may_mount -rm; then namespace=-rm; else
    echo "SKIP: no mount namespace is permitted here (unshare -m), so /dev/shm cannot be made small"
    exit 77
fi

# with SIZE WORDS...: runs train on 2 ranks with a /dev/shm of that size. Sets status.
with() {
    local size=$1
    shift
    # shellcheck disable=SC2016,SC2086 # the inner shell's; MPIEXEC_FLAGS is a list
    timeout -k 2 60 unshare "$namespace" sh -c 'mount -t tmpfs -o "size=$0" tmpfs /dev/shm && exec "$@"' "$size" \
        "${mpiexec[@]}" ${MPIEXEC_FLAGS:-} -n 2 "$train" --model gpt --batch-size 2 --steps 1 --eval-samples 2 \
        "$@" >"$work/out" 2>"$work/err"
    status=$?
}
mpiexec=("$@")

with 400m --allreduce shm
[ "$status" -eq 0 ] || fail "with 400 MB, which is enough: ended with status $status"
with 24m --allreduce shm
if [ "$status" -eq 0 ] && "${mpiexec[0]}" --version 2>/dev/null | grep -qi hydra; then
    fail "with 24 MB: trains, although MPICH keeps shared memory in /dev/shm, where the gradients do not fit"
elif [ "$status" -eq 0 ]; then
    echo "SKIP: trains with a small /dev/shm: this MPI keeps shared memory elsewhere ($failures failure(s) before)"
    [ "$failures" -eq 0 ] && exit 77
    exit 1
fi
[ "$status" -eq 2 ] || fail "with 24 MB, less than the gradients of 2 ranks need: expected status 2, got $status"
grep -Eq '^train: error: .*\(shm\): the next [0-9]+ MiB do not fit into /dev/shm, which has [0-9]+ MiB left.*ordered$' \
    "$work/err" || fail "with 24 MB: no line says how much is needed, and how much there is"
# The default. With 24 MB, the mailboxes fit, and the gradients do not. The smallest size, in whole MB, with which MPI
# itself starts has less than 2 MB left, which the mailboxes need.
trains() { # SIZE ALGORITHM: sets hash
    with "$1" --json "$work/json"
    hash=$(grep '"weights_hash"' "$work/json")
    [ "$status" -eq 0 ] || fail "with $1, at the defaults: ended with status $status"
    grep -q "sums by $2," "$work/out" || fail "with $1, at the defaults: the sums are not made by $2"
}
trains 400m shm
with_windows=$hash
trains 24m shm
{ [ -n "$hash" ] && [ "$hash" = "$with_windows" ]; } ||
    fail "gradients in ordinary memory give other weights: $hash, not $with_windows"
for size in $(seq 1 24); do
    with "${size}m" && [ "$status" -eq 0 ] && break
done
trains "${size}m" mpi

with 24m --allreduce ordered
[ "$status" -eq 0 ] || fail "with 24 MB, and --allreduce ordered, as the line advises: ended with status $status"

echo "$failures failure(s)"
[ "$failures" -eq 0 ]
