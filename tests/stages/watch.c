/* watch.c: records what a stage does during backward. */
#include "watch.h"

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "expect.h"
#include "mpi_main.h"
#include "toy_models.h"
#include "watch_calls.h"

/* ---- events ---- */

static float *copy_gradient(const Parameter *parameter)
{
    size_t bytes = (size_t)tensor_count(&parameter->tensor) * sizeof(float);
    return memcpy(alloc_or_fault(bytes), parameter->tensor.grad, bytes);
}

static MPI_Comm messages; /* the test's own: separate from the stage's collectives */

static bool others_are_over(const Watch *watch)
{
    static int heard_of; /* number of ranks, in the current hold */
    int there = 1;
    while (heard_of < pg_world_size(watch->pg) - 1 && there) {
        MPI_Iprobe(MPI_ANY_SOURCE, 0, messages, &there, MPI_STATUS_IGNORE);
        if (there) {
            MPI_Recv(NULL, 0, MPI_BYTE, MPI_ANY_SOURCE, 0, messages, MPI_STATUS_IGNORE);
            heard_of++;
        }
    }
    if (heard_of < pg_world_size(watch->pg) - 1)
        return false;
    heard_of = 0;
    return true;
}

static bool a_collective_is_done(const Watch *watch)
{
    return pg_counters(watch->pg).collectives > watch->collectives[0];
}

/* Waits for is_over(). Gives up before a collective's own time-out, whose message would not name the mistake. */
static void hold(Watch *watch, bool (*is_over)(const Watch *watch))
{
    double deadline = now_seconds() + fmin(20, tests_timeout() / 2);
    while (!is_over(watch) && !watch->gave_up) {
        watch->gave_up = now_seconds() > deadline;
        sleep_seconds(1e-3);
    }
}

static void tell_rank_0(void)
{
    MPI_Send(NULL, 0, MPI_BYTE, 0, 0, messages);
}

static void watch_event(void *listener, Parameter *parameter)
{
    Watch *watch = listener;
    CHECK(watch->count < MAX_EVENTS, "more events than the test can hold");
    int event = watch->count++;
    if (watch->hold_rank_0 && event > 0 && event == watch->over_at && pg_rank(watch->pg) != 0)
        tell_rank_0();
    if (event == 0) {
        watch->started_before = calls_started();
        if (watch->hold_rank_0 && pg_rank(watch->pg) == 0)
            hold(watch, others_are_over);
    }
    watch->order[event] = parameter->index;
    watch->collectives[event] = pg_counters(watch->pg).collectives;
    if (watch->copying)
        watch->gradient[event] = copy_gradient(parameter);
    calls_must_not_wait(watch->hold_rank_0 && pg_rank(watch->pg) != 0 ? parameter : NULL);
    watch->stage.gradient_ready(watch->stage.self, parameter);
    calls_must_not_wait(NULL);
    watch->started[event] = calls_started();
    if (event == watch->hold_at)
        hold(watch, a_collective_is_done);
}

static void pass_gradient_needed(void *listener, Parameter *parameter)
{
    Watch *watch = listener;
    watch->stage.gradient_needed(watch->stage.self, parameter);
}

static void pass_parameters_needed(void *listener, Parameter *const *parameters, int count)
{
    Watch *watch = listener;
    if (watch->before_parameters_needed != NULL)
        watch->before_parameters_needed();
    watch->stage.parameters_needed(watch->stage.self, parameters, count);
    if (watch->after_parameters_needed != NULL)
        watch->after_parameters_needed(parameters, count);
}

void watch_start(Watch *watch, ProcessGroup *pg, Tape *tape)
{
    const TapeListener stage = tape->listener;
    *watch = (Watch){.pg = pg, .tape = tape, .stage = stage, .hold_at = -1};
    if (stage.gradient_ready == NULL)
        fail_msg("the stage does not listen to gradient-ready events, so no bucket can be sent during backward");
    tape_listen(tape, (TapeListener){.self = watch, .gradient_ready = watch_event,
                                     .gradient_needed = stage.gradient_needed != NULL ? pass_gradient_needed : NULL,
                                     .parameters_needed =
                                         stage.parameters_needed != NULL ? pass_parameters_needed : NULL});
    MPI_Comm_dup(MPI_COMM_WORLD, &messages);
}

void watch_stop(Watch *watch)
{
    watch_forget(watch);
    MPI_Comm_free(&messages);
    tape_listen(watch->tape, watch->stage);
}

void watch_forget(Watch *watch)
{
    for (int i = 0; i < watch->count; i++)
        free(watch->gradient[i]);
    memset(watch->gradient, 0, sizeof watch->gradient);
    watch->count = 0;
    calls_forget();
}

void watch_backward_is_over(Watch *watch)
{
    if (pg_rank(watch->pg) != 0 && (watch->over_at <= 0 || watch->count <= watch->over_at))
        tell_rank_0();
    else if (watch->gave_up)
        fail_msg("while rank 0 delayed its first gradient-ready event, another rank's backward did not reach its %s: "
                 "its stage waits for rank 0 in the middle of backward, where nothing may wait. Start to send a "
                 "bucket in an event, and wait for it in ddp_after_backward()%s", watch->over_at > 0 ? "second event" : "end",
                 watch_title);
}

