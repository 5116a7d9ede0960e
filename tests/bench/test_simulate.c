/* test_simulate.c: bench/simulate.c on recordings that are made by hand, so that each answer can be found on paper.
 *
 * The recording (milliseconds): forward 20, backward 40, scaling 4, optimizer 5, left 1: alone 70. Four gradients of
 * 1 MB, ready 10, 20, 30 and 40 after backward's beginning. The link: 1 ms per message, 100 MB/s. With 2 ranks a ring
 * has 2 messages and sends each byte once, so an all-reduce of one gradient takes 2 + 10. */
#include <math.h>
#include <string.h>

#include "expect.h"
#include "simulate.h"

#define MS 1e-3
#define MB 1e6

static void ask(int stage, int ranks, int accumulate, double first_cap, double cap)
{
    double *q = question();
    q[ASK_STAGE] = stage;
    q[ASK_RANKS] = ranks;
    q[ASK_ACCUMULATE] = accumulate;
    q[ASK_FIRST_CAP] = first_cap;
    q[ASK_CAP] = cap;
    simulate();
}

static void expect_ms(const char *what, double actual, double expected)
{
    if (!(fabs(actual / MS - expected) <= 1e-9))
        fail_msg("%s: expected %.9g ms, got %.9g ms", what, expected, actual / MS);
}

static void expect_step(const char *what, double step, double exposed)
{
    expect_ms(what, answer()[ANSWER_STEP], step);
    expect_ms(what, answer()[ANSWER_EXPOSED], exposed);
}

static int record(void **state)
{
    memset(recording(), 0, RECORDING_COUNT * sizeof(double));
    memset(question(), 0, QUESTION_COUNT * sizeof(double));
    const double numbers[] = {4, 20 * MS, 40 * MS, 4 * MS, 5 * MS, 1 * MS, 0};
    memcpy(recording(), numbers, sizeof numbers);
    for (int g = 0; g < 4; g++) {
        recording_bytes()[g] = MB;
        recording_ready()[g] = 10 * (g + 1) * MS;
    }
    question()[ASK_LATENCY] = 1 * MS;
    question()[ASK_BANDWIDTH] = 100 * MB;
    return 0;
}

/* ---- stages ---- */

static void test_one_rank(void **state)
{
    question()[ASK_CALL_SECONDS] = question()[ASK_WAKE] = question()[ASK_FIRST_WAKE] = 9 * MS;
    for (int stage = 1; stage <= 4; stage++) {
        ask(stage, 1, 1, 0, 0);
        expect_step("one rank has nothing to wait for", 70, 0);
        assert_true(fabs(answer()[ANSWER_EFFICIENCY] - 1) < 1e-12);
    }
}

static void test_link_without_cost(void **state)
{
    question()[ASK_LATENCY] = question()[ASK_BANDWIDTH] = 0;
    for (int stage = 1; stage <= 4; stage++) {
        ask(stage, 8, 1, 0, 2 * MB);
        expect_step("a link that costs nothing", 70, 0);
    }
}

static void test_nothing_overlaps(void **state)
{
    ask(1, 2, 1, 9 * MB, 9 * MB); /* caps mean nothing here */
    expect_step("stage 1: four times 2 + 10", 70 + 48, 48);
    assert_true((int)answer()[ANSWER_BUCKETS] == 4);
    assert_true(fabs(answer()[ANSWER_EFFICIENCY] - 70.0 / 118) < 1e-12);
    ask(2, 2, 1, 0, 0);
    expect_step("stage 2, one gradient per bucket", 70 + 48, 48);
    ask(2, 2, 1, 9 * MB, 9 * MB);
    expect_step("stage 2, one bucket: 2 + 40", 70 + 42, 42);
    ask(3, 2, 1, 9 * MB, 9 * MB);
    expect_step("stage 3, one bucket is ready when backward ends", 70 + 42, 42);
    expect_ms("nothing is hidden", answer()[ANSWER_HIDDEN], 0);
}

/* In backward's time: launched at 10, 20, 30, 40; carried out 10-22, 22-34, 34-46, 46-58. Backward ends at 40. Two
 * buckets are scaled at once (42), the third one when it is done (46-47), so the fourth (58-59). */
