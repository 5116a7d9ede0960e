/* readiness.c: keeps track of which gradients are ready. */
#include "stage3_overlap/readiness.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "ddp/replicas.h"

void readiness_create(Readiness *readiness, const ParameterList *parameters, bool static_graph)
{
    *readiness = (Readiness){.static_graph = static_graph};
    readiness->ready = alloc_or_fault((size_t)parameters->count * sizeof *readiness->ready);
    readiness->order = alloc_or_fault((size_t)parameters->count * sizeof *readiness->order);
    readiness->unused = alloc_or_fault((size_t)parameters->count * sizeof *readiness->unused);
    readiness->used = alloc_or_fault((size_t)parameters->count * sizeof *readiness->used);
}

void readiness_free(Readiness *readiness)
{
    free(readiness->ready);
    free(readiness->order);
    free(readiness->unused);
    free(readiness->used);
}

void readiness_begin(Readiness *readiness, const ParameterList *parameters)
{
    memset(readiness->ready, 0, (size_t)parameters->count * sizeof *readiness->ready);
    readiness->count = 0;
    if (!readiness->recorded)
        readiness->unused_count = 0;
}

void readiness_find_unused(Readiness *readiness, const ParameterList *parameters, const Tape *tape, const Tensor *loss)
{
    if (readiness->recorded)
        return;
    bool *used = alloc_or_fault((size_t)parameters->count * sizeof *used);
    tape_mark_used(tape, loss, used);
    readiness->unused_count = 0;
    for (int i = 0; i < parameters->count; i++)
        if (!used[i] && parameters->items[i]->tensor.requires_grad)
            readiness->unused[readiness->unused_count++] = parameters->items[i];
    free(used);
    readiness->recorded = readiness->static_graph;
}

static bool is_recorded_as_unused(const Readiness *readiness, const Parameter *parameter)
{
    for (int i = 0; i < readiness->unused_count && readiness->recorded; i++)
        if (readiness->unused[i] == parameter)
            return true;
    return false;
}

void readiness_mark(Readiness *readiness, const Parameter *parameter)
{
    CHECK(parameter->tensor.requires_grad, "%s was marked ready, but it is frozen: it has no gradient and is in no "
          "bucket; of the parameters that the loss does not depend on, mark only the trained ones",
          parameter->name);
    double now = now_seconds();
    timeline_add(ROW_COMPUTE, now, now, "gradient-ready %s", parameter->name);
    CHECK(!readiness->ready[parameter->index] || !is_recorded_as_unused(readiness, parameter),
          "--static-graph: this pass uses %s, which the first one did not use, so that its bucket may be on its way "
          "already; leave the flag out if the graph changes", parameter->name);
    CHECK(!readiness->ready[parameter->index],
          "the gradient of %s was marked ready twice in one backward pass: its all-reduce may already have read it",
          parameter->name);
    readiness->ready[parameter->index] = true;
    readiness->order[readiness->count++] = parameter->index;
}

void readiness_check_complete(const Readiness *readiness, const ParameterList *parameters)
{
    for (int i = 0; i < parameters->count; i++)
        CHECK(!readiness->recorded || readiness->ready[i] || !parameters->items[i]->tensor.requires_grad,
              "--static-graph: this pass does not use %s, which the first one used; leave the flag out if the graph "
              "changes", parameters->items[i]->name);
    replicas_check_gradients(parameters, readiness->ready);
}

void readiness_agree_on_use(Readiness *readiness, ProcessGroup *pg, ParameterList *parameters)
{
    int32_t *used = readiness->used;
    if (!readiness->agreed) {
        for (int i = 0; i < parameters->count; i++)
            used[i] = parameters->items[i]->has_gradient;
        pg_all_reduce(pg, used, used, (size_t)parameters->count, DTYPE_I32, REDUCE_MAX, "used parameters");
        readiness->agreed = readiness->static_graph;
    }
    for (int i = 0; i < parameters->count; i++)
        parameters->items[i]->has_gradient = used[i] != 0;
}

void readiness_agree_on_order(Readiness *readiness, ProcessGroup *pg)
{
    pg_broadcast(pg, readiness->order, (size_t)readiness->count, DTYPE_I32, 0, "order of gradients");
}
