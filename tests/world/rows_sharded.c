/* rows_sharded.c: stage 5: shards, gathers, and what is held when. */
#include <string.h>

#include "world/contract.h"

static void run(const Mode *mode)
{
    trial_run(mode, NULL);
}

static void level_1(Mode *mode) { mode->level = 1; }
static void level_2(Mode *mode) { mode->level = 2; mode->ranks += mode->ranks == 1; }
static void level_3(Mode *mode) { mode->level = 3; mode->ranks += mode->ranks == 1; mode->parameters += 4; }

/* A chain in which each layer is used once, in the buckets' order. */
static void chained(Mode *mode)
{
    mode->parameters += 6;
    mode->order = ORDER_REVERSED;
    mode->tied = mode->unused = mode->find_unused = mode->static_graph = false;
    mode->steps = 3;
}

/* ---- slices ---- */

enum { MOST_ELEMENTS = 4000 };
static unsigned char updated_by[64][MOST_ELEMENTS]; /* by parameter and element: how many ranks update it */

static void note_slices(Toy *toy, Ddp *ddp)
{
    const Partition *partition = ddp_partition(ddp);
    if (partition == NULL)
        world_fault("ddp_partition() is NULL: stage 5 gives each rank its slices");
    for (int p = 0; p < toy->list.count; p++)
        for (int64_t i = 0; i < partition->slices[p].count; i++)
            updated_by[p][partition->slices[p].begin + i]++;
}

static void check_slices(Toy *toy, Ddp *ddp, ProcessGroup *pg)
{
    (void)ddp;
    const Mode *mode = toy->mode;
    const int copies = mode->shard_ranks > 0 ? mode->ranks / mode->shard_ranks : 1;
    pg_barrier(pg);
    for (int p = 0; p < toy->list.count; p++)
        for (int64_t i = 0; i < tensor_count(&toy->list.items[p]->tensor); i++)
            if (updated_by[p][i] != (toy_is_trained(mode, p) ? copies : 0))
                world_fault("element %lld of %s is updated by %d rank(s), but must be by %d", (long long)i,
                            toy->list.items[p]->name, updated_by[p][i], toy_is_trained(mode, p) ? copies : 0);
}

static void every_element_has_an_owner(const Mode *mode)
{
    memset(updated_by, 0, sizeof updated_by);
    trial_run(mode, &(TrialHooks){.created = note_slices, .after_backward = check_slices});
}

/* ---- what is sent ---- */

static void sums_are_scattered(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->step >= 0 && r->kind == LOG_LAUNCH && r->operation == OP_ALL_REDUCE)
            world_fault("%s is all-reduced: a rank needs only its shard of the sum, which a reduce-scatter gives",
                        r->name);
    }
}

static int count_gathers(int step, int micro_batch)
{
    int count = 0;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        count += r->rank == 0 && r->step == step && (micro_batch < 0 || r->micro_batch == micro_batch) &&
                 r->kind == LOG_LAUNCH && r->operation == OP_ALL_GATHER;
    }
    return count;
}

static int count_scatters(int step)
{
    int count = 0;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        count += r->rank == 0 && r->step == step && r->kind == LOG_LAUNCH && r->operation == OP_REDUCE_SCATTER;
    }
    return count;
}

/* Levels 1 and 2: one gather for each bucket and step. Level 3: one for forward and one for backward, unless the bucket
 * is still there. */
static void gathers_are_counted(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    const int buckets = count_scatters(1);
    const int gathers = count_gathers(1, -1), most = mode->level == 3 ? 2 * buckets * mode->micro_batches : buckets;
    if (gathers > most || (mode->level < 3 && gathers < buckets))
        world_fault("a step gathers weights %d times, but has %d bucket(s): level %d gathers %s", gathers, buckets,
                    mode->level,
                    mode->level == 3 ? "each twice in a micro-batch at most" : "each once, after the update");
}

