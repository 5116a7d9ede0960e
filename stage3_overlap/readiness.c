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
    readiness->used_by_any_rank = alloc_or_fault((size_t)parameters->count * sizeof *readiness->used_by_any_rank);
}

void readiness_free(Readiness *readiness)
{
    free(readiness->ready);
    free(readiness->order);
    free(readiness->unused);
    free(readiness->used_by_any_rank);
}

void readiness_begin(Readiness *readiness, const ParameterList *parameters)
{
    memset(readiness->ready, 0, (size_t)parameters->count * sizeof *readiness->ready);
    readiness->count = 0;
    if (!readiness->unused_is_final)
        readiness->unused_count = 0;
}

void readiness_find_unused(Readiness *readiness, const ParameterList *parameters, const Tape *tape, const Tensor *loss)
{
    if (readiness->unused_is_final)
        return;
    bool *used = alloc_or_fault((size_t)parameters->count * sizeof *used);
    tape_mark_used(tape, loss, used);
    readiness->unused_count = 0;
    for (int i = 0; i < parameters->count; i++)
        if (!used[i] && parameters->items[i]->tensor.requires_grad)
            readiness->unused[readiness->unused_count++] = parameters->items[i];
    free(used);
}

static bool is_unused_for_good(const Readiness *readiness, const Parameter *parameter)
{
    for (int i = 0; readiness->unused_is_final && i < readiness->unused_count; i++)
        if (readiness->unused[i] == parameter)
            return true;
    return false;
}

void readiness_mark(Readiness *readiness, const Parameter *parameter)
{
    CHECK(parameter->tensor.requires_grad, "%s was marked ready, but it is frozen: it has no gradient and is in no "
          "bucket; mark only trained parameters", parameter->name);
    double now = now_seconds();
    timeline_add(ROW_COMPUTE, now, now, "gradient-ready %s", parameter->name);
    CHECK(!(readiness->ready[parameter->index] && is_unused_for_good(readiness, parameter)),
          "--static-graph: this pass uses %s, but the first pass did not; its bucket may be launched already; if the "
          "graph changes, give --find-unused-parameters instead", parameter->name);
    CHECK(!readiness->ready[parameter->index],
          "the gradient of %s was marked ready twice in one backward pass: its all-reduce may already have read it",
          parameter->name);
    readiness->ready[parameter->index] = true;
    readiness->order[readiness->count++] = parameter->index;
}

void readiness_check_complete(Readiness *readiness, const ParameterList *parameters)
{
    for (int i = 0; i < parameters->count && readiness->unused_is_final; i++)
        CHECK(readiness->ready[i] || !parameters->items[i]->tensor.requires_grad,
              "--static-graph: this pass does not use %s, but the first pass did; if the graph changes, give "
              "--find-unused-parameters instead", parameters->items[i]->name);
    replicas_check_gradients(parameters, readiness->ready);
    readiness->unused_is_final = readiness->static_graph;
}

void readiness_agree_on_use(Readiness *readiness, ProcessGroup *pg, ParameterList *parameters)
{
    int32_t *used = readiness->used_by_any_rank;
    if (!readiness->use_is_final) {
        for (int i = 0; i < parameters->count; i++)
            used[i] = parameters->items[i]->has_gradient;
        pg_all_reduce(pg, used, used, (size_t)parameters->count, DTYPE_I32, REDUCE_MAX, "used parameters");
        readiness->use_is_final = readiness->static_graph;
    }
    for (int i = 0; i < parameters->count; i++)
        parameters->items[i]->has_gradient = used[i] != 0;
}

void readiness_agree_on_order(Readiness *readiness, ProcessGroup *pg)
{
    pg_broadcast(pg, readiness->order, (size_t)readiness->count, DTYPE_I32, 0, "order of gradients");
}
