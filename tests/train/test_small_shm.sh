#!/usr/bin/env bash
# test_small_shm.sh TRAIN MPIEXEC...: --allreduce shm where /dev/shm is small, as in a container: a line says how much
# is needed and how much is free, with status 2, instead of a bus error. With enough room, it trains. The test needs a
# /dev/shm of its own, and so a mount namespace. Exit status 77 (skipped) if this user cannot get one, or if this MPI
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
# (This exit does not free the present windows, which a sanitizer would report with a status of its own.)
ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 with 24m --allreduce shm
if [ "$status" -eq 0 ]; then
    echo "SKIP: trains with a small /dev/shm: this MPI keeps shared memory elsewhere ($failures failure(s) before)"
    [ "$failures" -eq 0 ] && exit 77
    exit 1
fi
[ "$status" -eq 2 ] || fail "with 24 MB, less than the gradients of 2 ranks need: expected status 2, got $status"
grep -Eq '^train: error: .*\(shm\): the next [0-9]+ MiB do not fit into /dev/shm, which has [0-9]+ MiB left.*ordered$' \
    "$work/err" || fail "with 24 MB: no line says how much is needed, and how much there is"
with 24m --allreduce ordered
[ "$status" -eq 0 ] || fail "with 24 MB, and --allreduce ordered, as the line advises: ended with status $status"

echo "$failures failure(s)"
[ "$failures" -eq 0 ]
