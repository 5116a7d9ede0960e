/* test_launches.c: stages 3 and 4: all-reduces start during backward, neither too early nor too late, and nothing waits
 * for them before backward is over. The tests compare the order of events and calls, never times. With a correct stage
 * they wait for milliseconds; only with a wrong stage do they wait until they give up. Run on 1 to 4 ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "branch_pair.h"
#include "device/device.h"
#include "expect.h"
#include "lent.h"
#include "mpi_main.h"
#include "toy_models.h"
#include "train/report/trace.h"
#include "train/loop/replica.h"

static ProcessGroup *pg;

/* ---- a backward pass of the small GPT, under a watch ---- */

typedef struct Run {
    Options options;
    Dataset dataset;
    Replica *replica; /* lent (lent.h) */
    Ddp *ddp;
    Watch watch;
    unsigned char *inputs, *targets;
} Run;

enum { SAMPLES = 8 };

static Run *run_create(size_t first_cap, size_t cap, bool find_unused)
{
    Run *run = alloc_or_fault(sizeof *run);
    run->options = toy_options("gpt");
    run->options.ddp.first_bucket_cap_bytes = first_cap;
    run->options.ddp.bucket_cap_bytes = cap;
    run->options.ddp.find_unused_parameters = find_unused;
    run->dataset = toy_dataset(&run->options, 64);
    run->inputs = alloc_or_fault(SAMPLES * run->dataset.input_bytes);
    run->targets = alloc_or_fault(SAMPLES * run->dataset.target_bytes);
    run->replica = replica_lend(&run->options, 1, 1);
    run->options.ddp.sharding = &run->options.sharding;
    run->ddp = ddp_create(pg, &run->replica->model.parameters, &run->replica->tape, &run->options.ddp);
    watch_start(&run->watch, pg, &run->replica->tape);
    return run;
}

static void run_free(Run *run)
{
    watch_stop(&run->watch);
    ddp_destroy(run->ddp);
    replica_take_back(run->replica);
    dataset_close(&run->dataset);
    free(run->inputs);
    free(run->targets);
    free(run);
}

/* last: this is the step's last micro-batch. */
static void backward(Run *run, bool last)
{
    int64_t indices[SAMPLES] = {0, 1, 2, 3, 4, 5, 6, 7};
    dataset_get(&run->dataset, 0, indices, SAMPLES, run->inputs, run->targets);
    pg_reset_counters(pg);
    watch_forget(&run->watch);
    ddp_before_forward(run->ddp, last);
    Tensor *loss = replica_loss(run->replica, &run->dataset, run->inputs, run->targets, SAMPLES);
    watch_before_backward(true);
    ddp_before_backward(run->ddp, loss);
    watch_before_backward(false);
    replica_backward(run->replica, loss);
}

/* ---- the first bucket ---- */

static const TimelineEvent *find_event(int from, const char *name)
{
    const TimelineEvent *events;
    int count = timeline_events(&events);
    for (int i = from; i < count; i++)
        if (strcmp(events[i].name, name) == 0)
            return &events[i];
    fail_msg("the timeline has no \"%s\"", name);
    return NULL;
}

/* Compares the start of the first bucket's all-reduce with the last parameter's event. */
static void expect_start_before_ready(int from, const char *last_parameter)
{
    char name[56];
    snprintf(name, sizeof name, "gradient-ready %.40s", last_parameter);
    const TimelineEvent *first = find_event(from, "all_reduce bucket 0"), *last = find_event(from, name);
    if (!(first->start < last->start))
        fail_msg("the first bucket's all-reduce started %g s after the last gradient was ready: no overlap",
                 first->start - last->start);
}

/* Backward is held after its last event but one until an all-reduce is DONE. So the all-reduce must have started
 * before, and must have made progress while this thread did something else. */
static void test_first_bucket_starts_during_backward(void **state)
{
    Run *run = run_create(512, 4096, false);
    run->watch.hold_at = run->replica->model.parameters.count - 2;
    int from = timeline_length();
    backward(run, true);
    if (run->watch.gave_up)
        fail_msg("no bucket was reduced although all but one gradient was ready: no all-reduce starts, or none makes "
                 "progress, before backward is over");
    ddp_after_backward(run->ddp, 1);
    expect_start_before_ready(from, run->replica->model.parameters.items[run->watch.order[run->watch.count - 1]]->name);
    expect_bucket_order(pg, from, planned_sums(&run->replica->model.parameters, &run->options.ddp));
    run_free(run);
}

/* ---- backward continues during all-reduces ---- */

/* Rank 0's first event lasts until all other ranks have raised all their events. No all-reduce can be done before that,
 * so a stage that waits for one during backward, in any way, does not reach the end of backward. */
static void go_on_meanwhile(bool find_unused)
{
    Run *run = run_create(512, 4096, find_unused);
    for (int micro_batch = 0; micro_batch < 3; micro_batch++) {
        run->watch.hold_rank_0 = true;
        backward(run, LOCKSTEP_STAGE == 3 || micro_batch > 0);
        watch_backward_is_over(&run->watch);
        ddp_after_backward(run->ddp, 1);
    }
    run_free(run);
}

static void test_backward_goes_on_meanwhile(void **state)
{
    go_on_meanwhile(false);
}

static void test_backward_goes_on_with_find_unused(void **state)
{
    go_on_meanwhile(true);
}

/* ---- not too early, not too late ---- */

static void test_full_buckets_start_at_once(void **state)
{
    const size_t caps[][2] = {{0, 0}, {512, 4096}, {1, 20000}, {1 << 30, 1 << 30}};
    for (int c = 0; c < 4; c++) {
        Run *run = run_create(caps[c][0], caps[c][1], false);
        for (int step = 0; step < 2; step++) {
            backward(run, true);
            watch_expect_starts(&run->watch, &run->replica->model.parameters, &run->options.ddp, true);
            ddp_after_backward(run->ddp, 1);
        }
        run_free(run);
    }
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_bucket_starts_during_backward),
        cmocka_unit_test(test_backward_goes_on_meanwhile),
        cmocka_unit_test(test_backward_goes_on_with_find_unused),
        cmocka_unit_test(test_full_buckets_start_at_once),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    ProcessGroupOptions options = {.algorithm = ALLREDUCE_ORDERED, .timeout = tests_timeout(),
                                   .debug_collectives = true};
    pg = tests_start_group(&argc, &argv, &options);
    timeline_enable();
    timeline_observe(pg);
    int failures = cmocka_run_group_tests_name("launches", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
