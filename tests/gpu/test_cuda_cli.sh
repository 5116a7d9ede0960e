#!/bin/sh
# test_cuda_cli.sh: `train_cuda` without a GPU: its flags, and its message when it is to train. All GPUs of the machine,
# if there are any, are hidden from it. Its usage and the expected behaviour: cli/cases.sh.
#
# usage: test_cuda_cli.sh TRAIN_CUDA [MPIEXEC]      TRAIN_CUDA: stage 4's, for --precision

CUDA_VISIBLE_DEVICES=
export CUDA_VISIBLE_DEVICES
program=train_cuda
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../train/cli/cases.sh"

run 1 --help
ended 0 --help
head -1 "$scratch/out" | grep -q '^train_cuda: .*stage [1-5]' || fail "the help does not begin with train_cuda" --help
for flag in share-gpu tf32; do
    grep -q -e "^ *--$flag " "$scratch/out" || fail "the help does not name --$flag" --help
done
[ ! -s "$scratch/err" ] || fail "--help wrote to stderr" --help

tiny="--model mlp-toy --steps 1"
# $tiny is a list of words on purpose
# shellcheck disable=SC2086
{
refused 'the CPU program is' $tiny
refused 'no CUDA device' $tiny --backend nccl
refused 'no CUDA device' $tiny --share-gpu
refused 'no CUDA device' $tiny --share-gpu --backend mpi --allreduce ordered

# Mistakes in the flags are reported before a GPU is looked for.
refused --share-gpu $tiny --share-gpu --backend nccl
refused --dropout $tiny --dropout 0.1
refused --allreduce $tiny --allreduce ordered
refused '--backend mpi' $tiny --backend nccl --allreduce ring
refused --allreduce $tiny --backend mpi --allreduce shm
refused --share-gpu $tiny --share-gpu=1
refused 'no CUDA device' $tiny --tf32
refused --tf32 $tiny --tf32=1
for precision in bf16 fp16; do
    refused "--precision" $tiny --tf32 --precision $precision
done
refused --lr $tiny --lr nan
}

finish
