/* power_sgd.h: the codec "powersgd", which sends a matrix as two thin ones. For stage 4.
 * Source: Vogels, Karimireddy, Jaggi, 2019, "PowerSGD: Practical Low-Rank Gradient Compression".
 *
 * A matrix M (n, m) of gradients is sent as P (n, R) and Q (m, R), and becomes P Q^T on all ranks. Each rank keeps what
 * its own M has lost, and adds it to its next M (error feedback). Vectors are sent whole, and so are matrices that
 * would not shrink to half. The codec keeps a state from step to step, so each model needs an instance of its own.
 */
#ifndef LOCKSTEP_DDP_POWER_SGD_H
#define LOCKSTEP_DDP_POWER_SGD_H

#include "autograd/tensor.h"
#include "ddp/codec.h"

typedef struct PowerSgd PowerSgd;

/* An instance for the `ranks` ranks from first_rank on, of world_size: one rank for training, all ranks for --verify
 * exact, where one process computes the shares of all. rank: R, at least 1. model must outlive the instance. Free with
 * power_sgd_free(). */
PowerSgd *power_sgd_create(ParameterList *model, int rank, int first_rank, int ranks, int world_size);
/* An instance for all ranks of the model's job: to write a file, or to read one. */
PowerSgd *power_sgd_for_all(const PowerSgd *power);
void power_sgd_free(PowerSgd *power); /* NULL is allowed */

/* Owned by the instance. Its round_share() and round_sum() take the gradients of the whole model. */
const GradientCodec *power_sgd_codec(const PowerSgd *power);

/* Call before each step's first backward. samples: the number by which the gradients will be divided. At first 1. */
void power_sgd_set_samples(PowerSgd *power, int64_t samples);

/* The state that a checkpoint needs: "powersgd.q.NAME" (R, m) and, for each rank of the instance,
 * "powersgd.error.RANK.NAME" (n, m). Owned by the instance. */
ParameterList *power_sgd_state(PowerSgd *power);

/* Copies the state of power's ranks from an instance for all ranks. */
void power_sgd_take(PowerSgd *power, const PowerSgd *all);
/* Sends every rank's state to rank 0, into its `all`; the other ranks pass NULL. Collective. */
void power_sgd_gather(const PowerSgd *power, ProcessGroup *pg, PowerSgd *all);

#endif
