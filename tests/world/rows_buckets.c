/* rows_buckets.c: messages, buckets, overlap and accumulation. The rows ask the log. */
#include <string.h>

#include "device/device.h"
#include "world/contract.h"

enum { MOST_PARAMETERS = 64 };

static void run(const Mode *mode)
{
    trial_run(mode, NULL);
}

/* A sum of gradients: not the exchange of used parameters, which is a maximum. */
static bool is_sum(const LogRecord *r)
{
    return (r->operation == OP_ALL_REDUCE || r->operation == OP_REDUCE_SCATTER) && r->op == REDUCE_SUM &&
           r->dtype != DTYPE_I32 && r->dtype != DTYPE_I64 && r->dtype != DTYPE_F64;
}

static bool is_start(const LogRecord *r)
{
    return r->kind == LOG_CALL || r->kind == LOG_LAUNCH;
}

/* ---- the plan ---- */

static size_t sizes[MOST_PARAMETERS], rooms[MOST_PARAMETERS]; /* bytes of each parameter, and with its gap */

static void note_sizes(Toy *toy)
{
    for (int p = 0; p < toy->list.count; p++) {
        sizes[p] = (size_t)tensor_count(&toy->list.items[p]->tensor) * sizeof(float);
        rooms[p] = parameter_gradient_bytes(toy->list.items[p]);
    }
}

typedef struct Plan {
    int count, last[MOST_PARAMETERS]; /* by bucket: the place in the order of its last parameter */
    size_t elements[MOST_PARAMETERS]; /* with gaps */
} Plan;

/* order: the parameters as they fill the buckets. */
static Plan make_plan(const Mode *mode, const int *order, int count)
{
    Plan plan = {0};
    size_t filled = 0;
    for (int i = 0; i < count; i++) {
        filled += sizes[order[i]];
        plan.elements[plan.count] += rooms[order[i]] / sizeof(float);
        plan.last[plan.count] = i;
        if (filled >= (plan.count == 0 ? mode->first_cap : mode->cap) || i == count - 1) {
            plan.count++;
            filled = 0;
        }
    }
    return plan;
}

static Plan reversed_plan(const Mode *mode)
{
    int order[MOST_PARAMETERS], count = 0;
    for (int p = mode->parameters - 1; p >= 0; p--)
        if (toy_is_trained(mode, p))
            order[count++] = p;
    return make_plan(mode, order, count);
}

/* ---- messages ---- */

static void plain(Mode *mode)
{
    mode->order = ORDER_REVERSED;
    mode->tied = mode->unused = mode->find_unused = mode->rebuild = false;
    mode->wire = "fp32";
}

static void one_message_each(const Mode *mode)
{
    trial_run(mode, &(TrialHooks){.before_create = note_sizes});
    trial_mode = mode;
    int trained = 0, sums = 0;
    for (int p = 0; p < mode->parameters; p++)
        trained += toy_is_trained(mode, p);
    for (int i = 0; i < log_count(); i++)
        sums += log_get(i)->rank == 0 && log_get(i)->step == 1 && is_start(log_get(i)) && is_sum(log_get(i));
    if (sums != trained)
        world_fault("rank 0 starts %d all-reduces in a step, but %d parameters are trained: each needs one", sums,
                    trained);
}

static void compare_messages(const Mode *mode, const Plan *plan, int step)
{
    int bucket = 0;
    trial_mode = mode;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->rank != 0 || r->step != step || !is_start(r) || !is_sum(r))
            continue;
        if (bucket >= plan->count)
            world_fault("step %d sends more than %d messages, but the caps make %d buckets: one message for each", step,
                        plan->count, plan->count);
        if (r->count != plan->elements[bucket])
            world_fault("message %d of step %d has %zu elements, but bucket %d has %zu, gaps included: a bucket closes "
                        "with the gradient that reaches its cap, and the next one begins", bucket, step, r->count,
                        bucket, plan->elements[bucket]);
        bucket++;
    }
    if (bucket < plan->count)
        world_fault("step %d sends %d messages, but the caps make %d buckets", step, bucket, plan->count);
}

static void some_first_cap_of_0(Mode *mode)
{
    plain(mode);
    mode->first_cap = mode->seed % 5 == 0 ? 0 : mode->first_cap;
}

