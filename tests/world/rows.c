/* rows.c: what holds in all stages. */
#include <string.h>

#include "world/contract.h"
#include "world/memory.h"

static void run(const Mode *mode)
{
    trial_run(mode, NULL);
}

static void simple(Mode *mode)
{
    mode->order = ORDER_REVERSED;
    mode->frozen = mode->tied = mode->buffer = mode->unused = mode->find_unused = mode->rebuild = false;
    mode->micro_batches = 1;
    mode->wire = "fp32";
    mode->shard_ranks = 0;
}

static void simple_two(Mode *mode)
{
    simple(mode);
    mode->ranks = mode->ranks < 2 ? 2 : mode->ranks;
}

static void one_rank(Mode *mode)
{
    mode->ranks = 1;
}

static void many_ranks(Mode *mode)
{
    simple(mode);
    mode->ranks = 67;
    mode->parameters = 3;
    mode->steps = 2;
    mode->most_elements = 300;
}

static void frozen(Mode *mode)
{
    mode->frozen = mode->buffer = true;
    mode->parameters += 4;
}

static void tied(Mode *mode)
{
    mode->tied = true;
    mode->parameters += 2;
}

static void large(Mode *mode)
{
    simple_two(mode);
    mode->parameters = 3;
    mode->most_elements = 200000;
}

/* ---- the list of parameters stays as it is ---- */

typedef struct Seen {
    char name[64];
    bool requires_grad;
    int ndim;
    int64_t shape;
    Parameter *address;
} Seen;

static Seen seen[MOST_RANKS][64];

static Seen look(const Toy *toy, int p)
{
    const Parameter *parameter = toy->list.items[p];
    Seen one = {.requires_grad = parameter->tensor.requires_grad, .ndim = parameter->tensor.ndim,
                .shape = parameter->tensor.shape[0], .address = toy->list.items[p]};
    memcpy(one.name, parameter->name, sizeof one.name);
    return one;
}

static void remember(Toy *toy)
{
    for (int p = 0; p < toy->list.count; p++)
        seen[toy->rank][p] = look(toy, p);
}

static void compare(Toy *toy, Ddp *ddp, ProcessGroup *pg)
{
    (void)ddp, (void)pg;
    if (toy->list.count != toy->mode->parameters)
        world_fault("the list of parameters has another length");
    for (int p = 0; p < toy->list.count; p++) {
        const Seen now = look(toy, p), *before = &seen[toy->rank][p];
        if (strcmp(now.name, before->name) != 0 || now.requires_grad != before->requires_grad ||
            now.ndim != before->ndim || now.shape != before->shape || now.address != before->address)
            world_fault("the stage has changed the list of parameters: %s was number %d there", before->name, p);
    }
}

static void list_is_left_alone(const Mode *mode)
{
    trial_run(mode, &(TrialHooks){.before_create = remember, .step_over = compare});
}

/* ---- memory ---- */

static size_t heap_after[16];

/* Rank 0 looks when all ranks have ended the step. */
static void look_at_heap(Toy *toy, Ddp *ddp, ProcessGroup *pg)
{
    (void)ddp;
    pg_barrier(pg);
    if (toy->rank == 0)
        heap_after[toy->step] = heap_bytes();
    pg_barrier(pg);
}

static void memory_is_steady(const Mode *mode)
{
    if (!heap_is_counted())
        row_not_run();
    trial_run(mode, &(TrialHooks){.step_over = look_at_heap});
    trial_mode = mode;
    for (int step = 5; step < mode->steps; step++)
        if (heap_after[step] > heap_after[4] + 64 * (size_t)mode->ranks)
            world_fault("after step %d, %zu bytes more are in use than after step 4: what a step allocates it must "
                        "free", step, heap_after[step] - heap_after[4]);
}

static void eight_steps(Mode *mode)
{
    mode->steps = 8;
}

/* The first job also allocates what all jobs use. One difference is no leak: malloc() may give a piece that is 16 bytes
 * longer than asked for. A leak grows with every job. */
static void memory_is_given_back(const Mode *mode)
{
    if (!heap_is_counted())
        row_not_run();
    size_t after[4];
    for (int job = 0; job < 4; job++) {
        run(mode);
        after[job] = heap_bytes();
    }
    trial_mode = mode;
    if (after[1] < after[2] && after[2] < after[3])
        world_fault("%zu bytes are still in use after ddp_destroy() on all %d ranks", after[3] - after[2], mode->ranks);
}

/* ---- nothing else is sent ---- */

/* What may be collective in a step beside sums and gathers of weights: with find_unused, the exchange of the used
 * parameters; and in step 1, memory for buckets that are made again. */
static bool is_allowed(const Mode *mode, const LogRecord *r)
{
    const bool memory = strcmp(r->name, "pg_alloc_shared") == 0 || strcmp(r->name, "pg_free_shared") == 0;
    if (r->operation == OP_BARRIER)
        return memory && mode->rebuild && r->step == 1;
    if (r->operation == OP_BROADCAST || r->operation == OP_ALL_GATHER)
        return false;
    return r->op == REDUCE_SUM || mode->find_unused;
}

static void step_sends_only_gradients(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->step >= 1 && r->step < mode->steps - 1 && r->kind == LOG_CALL && !is_allowed(mode, r))
            world_fault("step %d has a %s (%s), for which all ranks wait: after the first step, a step needs sums, and "
                        "in stage 5 gathers that run behind forward", r->step, operation_name(r->operation), r->name);
    }
}

static void four_steps(Mode *mode)
{
    mode->steps = 4;
}

const Row rows_all[] = {
    {"start", "All ranks start with rank 0's weights, also those that are frozen", 1, 5, 40, frozen, run},
    {"sums", "A gradient is the sum over all ranks, times gradient_scale", 1, 5, 60, simple_two, run},
    {"all_modes", "So it is in every mode that the stage has", 1, 5, 400, NULL, run},
    {"one_rank", "One rank trains as well", 1, 5, 20, one_rank, run},
    {"many_ranks", "67 ranks train as well", 1, 5, 3, many_ranks, run},
    {"large_parameters", "Parameters may have any size", 1, 5, 4, large, run},
    {"frozen_parameters", "A frozen parameter stays as it is, and has no gradient", 1, 5, 40, frozen, run},
    {"used_twice", "A gradient is sent when its last contribution is there, also if a weight is used twice", 1, 5, 60,
     tied, run},
    {"list_is_left_alone", "The stage changes neither the list of parameters, nor shapes, nor requires_grad", 1, 5, 20,
     NULL, list_is_left_alone},
    {"memory_is_steady", "A step frees what it allocates", 1, 5, 20, eight_steps, memory_is_steady},
    {"memory_is_given_back", "ddp_destroy() frees all that the stage has allocated", 1, 5, 20, NULL,
     memory_is_given_back},
    {"only_gradients", "After the first step, ranks wait for each other only where sums need it", 1, 5, 30, four_steps,
     step_sends_only_gradients},
    {0}};
