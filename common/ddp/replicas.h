/* replicas.h: what makes models on several ranks replicas of one another, shared by all stages. */
#ifndef LOCKSTEP_DDP_REPLICAS_H
#define LOCKSTEP_DDP_REPLICAS_H

#include "autograd/parameter.h"
#include "comm/process_group.h"

/* Compares a text of lines "NAME is VALUE" on all ranks. Where they differ, the run ends with one message (status 2):
 * problem, the first line that differs as rank 0 and the first other rank have it, and advice. The texts may differ in
 * length. Collective. */
void replicas_check_same_text(ProcessGroup *pg, const char *text, const char *problem, const char *advice);

/* Compares the number, names, shapes and dtypes of the parameters on all ranks; where they differ, the run ends
 * with one message that shows the first difference. Collective. */
void replicas_check_same_model(ProcessGroup *pg, const ParameterList *parameters);

/* Copies rank 0's values to all ranks, parameter by parameter. Collective. */
void replicas_broadcast(ProcessGroup *pg, ParameterList *parameters);

/* Faults, naming the first parameter that differs, unless all ranks hold the same bits. Collective. */
void replicas_check_equal(ProcessGroup *pg, const ParameterList *parameters);

/* Faults, naming them, if parameters that are trained got no gradient. ready: by parameter index, whether its gradient
 * is complete in the backward pass that just ended, as stages 3 and 4 know from the events. NULL: go by has_gradient,
 * which lasts until the optimizer's step; so under --accumulate, stages 1 and 2 let a parameter pass that an earlier
 * micro-batch of the step has used. */
void replicas_check_gradients(const ParameterList *parameters, const bool *ready);

#endif
