/* test_agreement.c: what the ranks agree on: the caps of buckets, and which parameters were used in which order. On 2
 * ranks, of which the second one measures and marks something else than the first one. */
#include <math.h>

#include "autograd/ops.h"
#include "base/check.h"
#include "base/clock.h"
#include "comm/group.h" /* to emulate a slow link */
#include "ddp/bucket_plan.h"
#include "ddp/readiness.h"
#include "device/device.h"
#include "expect.h"
#include "mpi_main.h"

static ProcessGroup *pg;

/* ---- the caps of buckets ---- */

#define SLEEP 0.05 /* seconds for each gradient, on rank 1 only */
enum { LAYERS = 4, FROZEN = 1, TRAINED = 3 };

static void place_gradient_slowly(void *listener, Parameter *parameter)
{
    (void)listener;
    parameter->tensor.grad = device_alloc(parameter_gradient_bytes(parameter));
    sleep_seconds(pg_rank(pg) == 1 ? SLEEP : 0);
}

static void expect_the_same_on_all_ranks(const BucketCaps *caps)
{
    const double mine[] = {(double)caps->first, (double)caps->others, caps->buckets, caps->exposed, caps->hidden,
                           caps->backward, caps->link.latency, caps->link.bytes_per_second};
    double all[2 * sizeof mine / sizeof *mine];
    pg_all_gather(pg, mine, all, sizeof mine / sizeof *mine, DTYPE_F64, "choices");
    assert_memory_equal(all, (char *)all + sizeof mine, sizeof mine);
}

/* For linear layers of width x width, one of them frozen, over a link of so many bytes per second. */
static BucketCaps choose_caps(int64_t width, double bytes_per_second, bool overlap)
{
    ParameterList parameters = {0};
    Tape tape = {.on_gradient_needed = place_gradient_slowly};
    float input[64] = {1}, target[64] = {0};
    tape_begin(&tape, true);
    Tensor *x = tape_input(&tape, input, DTYPE_F32, 2, (int64_t[]){1, width});
    for (int i = 0; i < LAYERS; i++) {
        Tensor *weight = &parameters_add(&parameters, "weight", 2, (int64_t[]){width, width})->tensor;
        weight->requires_grad = i != FROZEN;
        x = op_linear(&tape, x, weight, NULL);
    }
    Tensor *loss = op_mse(&tape, x, target);
    pg->options.wire_gbps = bytes_per_second * 8 / 1e9;
    pg->options.wire_latency = 1e-3;
    const double start = now_seconds();
    const BucketCaps caps = bucket_caps_choose(pg, &parameters, &tape, loss, 1, overlap);
    const double seconds = now_seconds() - start;
    pg->options.wire_gbps = 0;

    if (caps.backward < TRAINED * SLEEP || caps.backward > seconds)
        fail_msg("backward took %g s on rank 1, and everything together %g s, but backward was measured as %g s",
                 TRAINED * SLEEP, seconds, caps.backward);
    assert_null(tape.on_gradient_ready);
    expect_the_same_on_all_ranks(&caps);
    for (int i = 0; i < LAYERS; i++)
        device_free(parameters.items[i]->tensor.grad);
    tape_free(&tape);
    parameters_free(&parameters);
    return caps;
}

/* An all-reduce of n bytes on 2 ranks takes 2 steps' latency and n bytes' time; noise makes it longer. */
static void expect_link(Link link, double bytes_per_second)
{
    const double latency = 2e-3 + 256 / bytes_per_second; /* a message of 64 elements shows it */
    if (link.latency < latency || link.latency > latency + 0.01)
        fail_msg("the link's latency is %g s, expected %g s", link.latency, latency);
    if (link.bytes_per_second < 0.7 * bytes_per_second || link.bytes_per_second > 1.4 * bytes_per_second)
        fail_msg("the link carries %g bytes per second, expected %g", link.bytes_per_second, bytes_per_second);
}

/* Three gradients of 16 KiB: two can be sent while rank 1 computes the third one, whose all-reduce stays exposed. */
static void test_caps_for_overlap(void **state)
{
    (void)state;
    const double bytes = 64 * 64 * sizeof(float), bytes_per_second = 1.25e6;
    const BucketCaps caps = choose_caps(64, bytes_per_second, true);
    expect_link(caps.link, bytes_per_second);
    const double last = caps.link.latency + bytes / caps.link.bytes_per_second;
    const double all = 2 * caps.link.latency + TRAINED * bytes / caps.link.bytes_per_second;
    if (caps.buckets != 2 || caps.exposed < 0.5 * last || caps.exposed > 1.2 * last)
        fail_msg("%d buckets leave %g ms exposed; expected 2, and almost %g ms", caps.buckets, 1e3 * caps.exposed,
                 1e3 * last);
    assert_true(fabs(caps.exposed + caps.hidden - all) < 1e-9);
}

static void test_caps_without_overlap(void **state)
{
    (void)state;
    const double bytes = 64 * 64 * sizeof(float);
    const BucketCaps caps = choose_caps(64, 1.25e6, false);
    assert_int_equal(caps.buckets, 1);
    assert_true(fabs(caps.exposed - caps.link.latency - TRAINED * bytes / caps.link.bytes_per_second) < 1e-9);
    assert_true(caps.hidden < 1e-9);
}

/* The whole model is smaller than the message that shows the latency. */
static void test_caps_for_a_tiny_model(void **state)
{
    (void)state;
    const BucketCaps caps = choose_caps(4, 25e3, true);
    expect_link(caps.link, 25e3);
    assert_int_equal(caps.buckets, 1);
}

/* ---- which parameters were used ---- */

static ParameterList four_parameters(void)
{
    ParameterList list = {0};
    for (int i = 0; i < 4; i++)
        parameters_add(&list, "weight", 1, (int64_t[]){4});
    return list;
}

/* What one rank has used has a gradient on all, what none has used on none. */
static void test_used_parameters(void **state)
{
    (void)state;
    const bool used[2][4] = {{true, false, false, true}, {false, false, true, false}};
    const int rank = pg_rank(pg);
    for (int swapped = 0; swapped < 2; swapped++) {
        ParameterList list = four_parameters();
        for (int i = 0; i < 4; i++)
            list.items[i]->has_gradient = used[rank ^ swapped][i];
        readiness_agree_on_use(pg, &list);
        for (int i = 0; i < 4; i++)
            assert_int_equal(list.items[i]->has_gradient, i != 1);
        parameters_free(&list);
    }
}

static void test_order_of_rank_0(void **state)
{
    (void)state;
    ParameterList list = four_parameters();
    Readiness readiness;
    readiness_create(&readiness, &list);
    readiness_begin(&readiness, &list);
    for (int i = 0; i < 4; i++)
        readiness_mark(&readiness, list.items[pg_rank(pg) == 0 ? (i + 2) % 4 : i]);
    readiness_agree_on_order(&readiness, pg);
    for (int i = 0; i < 4; i++)
        assert_int_equal(readiness.order[i], (i + 2) % 4);
    readiness_free(&readiness);
    parameters_free(&list);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_caps_for_overlap),
        cmocka_unit_test(test_caps_without_overlap),
        cmocka_unit_test(test_caps_for_a_tiny_model),
        cmocka_unit_test(test_used_parameters),
        cmocka_unit_test(test_order_of_rank_0),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()});
    int failures = cmocka_run_group_tests_name("agreement", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
