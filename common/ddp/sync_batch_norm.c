/* sync_batch_norm.c: see sync_batch_norm.h. */
#include "ddp/sync_batch_norm.h"

static void gather(void *owner, const double *own, double *all, size_t count)
{
    pg_all_gather(owner, own, all, count, DTYPE_F64, "batch norm");
}

RankGather sync_batch_norm_ranks(ProcessGroup *pg)
{
    return (RankGather){.ranks = pg_world_size(pg), .gather = gather, .owner = pg};
}

void buffers_broadcast(ProcessGroup *pg, ParameterList *parameters)
{
    for (int i = 0; i < parameters->count; i++) {
        Parameter *parameter = parameters->items[i];
        if (!parameter->is_buffer)
            continue;
        pg_broadcast(pg, parameter->tensor.data, (size_t)tensor_count(&parameter->tensor), DTYPE_F32, 0,
                     parameter->name);
        parameter_changed(parameter);
    }
}
