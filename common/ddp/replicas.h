/* replicas.h: keeps the models of all ranks equal, and checks that they are. For all stages. */
#ifndef LOCKSTEP_DDP_REPLICAS_H
#define LOCKSTEP_DDP_REPLICAS_H

#include "autograd/tensor.h"
#include "comm/process_group.h"

/* Compares a text of lines "NAME is VALUE" on all ranks. If the texts differ, the run ends with one message (status 2):
 * `problem`, the first different line as it is on rank 0 and on the other rank, and `advice`. The texts may have
 * different lengths. Collective. */
void replicas_check_same_text(ProcessGroup *pg, const char *text, const char *problem, const char *advice);

/* Compares the number, names, shapes and dtypes of the parameters on all ranks, and which are trained. If they differ,
 * the run ends with one message (status 2) that shows the first difference. Collective. */
void replicas_check_same_model(ProcessGroup *pg, const ParameterList *parameters);

/* Copies rank 0's values to all ranks, parameter by parameter, and calls parameters_changed(). Collective. */
void replicas_broadcast(ProcessGroup *pg, ParameterList *parameters);

/* Faults if not all ranks hold the same bits, and names the first parameter that differs. Collective. */
void replicas_check_equal(ProcessGroup *pg, const ParameterList *parameters);

/* Faults if trained parameters got no gradient, and names them. ready: by parameter index, whether its gradient is
 * ready in the backward pass that just ended; stages 3 to 5 know this from the events. NULL: has_gradient decides. This
 * is the same where a step has one micro-batch. */
void replicas_check_gradients(const ParameterList *parameters, const bool *ready);

#endif