/* ---- which all-reduces should have been started at which event ---- */

void watch_follow_rank_0(Watch *watch)
{
    memcpy(watch->plan_order, watch->order, sizeof watch->order);
    watch->planned = watch->count; /* another rank may have fewer events */
    pg_broadcast(watch->pg, &watch->planned, 1, DTYPE_I32, 0, "number of events that the test expects");
    pg_broadcast(watch->pg, watch->plan_order, (size_t)watch->planned, DTYPE_I32, 0, "order that the test expects");
}

typedef struct Plan {
    int buckets;
    int bucket_of[MAX_EVENTS]; /* by parameter index; -1: frozen */
    int pending[MAX_EVENTS];   /* by bucket: gradients that are not ready */
    bool rebuilds;             /* after the first step, in rank 0's order of readiness */
} Plan;

static Plan plan_buckets(const Watch *watch, const ParameterList *parameters, const DdpOptions *options)
{
    Plan plan = {.rebuilds = options->rebuild_buckets};
    int order[MAX_EVENTS], bucket_of[MAX_EVENTS], trained = 0;
    size_t sizes[MAX_EVENTS] = {0};
    CHECK(parameters->count <= MAX_EVENTS, "more parameters than the test can hold");
    for (int i = parameters->count - 1; i >= 0; i--) {
        plan.bucket_of[i] = -1;
        if (parameters->items[i]->tensor.requires_grad)
            order[trained++] = i;
    }
    CHECK(watch->planned == 0 || watch->planned == trained, "some trained parameters raised no event");
    if (watch->planned > 0)
        memcpy(order, watch->plan_order, sizeof order);
    for (int i = 0; i < trained; i++)
        sizes[i] = (size_t)tensor_count(&parameters->items[order[i]]->tensor) * sizeof(float);
    plan.buckets = planned_buckets(sizes, trained, options, bucket_of);
    for (int i = 0; i < trained; i++) {
        plan.bucket_of[order[i]] = bucket_of[i];
        plan.pending[bucket_of[i]]++;
    }
    return plan;
}

/* The number of buckets that may be launched: full ones, if all buckets before them are full, too. */
static int buckets_that_may_start(const Plan *plan)
{
    int count = 0;
    while (count < plan->buckets && plan->pending[count] == 0)
        count++;
    return count;
}

/* when: "after the event of fc1.weight". */
static void expect_started(const Plan *plan, int got, bool last, const char *when, const char *cause_if_late)
{
    const char *rebuild = "";
    if (plan->rebuilds)
        rebuild = "or the buckets are rebuilt at another time than in the ddp_before_forward() after the first step, more "
                  "than once, or in this rank's own order; or ";
    int expected = buckets_that_may_start(plan), full = 0;
    for (int b = 0; b < plan->buckets; b++)
        full += plan->pending[b] == 0;
    if (got > full)
        fail_msg("rank %d: %d buckets had been sent %s, but only %d of %d were full; usual cause: %sa bucket is sent "
                 "while one of its gradients is not complete (it is full when NONE is missing)%s", job_rank(), got,
                 when, full, plan->buckets, rebuild, watch_title);
    if (got > expected)
        fail_msg("rank %d: %d buckets had been sent %s, but bucket %d was not full; usual cause: %sbuckets launched as "
                 "they become ready, not in bucket order%s", job_rank(), got, when, expected, rebuild,
                 watch_title);
    if (got < expected && last)
        fail_msg("rank %d: %d buckets had been sent %s, but %d were full: %s%s", job_rank(), got, when, expected,
                 cause_if_late, watch_title);
}

/* Stage 3 may send in micro-batches before the last one, too, or leave that out: if it does, then in time. */
void watch_expect_starts(const Watch *watch, const ParameterList *parameters, const DdpOptions *options, bool last)
{
    last = last || calls_started() > 0;
    static const char late[] = "the event that makes a bucket full starts it, and the full ones behind it";
    static const char late_unused[] = "parameters that the loss does not depend on are ready BEFORE backward, and must "
                                      "be marked in ddp_before_backward(), or their bucket and all behind it wait for "
                                      "the end of backward";
    Plan plan = plan_buckets(watch, parameters, options), unmarked = plan; /* there nobody marks what is unused */
    bool raised[MAX_EVENTS] = {false};
    for (int i = 0; i < watch->count; i++)
        raised[watch->order[i]] = true;
    for (int i = 0; i < parameters->count; i++)
        if (!raised[i] && plan.bucket_of[i] >= 0)
            plan.pending[plan.bucket_of[i]]--;
    expect_started(&plan, watch->started_before, last, "before the first event of backward", late_unused);
    for (int i = 0; i < watch->count; i++) {
        char when[120];
        snprintf(when, sizeof when, "after the event of %.40s%s", parameters->items[watch->order[i]]->name,
                 watch->planned > 0 ? " (buckets rebuilt ONCE, in rank 0's order of readiness)" : "");
        plan.pending[plan.bucket_of[watch->order[i]]]--;
        unmarked.pending[plan.bucket_of[watch->order[i]]]--;
        expect_started(&plan, watch->started[i], last, when,
                       watch->started[i] < buckets_that_may_start(&unmarked) ? late : late_unused);
    }
}
