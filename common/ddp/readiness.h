/* readiness.h: which gradients are complete in a backward pass, and what the ranks must agree on about that.
 * For the stages that listen to gradient-ready events (3 and 4).
 */
#ifndef LOCKSTEP_DDP_READINESS_H
#define LOCKSTEP_DDP_READINESS_H

#include "autograd/tape.h"
#include "comm/process_group.h"

typedef struct Readiness {
    bool *ready; /* by parameter index: its gradient is complete in this backward pass; owned */
    int *order;  /* parameter indices in the order in which they became ready; owned */
    int count;   /* of order */
} Readiness;

void readiness_create(Readiness *readiness, const ParameterList *parameters);
void readiness_free(Readiness *readiness);

/* A new backward pass: nothing is ready. */
void readiness_begin(Readiness *readiness, const ParameterList *parameters);

/* The parameter's gradient is complete; --trace shows the moment. Faults if it was complete before, because something
 * has been added to a gradient that may already have been sent; and if the parameter is frozen, because no bucket holds
 * it: so mark first, then look for the bucket. */
void readiness_mark(Readiness *readiness, const Parameter *parameter);

/* Backward is over: faults, naming them, unless every trained parameter is ready. */
void readiness_check_complete(const Readiness *readiness, const ParameterList *parameters);

/* A parameter that any rank has used gets has_gradient on all ranks; one that no rank has used keeps it false, and
 * the optimizer leaves it alone. Collective. */
void readiness_agree_on_use(ProcessGroup *pg, ParameterList *parameters);

/* Replaces this rank's order by rank 0's. Collective. */
void readiness_agree_on_order(Readiness *readiness, ProcessGroup *pg);

#endif
