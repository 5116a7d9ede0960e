/* test_dropout.c: the generator against its authors' numbers, when the tape drops, and masks that must have nothing to
 * do with each other. (The operation and its gradient: operations_elementwise.c; N ranks against one process:
 * train/test_join.sh; runs resumed: train/test_resume.sh.) */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "base/check.h"
#include "base/rng.h"
#include "device/device.h"
#include "expect.h"

/* From Random123, kat_vectors. */
static void test_known_answers(void **state)
{
    static const struct {
        uint64_t key;
        uint32_t counter[4], expected[4];
    } known[] = {
        {0, {0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t numbers[4];
        rng_philox(known[i].key, known[i].counter, numbers);
        assert_memory_equal(numbers, known[i].expected, sizeof numbers);
    }
}

/* ---- the operation ---- */

static const int64_t some_places[] = {3, 0, 1000000000, 4, 5, 6, 7};
static const DropoutMask some_mask = {.probability = 0.3f, .seed = 0x123456789abcdef0, .step = 70000,
                                      .places = some_places};

static void drop_unknown_samples(void *argument)
{
    Tape tape = {.dropout.probability = 0.5f};
    float value = 1;
    tape_begin(&tape, true);
    op_dropout(&tape, tape_input(&tape, &value, DTYPE_F32, 2, (int64_t[]){1, 1}));
}

/* A forward pass counts its masks, evaluation has none, and NaN is seen even where it is dropped. */
static void test_when_it_drops(void **state)
{
    enum { N = 200 };
    float ones[N], first[N];
    Tape tape = {.dropout = some_mask};
    for (int i = 0; i < N; i++)
        ones[i] = 1;
    tape_begin(&tape, false);
    Tensor *x = tape_input(&tape, ones, DTYPE_F32, 2, (int64_t[]){1, N});
    assert_ptr_equal(op_dropout(&tape, x), x);
    for (int pass = 0; pass < 2; pass++) {
        tape_begin(&tape, true);
        x = tape_input(&tape, ones, DTYPE_F32, 2, (int64_t[]){1, N});
        Tensor *a = op_dropout(&tape, x), *b = op_dropout(&tape, x);
        assert_memory_not_equal(a->data, b->data, sizeof ones); /* two layers, two masks */
        if (pass == 0)
            memcpy(first, a->data, sizeof first);
        assert_memory_equal(a->data, first, sizeof first);
    }
    for (int i = 0; i < N; i++)
        ones[i] = NAN;
    const float *out = op_dropout(&tape, x)->data;
    for (int i = 0; i < N; i++)
        assert_true(isnan(out[i]));
    tape.dropout.probability = 0;
    assert_ptr_equal(op_dropout(&tape, x), x);
    tape_free(&tape);
    expect_dies(drop_unknown_samples, NULL, 1, "dropout: tape->dropout.places is NULL");
}

/* ---- masks ---- */

enum { ELEMENTS = 1 << 16, MASKS = 13 };

/* z is what would be a standard normal number if nothing were wrong. */
static void expect_ordinary(double z, const char *what, int a, int b)
{
    if (!(fabs(z) < 5))
        fail_msg("masks %d and %d: %s, %.1f standard deviations from what independent masks have: is every number that "
                 "names an element (seed, step, layer, place) a part of the counter?", a, b, what, z);
}

/* Mask 0 and masks that differ from it in one number, by little or by much, or in two numbers that are exchanged. Each
 * has the right share of zeros; two agree no more and no less often than by chance, also if one is shifted by an
 * element. These are 13 + 78 + 78 numbers, each of them above 5 with a probability of 6e-7: so a right generator fails
 * with a probability of 1e-4, always or never, because nothing here is drawn anew. */
static void test_masks_are_unrelated(void **state)
{
    static const uint32_t key[MASKS][4] = { /* seed, step, layer, place */
        {1, 5, 2, 9}, {2, 5, 2, 9}, {1u << 31, 5, 2, 9}, {1, 6, 2, 9}, {1, 1 << 20, 2, 9}, {1, 5, 3, 9}, {1, 5, 40, 9},
        {1, 5, 2, 10}, {1, 5, 2, 11}, {1, 5, 2, 1 << 20}, {1, 2, 5, 9}, {1, 9, 2, 5}, {1, 5, 9, 2}};
    const double P = 0.25, n = ELEMENTS, variance = P * (1 - P);
    static float ones[ELEMENTS], mask[MASKS][ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++)
        ones[i] = 1;
    for (int m = 0; m < MASKS; m++) {
        const int64_t place = key[m][3];
        double dropped = 0;
        device_dropout((Gradient){.values = mask[m]}, ones, &(DropoutMask){(float)P, key[m][0], key[m][1], key[m][2],
                       &place}, 1, ELEMENTS);
        for (int i = 0; i < ELEMENTS; i++)
            dropped += mask[m][i] == 0;
        expect_ordinary((dropped - n * P) / sqrt(n * variance), "the share of zeros", m, m);
        for (int other = 0; other < m; other++)
            for (int shift = 0; shift < 2; shift++) {
                double covariance = 0;
                for (int i = 0; i + shift < ELEMENTS; i++)
                    covariance += ((mask[m][i] == 0) - P) * ((mask[other][i + shift] == 0) - P);
                expect_ordinary(covariance / (sqrt(n) * variance), "zeros at the same places", other, m);
            }
    }
}

/* Several samples at once: each has the mask of its place. */
static void test_places(void **state)
{
    enum { SAMPLES = 3, EACH = 37 };
    static const int64_t places[SAMPLES] = {4, 2, 9};
    float ones[SAMPLES * EACH], all[SAMPLES * EACH], alone[EACH];
    for (int i = 0; i < SAMPLES * EACH; i++)
        ones[i] = 1;
    DropoutMask mask = {.probability = 0.5f, .seed = 1, .places = places};
    device_dropout((Gradient){.values = all}, ones, &mask, SAMPLES, EACH);
    for (int s = 0; s < SAMPLES; s++) {
        mask.places = &places[s];
        device_dropout((Gradient){.values = alone}, ones, &mask, 1, EACH);
        if (memcmp(alone, all + s * EACH, sizeof alone) != 0)
            fail_msg("the sample at place %d has another mask beside other samples than alone", (int)places[s]);
    }
    assert_memory_not_equal(all, all + EACH, sizeof alone);
    assert_memory_not_equal(all + EACH, all + 2 * EACH, sizeof alone);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("dropout", cmocka_unit_test(test_known_answers), cmocka_unit_test(test_when_it_drops),
                     cmocka_unit_test(test_masks_are_unrelated),
                     cmocka_unit_test(test_places));
}