static void test_overlap(void **state)
{
    ask(3, 2, 1, 0, 0);
    expect_step("stage 3, one gradient per bucket", 20 + 59 + 5 + 1, 15);
    expect_ms("in flight", answer()[ANSWER_COMMUNICATION], 48);
    expect_ms("hidden", answer()[ANSWER_HIDDEN], 33);
    assert_true((int)answer()[ANSWER_COLLECTIVES] == 4);
    const double *third = answer_collectives() + 4 * 2;
    expect_ms("the third bucket is queued", third[0], 20 + 30);
    expect_ms("the third bucket starts", third[1], 20 + 34);
    expect_ms("the third bucket is done", third[2], 20 + 46);
    assert_true((int)third[3] == (int)MB);
    ask(3, 2, 1, 0, 2 * MB); /* buckets 0; 1 and 2; 3: launched at 10, 30, 40; 10-22, 30-52, 52-64 */
    expect_step("stage 3, three buckets", 20 + 65 + 5 + 1, 21);
    assert_true((int)answer()[ANSWER_BUCKETS] == 3);
}

/* All-reduces of 1.1 ms; only the last one is waited for. */
static void test_full_overlap(void **state)
{
    question()[ASK_LATENCY] = 0.05 * MS;
    question()[ASK_BANDWIDTH] = 1000 * MB;
    recording_ready()[3] = 38 * MS;
    ask(3, 2, 1, 0, 0);
    expect_step("everything is hidden", 70, 0);
    recording_ready()[3] = 40 * MS;
    recording()[RECORDED_SCALING] = 0;
    ask(3, 2, 1, 0, 0);
    expect_step("only the last bucket is not", 66 + 1.1, 1.1);
}

/* Buckets are launched in order: all wait for the first one's gradient. */
static void test_launch_order(void **state)
{
    for (int g = 0; g < 4; g++)
        recording_ready()[g] = 10 * (4 - g) * MS;
    ask(3, 2, 1, 0, 0);
    expect_ms("queued", answer_collectives()[4], 20 + 40);
    expect_step("the first bucket is ready last; scaling hides behind the others", 20 + 40 + 48 + 1 + 5 + 1, 48 - 3);
}

/* Stage 1 takes the parameters as they were registered, all others as buckets are filled, which is the reverse. */
static void test_order(void **state)
{
    recording_bytes()[0] = 2 * MB;
    for (int stage = 1; stage <= 4; stage++) {
        ask(stage, 2, 1, 0, 0);
        const int at = stage == 1 ? 3 : 0;
        assert_true((int)answer_collectives()[4 * at + 3] == (int)(2 * MB));
    }
}

static void test_accumulation(void **state)
{
    ask(4, 2, 4, 0, 0);
    expect_ms("the all-reduces are the last micro-batch's", answer_collectives()[0], 3 * 61 + 20 + 10);
    expect_step("stage 4: three micro-batches without communication", 3 * 61 + 85, 15);
    assert_true((int)answer()[ANSWER_COLLECTIVES] == 4 && (int)answer()[ANSWER_PHASES] == 9);
    assert_true(fabs(answer()[ANSWER_EFFICIENCY] - (4 * 61 + 9) / (3 * 61 + 85.0)) < 1e-12);
    ask(3, 2, 4, 0, 0); /* without scaling, the last bucket's all-reduce ends at 58 */
    expect_step("stage 3: each micro-batch waits", 3 * (20 + 58 + 1) + 85, 3 * 18 + 15);
}

/* ---- ranks ---- */

static void test_ranks(void **state)
{
    ask(1, 4, 1, 0, 0); /* 2 * 3 messages, 2 * 3/4 of the bytes */
    expect_step("a ring of 4", 70 + 4 * (6 + 15), 84);
    question()[ASK_PAIRWISE] = 1;
    ask(1, 4, 1, 0, 0); /* 2 * 2 messages */
    expect_step("halving-doubling with 4", 70 + 4 * (4 + 15), 76);
    ask(1, 5, 1, 0, 0); /* 2 * 3 messages, 2 * 4/5 of the bytes */
    expect_step("halving-doubling with 5", 70 + 4 * (6 + 16), 88);
}

/* The slowest of 2 ranks is 0.5642 standard deviations behind the mean, of 4 ranks 1.0294; of 3 in the middle. */
static void test_spread(void **state)
{
    question()[ASK_LATENCY] = question()[ASK_BANDWIDTH] = 0;
    recording()[RECORDED_SPREAD] = 0.1;
    ask(3, 2, 1, 0, 0);
    expect_step("the slowest of 2", 70 * 1.05642, 70 * 0.05642);
    ask(3, 3, 1, 0, 0);
    expect_step("the slowest of 3", 70 * 1.07968, 70 * 0.07968);
    ask(3, 4, 1, 0, 0);
    expect_step("the slowest of 4", 70 * 1.10294, 70 * 0.10294);
    ask(3, 1, 1, 0, 0);
    expect_step("one", 70, 0);
}

