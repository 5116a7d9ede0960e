/* readiness.c: keeps track of which gradients are ready. */
#include "ddp/readiness.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "ddp/replicas.h"

void readiness_create(Readiness *readiness, const ParameterList *parameters)
{
    readiness->ready = alloc_or_fault((size_t)parameters->count * sizeof *readiness->ready);
    readiness->order = alloc_or_fault((size_t)parameters->count * sizeof *readiness->order);
    readiness->unused = alloc_or_fault((size_t)parameters->count * sizeof *readiness->unused);
}

void readiness_free(Readiness *readiness)
{
    free(readiness->ready);
    free(readiness->order);
    free(readiness->unused);
}

void readiness_begin(Readiness *readiness, const ParameterList *parameters)
{
    memset(readiness->ready, 0, (size_t)parameters->count * sizeof *readiness->ready);
    readiness->count = 0;
    readiness->unused_count = 0;
}

void readiness_find_unused(Readiness *readiness, const ParameterList *parameters, const Tape *tape, const Tensor *loss)
{
    bool *used = alloc_or_fault((size_t)parameters->count * sizeof *used);
    tape_mark_used(tape, loss, used);
    readiness->unused_count = 0;
    for (int i = 0; i < parameters->count; i++)
        if (!used[i] && parameters->items[i]->tensor.requires_grad)
            readiness->unused[readiness->unused_count++] = parameters->items[i];
    free(used);
}

void readiness_mark(Readiness *readiness, const Parameter *parameter)
{
    CHECK(parameter->tensor.requires_grad, "%s was marked ready, but it is frozen: it has no gradient and is in no "
          "bucket; of the parameters that the loss does not depend on, mark only the trained ones",
          parameter->name);
    double now = now_seconds();
    timeline_add(ROW_COMPUTE, now, now, "gradient-ready %s", parameter->name);
    CHECK(!readiness->ready[parameter->index],
          "the gradient of %s was marked ready twice in one backward pass: its all-reduce may already have read it",
          parameter->name);
    readiness->ready[parameter->index] = true;
    readiness->order[readiness->count++] = parameter->index;
}

void readiness_check_complete(const Readiness *readiness, const ParameterList *parameters)
{
    replicas_check_gradients(parameters, readiness->ready);
}

void readiness_agree_on_use(ProcessGroup *pg, ParameterList *parameters)
{
    int32_t *used = alloc_or_fault((size_t)parameters->count * sizeof *used);
    for (int i = 0; i < parameters->count; i++)
        used[i] = parameters->items[i]->has_gradient;
    pg_all_reduce(pg, used, used, (size_t)parameters->count, DTYPE_I32, REDUCE_MAX, "used parameters");
    for (int i = 0; i < parameters->count; i++)
        parameters->items[i]->has_gradient = used[i] != 0;
    free(used);
}

void readiness_agree_on_order(Readiness *readiness, ProcessGroup *pg)
{
    pg_broadcast(pg, readiness->order, (size_t)readiness->count, DTYPE_I32, 0, "order of gradients");
}