/* Something is computed between the launch of a gather and the wait for it: another operation needs its weights. */
static void gathered_behind_computing(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    int last_launch = -1, needs = 0, hidden = 0, all = 0;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->rank != 0 || r->step < 1)
            continue;
        if (r->kind == LOG_LAUNCH && r->operation == OP_ALL_GATHER) {
            last_launch = r->slot;
            needs = 0;
        }
        needs += r->kind == LOG_NEEDED;
        if (r->kind == LOG_WAIT && r->operation == OP_ALL_GATHER) {
            all++;
            hidden += r->slot != last_launch || needs > 0;
        }
    }
    if (all > 1 && hidden < all - mode->steps)
        world_fault("rank 0 waits for %d of its %d gathers as soon as it has launched them: launch the next one before "
                    "the current weights are used", all - hidden, all);
}

/* An operation of the toy model needs one parameter, so it waits for one gather at most; and at levels 1 and 2, the
 * first operation needs what was launched first. */
static void waits_for_its_own_gather(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    int waits = 0, first_launch = -1;
    bool passes = false, between = false; /* forward or backward runs; a step is over, and the next has not begun */
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->rank != 0)
            continue;
        const bool gathers = r->kind <= LOG_WAITED && r->operation == OP_ALL_GATHER;
        if (r->kind == LOG_FORWARD || r->kind == LOG_BACKWARD_END)
            passes = r->kind == LOG_FORWARD;
        if (r->kind == LOG_FORWARD || r->kind == LOG_NEEDED)
            waits = 0;
        if (r->kind == LOG_AFTER)
            first_launch = -1;
        between = r->kind == LOG_AFTER || (between && r->kind != LOG_FORWARD);
        if (between && r->step < mode->steps - 1 && gathers && r->kind == LOG_WAIT)
            world_fault("between two passes of step %d, training waits for %s: the next forward pass could hide it",
                        r->step, r->name);
        if (gathers && r->kind == LOG_LAUNCH && first_launch < 0)
            first_launch = r->slot;
        if (!gathers || r->kind != LOG_WAIT || !passes)
            continue;
        if (++waits > 1)
            world_fault("in step %d, an operation that needs one parameter waits for a second gather, %s: wait only "
                        "for what it needs", r->step, r->name);
        if (mode->level < 3 && first_launch >= 0 && r->slot != first_launch)
            world_fault("in step %d, forward first needs %s, but another gather was launched before it", r->step,
                        r->name);
        first_launch = mode->level < 3 ? first_launch + 1 : -1;
    }
}

/* ---- what is held ---- */

/* Backward waits for the oldest sum when a third bucket needs memory, and not before. */
static void two_at_most(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    int open = 0, done = -1;
    bool backward = false;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        const bool scatters = r->rank == 0 && r->kind <= LOG_WAITED && r->operation == OP_REDUCE_SCATTER;
        if (r->rank == 0 && (r->kind == LOG_BACKWARD || r->kind == LOG_BACKWARD_END))
            backward = r->kind == LOG_BACKWARD;
        if (scatters && r->kind == LOG_DONE)
            done = r->slot;
        if (scatters && r->kind == LOG_WAIT && backward && r->slot > done && open <= 2)
            world_fault("in step %d, backward waits for %s, although only %d bucket(s) wait to be sent", r->step,
                        r->name, open);
        open += scatters && r->kind == LOG_LAUNCH;
        open -= scatters && r->kind == LOG_WAITED;
        if (open > 3)
            world_fault("in step %d, the whole gradients of %d buckets wait to be reduce-scattered: backward must wait "
                        "before a fourth gets memory, or all gradients are there again", r->step, open);
    }
}

static void small_buckets_2(Mode *mode)
{
    chained(mode);
    level_2(mode);
    mode->shard_ranks = 0;
    mode->micro_batches = 1; /* else the micro-batches before have left whole gradients in any case */
    mode->bucket_per_layer = false;
    mode->first_cap = mode->cap = 1;
}

static void check_gradients_dropped(Toy *toy, Ddp *ddp, ProcessGroup *pg)
{
    (void)ddp, (void)pg;
    for (int p = 0; p < toy->list.count; p++)
        if (toy->list.items[p]->tensor.grad != NULL)
            world_fault("at level %d, the whole gradient of %s is still there after the step's last micro-batch",
                        toy->mode->level, toy->list.items[p]->name);
}

