/* readiness.h: which gradients are ready (complete on this rank) in a backward pass. Also makes two things equal on all
 * ranks: which parameters are used, and the order in which gradients become ready. */
#ifndef LOCKSTEP_STAGE3_READINESS_H
#define LOCKSTEP_STAGE3_READINESS_H

#include "autograd/tape.h"
#include "comm/process_group.h"

typedef struct Readiness {
    bool *ready; /* by parameter index: its gradient is ready in this backward pass; owned */
    int *order;  /* parameter indices in the order in which they became ready; owned */
    int count;   /* of order */
    Parameter **unused; /* a list: the trained parameters that this rank's loss does not depend on; owned */
    int unused_count;
    int32_t *used_by_any_rank; /* by parameter index; owned */
    bool static_graph;
    bool unused_is_final; /* true after the first pass, if static_graph */
    bool use_is_final;    /* true after the first readiness_agree_on_use(), if static_graph */
} Readiness;

/* Allocates room for all parameters. Free with readiness_free().
 *
 * note: static-graph
 * static_graph promises that every pass of this rank (each micro-batch of each step) uses the same parameters as the
 * rank's first pass; other ranks may use others. Then the tape is searched for unused parameters only in the first
 * pass, and the ranks exchange which parameters are used only once, in the first step. If a later pass breaks the
 * promise, an event comes that should not come, or one is missing. Both are faults. A later pass may use the parameters
 * in another order, and each of them more or fewer times. */
void readiness_create(Readiness *readiness, const ParameterList *parameters, bool static_graph);
void readiness_free(Readiness *readiness);

/* Call before each backward pass: marks all gradients as not ready. */
void readiness_begin(Readiness *readiness, const ParameterList *parameters);

/* Call between forward and backward: sets `unused` to the trained parameters that the loss does not depend on. Backward
 * raises no event for them. With static_graph, only the first pass looks for them. */
void readiness_find_unused(Readiness *readiness, const ParameterList *parameters, const Tape *tape, const Tensor *loss);

/* Marks the parameter's gradient as ready; --trace shows the moment. Faults if the gradient is ready already in this
 * pass, because the all-reduce may have read it. Faults if the parameter is frozen. Call this function before you read
 * Buckets.of_parameter, which is -1 for a frozen one. */
void readiness_mark(Readiness *readiness, const Parameter *parameter);

/* Call after backward. Faults if trained parameters are not ready, and names them. With static_graph, the first call
 * ends the first pass: after it, the list of unused parameters never changes. */
void readiness_check_complete(Readiness *readiness, const ParameterList *parameters);

/* Sets has_gradient on all ranks for each parameter that at least one rank has used. It stays false for a parameter
 * that no rank has used, and the optimizer then skips this parameter. Collective: the ranks communicate in every
 * call; with static_graph, only in the first. */
void readiness_agree_on_use(Readiness *readiness, ProcessGroup *pg, ParameterList *parameters);

/* Replaces this rank's order by rank 0's. Call it only when all trained parameters are ready. Collective. */
void readiness_agree_on_order(Readiness *readiness, ProcessGroup *pg);

#endif
