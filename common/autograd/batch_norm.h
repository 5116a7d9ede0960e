/* batch_norm.h: batch normalization, with the statistics of one rank or of all. On the CPU only.
 *
 * Source: Ioffe and Szegedy, 2015; eps 1e-5 and momentum 0.1 as in torch.nn.BatchNorm1d. */
#ifndef LOCKSTEP_AUTOGRAD_BATCH_NORM_H
#define LOCKSTEP_AUTOGRAD_BATCH_NORM_H

#include "autograd/tape.h"

/* Lets an operation gather numbers from all ranks. ddp/sync_batch_norm.h makes it: autograd/ knows no process group. */
typedef struct RankGather {
    int ranks;
    /* all (ranks * count) = every rank's own (count), in rank order. Collective. */
    void (*gather)(void *owner, const double *own, double *all, size_t count);
    void *owner; /* its first argument */
} RankGather;

/* Moving averages of a layer's statistics, for evaluation: buffers of C elements. */
typedef struct RunningStatistics {
    Parameter *mean, *var;
} RunningStatistics;

typedef struct BatchNorm {
    Parameter *weight, *bias; /* (C) */
    RunningStatistics running;
} BatchNorm;

/* Registers NAME.weight (ones), NAME.bias (zeros), NAME.running_mean (zeros) and NAME.running_var (ones), of C elements
 * each. The list owns them. */
BatchNorm batch_norm_create(ParameterList *parameters, const char *name, int64_t C);

/* x (rows, C) -> (rows, C) = (x - mean) / sqrt(variance + eps) * weight + bias, for each of the C columns; weight and
 * bias (C).
 * While the tape records, mean and variance are those of all ranks' rows (`ranks` NULL: of this process's rows), and
 * the running ones move towards them. This takes one collective here and one in backward, also on a rank without rows.
 * Otherwise mean and variance are the running ones. `ranks` must stay valid until backward has run. Faults if there is
 * only one row, which has no variance. */
Tensor *op_batch_norm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, const RunningStatistics *running,
                      const RankGather *ranks);

#endif