static void buckets_by_caps(const Mode *mode)
{
    trial_run(mode, &(TrialHooks){.before_create = note_sizes});
    const Plan plan = reversed_plan(mode);
    for (int step = 0; step < mode->steps; step++)
        compare_messages(mode, &plan, step);
}

/* ---- overlap ---- */

static void sums_are_asynchronous(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    for (int i = 0; i < log_count(); i++)
        if (log_get(i)->step >= 0 && log_get(i)->kind == LOG_CALL && is_sum(log_get(i)))
            world_fault("%s is added by a blocking call: launch it with pg_all_reduce_async(), so that it runs behind "
                        "backward", log_get(i)->name);
}

/* After the n-th gradient-ready event of the last micro-batch, the buckets that it completes are launched before the
 * next event. The plan's order is that of the events. */
static void compare_launches(const Mode *mode, const Plan *plan, int first_step, int last_step)
{
    int events = 0, launched = 0;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->rank != 0 || r->step < first_step || r->step > last_step || r->micro_batch != mode->micro_batches - 1)
            continue;
        if (r->kind == LOG_BACKWARD)
            events = launched = 0;
        launched += r->kind == LOG_LAUNCH && is_sum(r);
        if (r->kind != LOG_READY && r->kind != LOG_BACKWARD_END)
            continue;
        int complete = 0;
        while (complete < plan->count && plan->last[complete] < events)
            complete++;
        if (launched != complete)
            world_fault("after %d gradient-ready event(s) of step %d, %d bucket(s) are complete, but %d are launched: "
                        "launch each in the event of its last gradient", events, r->step, complete, launched);
        events += r->kind == LOG_READY;
    }
}

static void launched_when_ready(const Mode *mode)
{
    trial_run(mode, &(TrialHooks){.before_create = note_sizes});
    trial_mode = mode;
    const Plan plan = reversed_plan(mode);
    compare_launches(mode, &plan, 0, mode->steps - 1);
}

static void waited_for(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    int open[MOST_RANKS] = {0};
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        const bool sum = r->kind <= LOG_WAITED && is_sum(r);
        open[r->rank] += sum && r->kind == LOG_LAUNCH;
        open[r->rank] -= sum && r->kind == LOG_WAITED;
        if (r->kind == LOG_AFTER && open[r->rank] > 0)
            world_fault("ddp_after_backward() of rank %d returns in step %d while %d sum(s) had no work_wait(): the "
                        "optimizer would read buffers in flight", r->rank, r->step, open[r->rank]);
    }
}

static void no_wait_in_backward(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    bool computes[MOST_RANKS] = {false}; /* forward or backward runs */
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->kind == LOG_FORWARD || r->kind == LOG_BACKWARD_END)
            computes[r->rank] = r->kind == LOG_FORWARD;
        if (computes[r->rank] && (r->kind == LOG_WAIT || r->kind == LOG_CALL) && is_sum(r))
            world_fault("rank %d waits for %s of step %d before backward is over: wait in ddp_after_backward()",
                        r->rank, r->name, r->step);
    }
}

/* Buckets of unused parameters, too: they are ready before backward begins. */
static void launched_in_backward(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    bool over[MOST_RANKS] = {false};
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->kind == LOG_FORWARD || r->kind == LOG_BACKWARD_END)
            over[r->rank] = r->kind == LOG_BACKWARD_END;
        if (over[r->rank] && r->kind == LOG_LAUNCH && is_sum(r))
            world_fault("rank %d launches %s of step %d when backward is over, and nothing is left to hide it",
                        r->rank, r->name, r->step);
    }
}

static void own_orders(Mode *mode)
{
    mode->ranks = mode->ranks < 2 ? 3 : mode->ranks;
    mode->parameters += 4;
    mode->order = ORDER_PER_RANK;
    mode->cap = mode->first_cap = 1 + mode->cap % 100;
    mode->level = mode->level == 3 ? 2 : mode->level;
}

static void unused(Mode *mode)
{
    mode->parameters += 3;
    mode->unused = mode->find_unused = true;
    mode->level = mode->level == 3 ? 1 : mode->level;
}

static void static_graph(Mode *mode)
{
    unused(mode);
    mode->static_graph = true;
    mode->steps = 4;
}

/* Under static_graph the ranks exchange the used parameters only in the first step. */
static void exchanged_once(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->step >= 1 && r->kind == LOG_CALL && r->operation == OP_ALL_REDUCE && !is_sum(r))
            world_fault("step %d exchanges %s: with static_graph, once is enough", r->step, r->name);
    }
}