static void test_cores(void **state)
{
    question()[ASK_LATENCY] = question()[ASK_BANDWIDTH] = 0;
    question()[ASK_CORES] = 4;
    question()[ASK_CROWDING] = 0.3;
    question()[ASK_MEMORY_CROWDING] = 0.6;
    ask(3, 1, 1, 0, 0);
    expect_step("one rank on 4 cores", 70, 0);
    ask(3, 2, 1, 0, 0);
    expect_step("two ranks on 4 cores", 61 * 1.1 + 9 * 1.2, 0);
    ask(3, 4, 1, 0, 0);
    expect_step("all cores compute", 61 * 1.3 + 9 * 1.6, 0);
    ask(3, 8, 1, 0, 0);
    expect_step("two ranks share a core", 2 * (61 * 1.3 + 9 * 1.6), 0);
    assert_true(fabs(answer()[ANSWER_EFFICIENCY] - 70 / (2 * (61 * 1.3 + 9 * 1.6))) < 1e-12);
}

/* Two ranks on one core, so all computing takes twice as long. The late rank's forward takes 20 + 4, its backward 36:
 * a gradient that is ready after 10 of 40 is so after 9 of 36. */
static void test_late(void **state)
{
    question()[ASK_CORES] = 1;
    recording()[RECORDED_SPREAD] = 0.2 / 0.5642;
    ask(3, 2, 1, 0, 0);
    expect_ms("the first gradient of the late rank", answer_collectives()[0], 2 * (24 + 9));
    ask(2, 2, 1, 9 * MB, 9 * MB);
    expect_step("its backward ends in time", 2 * 70 + 42, 42);
}

/* ---- what communication costs besides ---- */

/* Two gradients, ready at 10 and 40. The first one is in flight 10-22, in which backward makes 6 of its 12 ms: it ends
 * at 46. The second is in flight 46-58, in which the scaling of the first takes 4 in place of 2. */
static void test_slowdown(void **state)
{
    recording()[RECORDED_GRADIENTS] = 2;
    recording_ready()[1] = 40 * MS;
    const int ways[] = {ASK_SLOWDOWN, ASK_CALL_PROCESSOR, ASK_BYTE_PROCESSOR};
    const double values[] = {0.5, 6 * MS, 6 * MS / MB};
    for (int i = 0; i < 3; i++) {
        question()[ways[i]] = values[i];
        ask(3, 2, 1, 0, 0);
        expect_step("half as fast while an all-reduce is in flight", 20 + 60 + 5 + 1, 8);
        ask(2, 2, 1, 9 * MB, 9 * MB);
        expect_step("stage 2 computes nothing meanwhile", 70 + 22, 22);
        question()[ways[i]] = 0;
    }
}

/* The communication thread needs 1 ms to wake up for the first bucket: 11-23, and then 23-35, 35-47, 47-59. */
static void test_wake(void **state)
{
    question()[ASK_FIRST_WAKE] = 1 * MS;
    ask(3, 2, 1, 0, 0);
    expect_step("a thread wakes once", 20 + 60 + 5 + 1, 16);
    expect_ms("the first bucket starts", answer_collectives()[1], 20 + 11);
    ask(2, 2, 1, 0, 0);
    expect_step("the training thread need not wake", 70 + 48, 48);
    ask(3, 2, 1, 9 * MB, 9 * MB);
    expect_step("nor if it waits at once", 70 + 42, 42);
    /* In flight 12-24, with half the speed: at 24 backward has made 18, so it ends at 46. Then 46-58,
     * because the training thread, which waits, is awake. */
    recording()[RECORDED_GRADIENTS] = 2;
    recording_ready()[1] = 40 * MS;
    question()[ASK_FIRST_WAKE] = 2 * MS;
    question()[ASK_SLOWDOWN] = 0.5;
    ask(3, 2, 1, 0, 0);
    expect_step("computing is slower in flight only", 20 + 60 + 5 + 1, 8);
    /* Gradients are ready at 10 and 26: 12-24, with backward at 18 of 40; at 32 it is at 26, and the thread sleeps. */
    recording_ready()[1] = 26 * MS;
    question()[ASK_WAKE] = 3 * MS;
    ask(3, 2, 1, 0, 0);
    expect_ms("the second bucket is queued", answer_collectives()[4], 20 + 32);
    expect_ms("and starts when the thread is awake", answer_collectives()[5], 20 + 35);
}

/* Over an emulated link, ranks wait less for each other the longer the last all-reduce takes. That is the one of the
 * last bucket (32 ms), or in stage 1 of the parameter that was registered last (12 ms). */
