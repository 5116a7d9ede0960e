/* test_optimizer_state.c: which state the optimizer has, whole and cut to slices; and the loss scale of fp16. Without
 * other processes: what they would send is made up. */
#include "device/device.h"
#include "expect.h"
#include "optim/optimizer.h"

/* ---- slices ---- */

enum { TENSORS = 3, WHOLE = 3 * SQUARES_BLOCK, BEGIN = SQUARES_BLOCK, SLICE = 2 * SQUARES_BLOCK };

static ParameterList three_weights(void)
{
    ParameterList list = {0};
    for (int i = 0; i < TENSORS; i++)
        parameters_add(&list, "weight", 1, (int64_t[]){WHOLE});
    return list;
}

/* As a collective: the other process has the first block, of zeros. */
static void gather(void *owner, int parameter, const float *slice, float *whole)
{
    ((int *)owner)[parameter]++;
    device_copy(whole + BEGIN, slice, SLICE * sizeof *whole);
}

static void expect_wholes(Optimizer *optimizer, float **states, bool keeps)
{
    float **wholes = optimizer_gather_state(optimizer, states, keeps);
    for (int i = 0; i < TENSORS; i++) {
        assert_int_equal(wholes[i] != NULL, keeps);
        for (int k = 0; k < WHOLE && keeps; k++)
            assert_true(wholes[i][k] == (k < BEGIN ? 0 : (float)k));
    }
    optimizer_free_gathered(optimizer, wholes);
}

static void divide_twice(void *optimizer)
{
    const Partition partition = {.slices = ((Optimizer *)optimizer)->partition->slices};
    optimizer_set_partition(optimizer, &partition);
}

/* State that exists is cut to the slices; whole state is put together again, for the process that saves it. */
static void test_state_of_slices(void **state)
{
    ParameterList list = three_weights();
    Optimizer optimizer;
    int gathered[TENSORS] = {0};
    Slice slices[TENSORS];
    for (int i = 0; i < TENSORS; i++)
        slices[i] = (Slice){.begin = BEGIN, .count = SLICE};
    optimizer_create(&optimizer, &(OptimizerOptions){.kind = OPTIMIZER_ADAMW}, &list);
    optimizer_allocate_state(&optimizer);
    for (int i = 0; i < TENSORS; i++)
        for (int k = 0; k < WHOLE; k++)
            optimizer.state1[i][k] = optimizer.state2[i][k] = (float)k;
    optimizer_set_partition(&optimizer, NULL); /* no change */
    assert_int_equal(optimizer_state_bytes(&optimizer), 2 * TENSORS * WHOLE * sizeof(float));
    assert_ptr_equal(optimizer_gather_state(&optimizer, optimizer.state1, false), optimizer.state1);

    const Partition partition = {.slices = slices, .gather = gather, .owner = gathered};
    optimizer_set_partition(&optimizer, &partition);
    assert_int_equal(optimizer_state_bytes(&optimizer), 2 * TENSORS * SLICE * sizeof(float));
    for (int i = 0; i < TENSORS; i++)
        for (int k = 0; k < SLICE; k++)
            assert_true(optimizer.state1[i][k] == (float)(BEGIN + k) && optimizer.state2[i][k] == (float)(BEGIN + k));
    expect_wholes(&optimizer, optimizer.state1, true);
    expect_wholes(&optimizer, optimizer.state2, false);
    for (int i = 0; i < TENSORS; i++)
        assert_int_equal(gathered[i], 2);
    expect_dies(divide_twice, &optimizer, 1, "the optimizer has a partition already");
    optimizer_free(&optimizer);
    parameters_free(&list);
}

static void expect_state(OptimizerOptions options, size_t per_weight)
{
    ParameterList list = three_weights();
    Optimizer optimizer;
    optimizer_create(&optimizer, &options, &list);
    optimizer_allocate_state(&optimizer);
    assert_int_equal(optimizer_state_bytes(&optimizer), per_weight * TENSORS * WHOLE * sizeof(float));
    for (int i = 0; i < TENSORS; i++) {
        assert_int_equal(optimizer.state1[i] != NULL, per_weight >= 1);
        assert_int_equal(optimizer.state2[i] != NULL, per_weight == 2);
    }
    optimizer_free(&optimizer);
    parameters_free(&list);
}

static void test_state_per_weight(void **state)
{
    expect_state((OptimizerOptions){.kind = OPTIMIZER_SGD}, 0);
    expect_state((OptimizerOptions){.kind = OPTIMIZER_SGD, .momentum = 0.9f}, 1);
    expect_state((OptimizerOptions){.kind = OPTIMIZER_ADAMW}, 2);
}

/* ---- the loss scale ---- */

static void let_it_overflow(void *scaler)
{
    const Parameter parameter = {.name = "fc1.weight"};
    loss_scaler_update(scaler, &parameter);
}

static void test_loss_scaler(void **state)
{
    const Parameter parameter = {.name = "fc1.weight"};
    LossScaler scaler = loss_scaler_start(true, 64, false);
    assert_true(scaler.skip_not_finite);
    for (int k = 0; k < 2; k++) { /* an overflow ends a sequence of good steps */
        for (int step = 1; step < LOSS_SCALER_GROWTH_INTERVAL; step++)
            assert_true(loss_scaler_update(&scaler, NULL));
        assert_false(loss_scaler_update(&scaler, &parameter));
        assert_ptr_equal(scaler.not_finite, &parameter);
        assert_int_equal(scaler.skipped, k + 1);
    }
    assert_true(scaler.scale == 16);
    for (int step = 1; step <= 3 * LOSS_SCALER_GROWTH_INTERVAL; step++) {
        assert_true(loss_scaler_update(&scaler, NULL));
        assert_true(scaler.scale == 16 * (float)(1 << step / LOSS_SCALER_GROWTH_INTERVAL));
    }
    assert_null(scaler.not_finite);

    scaler = loss_scaler_start(false, 64, true); /* bf16 and float32: steps are skipped, but the scale stays 1 */
    for (int step = 0; step < 2 * LOSS_SCALER_GROWTH_INTERVAL; step++)
        loss_scaler_update(&scaler, step < 40 ? &parameter : NULL);
    assert_true(scaler.scale == 1 && scaler.skipped == 40 && scaler.skip_not_finite);
    assert_false(loss_scaler_start(false, 64, false).skip_not_finite);

    scaler = loss_scaler_start(true, 2 * LOSS_SCALER_MIN, true);
    assert_false(loss_scaler_update(&scaler, &parameter));
    expect_dies(let_it_overflow, &scaler, 1, "fc1.weight still overflows at a loss scale of 2.98023e-08");
}

/* Gradients that stay 0 never overflow. */
static void test_loss_scale_has_a_limit(void **state)
{
    const Parameter parameter = {.name = "fc1.weight"};
    LossScaler scaler = loss_scaler_start(true, 1024, true);
    for (int step = 0; step < 200 * LOSS_SCALER_GROWTH_INTERVAL; step++) /* 200 doublings: more than float has */
        assert_true(loss_scaler_update(&scaler, NULL));
    assert_true(scaler.scale == LOSS_SCALER_MAX && scaler.good_steps < LOSS_SCALER_GROWTH_INTERVAL);
    assert_false(loss_scaler_update(&scaler, &parameter));
    assert_true(scaler.scale == LOSS_SCALER_MAX / 2);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("optimizer_state", cmocka_unit_test(test_state_of_slices), cmocka_unit_test(test_state_per_weight),
                     cmocka_unit_test(test_loss_scaler), cmocka_unit_test(test_loss_scale_has_a_limit));
}