static void rebuilt(Mode *mode)
{
    mode->parameters += 4;
    mode->rebuild = true;
    mode->unused = mode->tied = false;
    mode->wire = "fp32";
    mode->steps = 4;
}

/* From step 1 on, the buckets have the order in which rank 0's gradients became ready in step 0. */
static void rebuilt_in_ready_order(const Mode *mode)
{
    int order[MOST_PARAMETERS], count = 0;
    trial_run(mode, &(TrialHooks){.before_create = note_sizes});
    trial_mode = mode;
    for (int i = log_next(0, 0, LOG_READY); i >= 0; i = log_next(i + 1, 0, LOG_READY))
        if (log_get(i)->step == 0 && log_get(i)->micro_batch == mode->micro_batches - 1)
            order[count++] = log_get(i)->parameter;
    const Plan first = reversed_plan(mode), plan = make_plan(mode, order, count);
    compare_messages(mode, &first, 0);
    for (int step = 1; step < mode->steps; step++)
        compare_messages(mode, &plan, step);
    if (mode->order != ORDER_PER_RANK)
        compare_launches(mode, &plan, 1, mode->steps - 1);
    for (int i = 0; i < log_count(); i++)
        if (log_get(i)->kind == LOG_GIVEN && log_get(i)->step > 1)
            world_fault("buckets are made again in step %d: once is enough", log_get(i)->step);
}

/* ---- accumulation ---- */

static void accumulate(Mode *mode)
{
    mode->micro_batches = 2 + mode->micro_batches % 2;
}

static void nothing_is_sent_before_the_last(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->step >= 0 && r->micro_batch < mode->micro_batches - 1 && is_start(r) && is_sum(r))
            world_fault("micro-batch %d of %d sends %s: only the last one synchronises", r->micro_batch,
                        mode->micro_batches, r->name);
    }
}

static void sixteen_bits(Mode *mode)
{
    mode->wire = mode->seed % 2 == 0 ? "bf16" : "fp16";
}

static void sent_as_the_codec_says(const Mode *mode)
{
    run(mode);
    trial_mode = mode;
    for (int i = 0; i < log_count(); i++) {
        const LogRecord *r = log_get(i);
        if (r->step >= 0 && is_start(r) && is_sum(r) && r->dtype != codec_find(mode->wire)->dtype)
            world_fault("%s is sent as %s, but the codec is %s", r->name, dtype_name(r->dtype), mode->wire);
    }
}

const Row rows_buckets[] = {
    {"one_message_each", "A step has one all-reduce for each trained parameter", 1, 1, 20, NULL, one_message_each},
    {"buckets_by_caps", "A bucket closes when it reaches its cap, and one all-reduce sends it", 2, 4, 60,
     some_first_cap_of_0, buckets_by_caps},
    {"asynchronous", "Sums are launched, and training goes on", 3, 5, 30, NULL, sums_are_asynchronous},
    {"launched_when_ready", "A bucket is launched in the event of its last gradient", 3, 4, 60, plain,
     launched_when_ready},
    {"launched_in_backward", "When backward is over, every bucket has been launched", 3, 5, 60, NULL,
     launched_in_backward},
    {"one_order", "All ranks launch their buckets in one order, in whatever order gradients become ready", 3, 5, 80,
     own_orders, run},
    {"waited_for", "Every sum is waited for, once, before ddp_after_backward() returns", 3, 5, 30, NULL, waited_for},
    {"no_wait_in_backward", "Backward does not wait for the other ranks", 3, 4, 30, NULL, no_wait_in_backward},
    {"unused_parameters", "With find_unused, passes may leave parameters out, others on each rank", 3, 5, 80, unused,
     run},
    {"static_graph", "With static_graph, the unused parameters are exchanged once", 3, 5, 30, static_graph,
     exchanged_once},
    {"rebuilt_buckets", "After the first step, buckets are refilled in rank 0's order of readiness, once", 3, 4, 60,
     rebuilt, rebuilt_in_ready_order},
    {"no_sync", "Before the last micro-batch, nothing is sent", 4, 5, 40, accumulate, nothing_is_sent_before_the_last},
    {"codec", "Gradients are sent in the type that the codec says", 4, 5, 40, sixteen_bits, sent_as_the_codec_says},
    {0}};
