/* power_sgd.h: the codec "powersgd", which sends a matrix as two thin ones. For stage 4.
 * Source: Vogels, Karimireddy, Jaggi, 2019, "PowerSGD: Practical Low-Rank Gradient Compression".
 *
 * This codec has a state, so it is made for a model: an instance, whose codec goes into DdpOptions. A matrix M (n, m) of
 * gradients is sent as P (n, R) and Q (m, R), and becomes P Q^T on all ranks. What a rank's M has lost is kept there, and
 * is added to its next M (error feedback). Vectors, and matrices that would not be half as large, are sent whole.
 */
#ifndef LOCKSTEP_DDP_POWER_SGD_H
#define LOCKSTEP_DDP_POWER_SGD_H

#include "autograd/tensor.h"
#include "ddp/codec.h"

typedef struct PowerSgd PowerSgd;

/* For ranks first_rank to first_rank + ranks - 1 of world_size: one, where it sends; all of them, where one process
 * stands for all (--verify exact). model and its gradients are not owned,
 * and must outlive the instance. rank: R, at least 1. */
PowerSgd *power_sgd_create(ParameterList *model, int rank, int first_rank, int ranks, int world_size);
/* The same for all ranks of the model's job: for what is written to a file, or read from one. */
PowerSgd *power_sgd_for_all(const PowerSgd *power);
void power_sgd_free(PowerSgd *power); /* NULL is allowed */

/* It stays the instance's. Its round_share() and round_sum() take the model's whole gradients. */
const GradientCodec *power_sgd_codec(const PowerSgd *power);

/* Before each step's first backward: by how many samples the gradients will be divided, over all ranks (at first 1). */
void power_sgd_set_samples(PowerSgd *power, int64_t samples);

/* What a run must keep to go on with the same bits: "powersgd.q.NAME" (R, m) and, of each rank of the instance,
 * "powersgd.error.RANK.NAME" (n, m). It stays the instance's. */
ParameterList *power_sgd_state(PowerSgd *power);

/* Copies from an instance of all ranks what belongs to the ranks of `power`. */
void power_sgd_take(PowerSgd *power, const PowerSgd *all);
/* The other way: every rank's state to rank 0, which gives `all`; the others give NULL. Collective. */
void power_sgd_gather(const PowerSgd *power, ProcessGroup *pg, PowerSgd *all);

#endif