static void test_emulated(void **state)
{
    recording()[RECORDED_GRADIENTS] = 2;
    recording()[RECORDED_SPREAD] = 0.1;
    recording_bytes()[1] = 3 * MB;
    ask(2, 2, 1, 0, 0);
    expect_step("a real link", 70 * 1.05642 + 44, 70 * 0.05642 + 44);
    question()[ASK_EMULATED] = 1;
    const double lasts[] = {12, 32};
    for (int stage = 1; stage <= 2; stage++) {
        const double behind = 0.05642 / (1 + 1.6 * lasts[stage - 1] / (1.4142 * 0.1 * 70));
        ask(stage, 2, 1, 0, 0);
        expect_step("the slowest of 2, over an emulated link", 70 * (1 + behind) + 44, 70 * behind + 44);
    }
    question()[ASK_LATENCY] = question()[ASK_BANDWIDTH] = 0;
    ask(2, 2, 1, 0, 0);
    expect_step("a link that takes no time", 70 * 1.05642, 70 * 0.05642);
}

/* An all-reduce takes 3 ms for the call, and the longer one of the link (2 + 10) and of adding up (20). */
static void test_longer_one(void **state)
{
    question()[ASK_CALL_SECONDS] = 3 * MS;
    ask(1, 2, 1, 0, 0);
    expect_step("the link is slower", 70 + 4 * (3 + 12), 60);
    question()[ASK_BYTE_SECONDS] = 20 * MS / MB;
    ask(1, 2, 1, 0, 0);
    expect_step("adding up is slower", 70 + 4 * (3 + 20), 92);
}

/* ---- the best caps ---- */

static void test_best_caps(void **state)
{
    question()[ASK_STAGE] = 3;
    question()[ASK_RANKS] = 2;
    question()[ASK_ACCUMULATE] = 1;
    simulate_best_caps();
    const double best = answer()[ANSWER_STEP], first_cap = question()[ASK_FIRST_CAP], cap = question()[ASK_CAP];
    for (double first = 1024; first < 8 * MB; first *= 2)
        for (double other = 1024; other < 8 * MB; other *= 2) {
            ask(3, 2, 1, first, other);
            if (answer()[ANSWER_STEP] < 0.999 * best)
                fail_msg("caps %g and %g take %g s, the best ones (%g, %g) %g s", first, other, answer()[ANSWER_STEP],
                         first_cap, cap, best);
        }
    ask(3, 2, 1, first_cap, cap);
    assert_true(!(answer()[ANSWER_STEP] < best || answer()[ANSWER_STEP] > best));
    recording()[RECORDED_SCALING] = 0;
    const double late[] = {10, 38, 39, 40}; /* best: the first gradient alone, then all others together */
    for (int g = 0; g < 4; g++)
        recording_ready()[g] = late[g] * MS;
    simulate_best_caps();
    assert_true(question()[ASK_FIRST_CAP] <= MB && question()[ASK_CAP] > 2 * MB);
    assert_true((int)answer()[ANSWER_BUCKETS] == 2);
    question()[ASK_STAGE] = 2; /* nothing overlaps, so one bucket is best */
    simulate_best_caps();
    assert_true((int)answer()[ANSWER_BUCKETS] == 1);
}

/* What a slider may send: nothing may crash or loop for ever. */
static void test_odd_questions(void **state)
{
    const double odd[] = {NAN, -1, 0, 1e300, INFINITY};
    for (int field = 0; field < QUESTION_COUNT; field++)
        for (int i = 0; i < 5; i++) {
            record(NULL);
            ask(4, 3, 2, 0, 0);
            question()[field] = odd[i];
            simulate();
        }
    recording()[RECORDED_GRADIENTS] = 0;
    ask(3, 2, 1, 0, 0);
    simulate_best_caps();
}

int main(void)
{
    return run_cases("simulate", cmocka_unit_test_setup(test_one_rank, record),
                     cmocka_unit_test_setup(test_link_without_cost, record),
                     cmocka_unit_test_setup(test_nothing_overlaps, record),
                     cmocka_unit_test_setup(test_overlap, record), cmocka_unit_test_setup(test_full_overlap, record),
                     cmocka_unit_test_setup(test_launch_order, record), cmocka_unit_test_setup(test_order, record),
                     cmocka_unit_test_setup(test_accumulation, record), cmocka_unit_test_setup(test_ranks, record),
                     cmocka_unit_test_setup(test_spread, record), cmocka_unit_test_setup(test_cores, record),
                     cmocka_unit_test_setup(test_slowdown, record), cmocka_unit_test_setup(test_longer_one, record),
                     cmocka_unit_test_setup(test_best_caps, record), cmocka_unit_test_setup(test_wake, record),
                     cmocka_unit_test_setup(test_emulated, record), cmocka_unit_test_setup(test_odd_questions, record),
                     cmocka_unit_test_setup(test_late, record));
}
