/* judge_stage.c: see judge.h: what the judge gets of a stage, and its group, which has no ranks. */
#include "judge.h"

#include <string.h>

#include "autograd/tensor.h"
#include "base/check.h"
#include "comm/group.h"
#include "comm/shared_memory.h"
#include "judge_parts.h"

bool judge_leaves_case_out(void)
{
    judge_left_out = true;
    return in_judge();
}

static void pass_tensor(void *values, const Tensor *tensor)
{
    judge_pass(SAYS_VALUES, values, values != NULL ? (size_t)tensor_count(tensor) * sizeof(float) : 0);
}

void judged_weights(const ParameterList *parameters)
{
    for (int i = 0; i < parameters->count && judge_runs_cases && !judge_left_out; i++)
        pass_tensor(parameters->items[i]->tensor.data, &parameters->items[i]->tensor);
}

void judged_gradients(const ParameterList *parameters)
{
    for (int i = 0; i < parameters->count && judge_runs_cases && !judge_left_out; i++)
        if (parameters->items[i]->tensor.requires_grad)
            pass_tensor(parameters->items[i]->tensor.grad, &parameters->items[i]->tensor);
}

/* ---- a group without ranks ---- */

static void run(Backend *self, ProcessGroup *pg, const Collective *c)
{
    (void)self;
    const size_t bytes = collective_bytes(c, pg_world_size(pg));
    if (c->operation == OP_ALL_GATHER)
        for (int rank = 0; rank < pg->world_size; rank++)
            memmove((char *)c->receive + (size_t)rank * (bytes / (size_t)pg->world_size), c->send,
                    bytes / (size_t)pg->world_size);
    else if (c->operation == OP_ALL_REDUCE)
        memmove(c->receive, c->send, bytes);
}

static void close_group(Backend *self, ProcessGroup *pg)
{
    (void)self, (void)pg;
    judge_end(false);
}

ProcessGroup *judge_group(ProcessGroup *pg)
{
    static Backend nothing = {.name = "judge", .run = run, .close = close_group};
    int32_t size = pg != NULL ? pg_world_size(pg) : 0;
    judge_pass(SAYS_SIZE, &size, sizeof size);
    judge_draw();
    if (!in_judge())
        return pg;
    pg = alloc_or_fault(sizeof *pg);
    *pg = (ProcessGroup){.world_size = size, .backend = &nothing, .measuring = true,
                         .shared = alloc_or_fault(sizeof *pg->shared)};
    pthread_mutex_init(&pg->lock, NULL);
    return pg;
}