static void gradients_are_dropped(const Mode *mode)
{
    trial_run(mode, &(TrialHooks){.after_backward = check_gradients_dropped});
}

static void check_weights_dropped(Toy *toy, Ddp *ddp, ProcessGroup *pg)
{
    (void)ddp, (void)pg;
    int held = 0, trained = 0;
    for (int p = 0; p < toy->list.count; p++) {
        const Tensor *tensor = &toy->list.items[p]->tensor;
        trained += tensor->requires_grad;
        held += tensor->requires_grad && tensor->data != NULL;
    }
    if (trained > 2 && held == trained)
        world_fault("at level 3, all %d weights are whole between two steps: only the first bucket is gathered there",
                    held);
}

static void small_buckets(Mode *mode)
{
    level_3(mode);
    mode->bucket_per_layer = false;
    mode->first_cap = mode->cap = 1;
}

static void weights_are_dropped(const Mode *mode)
{
    trial_run(mode, &(TrialHooks){.step_over = check_weights_dropped});
}

/* ---- evaluation ---- */

static void evaluate(Toy *toy, Ddp *ddp, ProcessGroup *pg)
{
    (void)pg;
    if (toy->step % 2 != 0)
        return;
    ddp_gather_weights(ddp);
    for (int p = 0; p < toy->list.count; p++) {
        const Tensor *tensor = &toy->list.items[p]->tensor;
        const float *values = tensor->data;
        for (int64_t i = 0; i < tensor_count(tensor); i = toy_next(i, tensor_count(tensor)))
            if (values == NULL || values[i] != toy_weight(toy->mode, toy->step + 1, p, i))
                world_fault("after ddp_gather_weights(), element %lld of %s is not that of this step",
                            (long long)i, toy->list.items[p]->name);
    }
}

static void evaluated_between_steps(const Mode *mode)
{
    trial_run(mode, &(TrialHooks){.step_over = evaluate});
}

static void copies(Mode *mode)
{
    mode->ranks = mode->seed % 2 == 0 ? 4 : 6;
    mode->shard_ranks = mode->seed % 3 == 0 && mode->ranks == 6 ? 3 : 2;
}

const Row rows_sharded[] = {
    {"owners", "Every element is updated by one rank, or by one of each group of --shard-ranks", 5, 5, 40, NULL,
     every_element_has_an_owner},
    {"reduce_scatter", "Gradients are reduce-scattered: a rank gets its own shard of the sum", 5, 5, 30, NULL,
     sums_are_scattered},
    {"level_1", "Level 1 trains the same weights", 5, 5, 60, level_1, run},
    {"level_2", "Level 2 trains the same weights", 5, 5, 60, level_2, run},
    {"level_3", "Level 3 trains the same weights", 5, 5, 60, level_3, run},
    {"copies", "With --shard-ranks, sums go over all ranks, and shards over some", 5, 5, 60, copies, run},
    {"gathers", "Weights are gathered once for each use, and no more", 5, 5, 40, chained, gathers_are_counted},
    {"gathers_overlap", "Weights are gathered while other operations compute", 5, 5, 40, chained,
     gathered_behind_computing},
    {"own_gathers", "An operation waits for the weights that it needs, and for no others", 5, 5, 40, chained,
     waits_for_its_own_gather},
    {"in_flight", "From level 2 on, few whole gradients wait to be sent, and backward waits only if there are more", 5,
     5, 30, small_buckets_2, two_at_most},
    {"gradients_dropped", "From level 2 on, no whole gradient is left after the step", 5, 5, 30, level_2,
     gradients_are_dropped},
    {"weights_dropped", "At level 3, whole weights are dropped after their use", 5, 5, 30, small_buckets,
     weights_are_dropped},
    {"evaluation", "Evaluation between steps sees all weights, and the next step goes on as before", 5, 5, 60, NULL,
     evaluated_between_steps},
    {0}};
