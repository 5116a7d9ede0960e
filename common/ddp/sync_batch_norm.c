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

void buffers_broadcast(ProcessGroup *pg, ParameterList *parameters, bool has_rows)
{
    int32_t after = has_rows ? pg_world_size(pg) - pg_rank(pg) : 0; /* the first rank's is the largest */
    pg_all_reduce(pg, &after, &after, 1, DTYPE_I32, REDUCE_MAX, "who has rows");
    if (after == 0)
        return;
    for (int i = 0; i < parameters->count; i++) {
        Parameter *parameter = parameters->items[i];
        if (!parameter->is_buffer)
            continue;
        pg_broadcast(pg, parameter->tensor.data, (size_t)tensor_count(&parameter->tensor), DTYPE_F32,
                     pg_world_size(pg) - after, parameter->name);
        parameter_changed(parameter);
    }
}
