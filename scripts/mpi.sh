# shellcheck shell=bash
# mpi.sh: starts a program as several ranks, the same way under MPICH and Open MPI. Source it:
#
#   source scripts/mpi.sh
#   run_ranks 2 build/stage1_naive/train --model mlp-toy
#
# MPICH needs no options. Open MPI refuses to run as root, refuses more ranks than cores, and binds each rank to
# one core, which a rank's communication thread would share with its computing thread.

run_ranks_under=() # a command that starts mpiexec, e.g. (timeout 60)
mpiexec_options=()
if mpiexec --version 2>&1 | grep -qiE 'open.?mpi|open-?rte|prrte'; then
    mpiexec_options=(--oversubscribe --bind-to none)
    if [ "$(id -u)" -eq 0 ]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
fi

# run_ranks N COMMAND...: returns mpiexec's status, which is not 0 if that of any rank is not 0.
run_ranks() {
    local ranks=$1
    shift
    "${run_ranks_under[@]}" mpiexec "${mpiexec_options[@]}" -n "$ranks" "$@" </dev/null
}
