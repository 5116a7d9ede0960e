/* test_buckets.c: which gradient belongs to which bucket, and its place there. The expected plans are those of
 * PyTorch's compute_bucket_assignment_by_size for the same sizes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "choose_case.h"
#include "device/device.h"
#include "judge.h"
#include "stage2_bucketed/buckets.h"

enum { MAX_SIZES = 128, MIB = 1 << 20 };

/* ---- plans ---- */

typedef struct Sizes {
    size_t bytes[MAX_SIZES];
    int count;
} Sizes;

static void add(Sizes *sizes, size_t elements)
{
    assert_true(sizes->count < MAX_SIZES);
    sizes->bytes[sizes->count++] = elements * sizeof(float);
}

/* From the order of registration to the order in which gradients become ready. */
static void reverse(Sizes *sizes)
{
    for (int i = 0; i < sizes->count / 2; i++) {
        size_t swapped = sizes->bytes[i];
        sizes->bytes[i] = sizes->bytes[sizes->count - 1 - i];
        sizes->bytes[sizes->count - 1 - i] = swapped;
    }
}

/* expected: the bytes of each bucket, ended by 0. */
static void expect_plan(const char *title, const Sizes *sizes, size_t first_cap, size_t cap, const size_t *expected)
{
    int bucket_of[MAX_SIZES] = {0};
    size_t got[MAX_SIZES] = {0};
    int buckets = buckets_plan(sizes->bytes, sizes->count, first_cap, cap, bucket_of), wanted = 0;
    while (expected[wanted] != 0)
        wanted++;
    for (int i = 0; i < sizes->count; i++) {
        int before = i == 0 ? 0 : bucket_of[i - 1];
        if (bucket_of[i] >= buckets)
            fail_msg("%s: size %d is in bucket %d, but there are %d buckets only: the last, partial bucket was "
                     "forgotten", title, i, bucket_of[i], buckets);
        if (bucket_of[i] < before || bucket_of[i] > before + 1)
            fail_msg("%s: size %d is in bucket %d after bucket %d, of %d buckets: they are filled one after the other; "
                     "or was the last, partial bucket forgotten?", title, i, bucket_of[i], before, buckets);
        got[bucket_of[i]] += sizes->bytes[i];
    }
    if (buckets != wanted)
        fail_msg("%s: expected %d buckets, got %d; usual cause: a bucket closes once it HOLDS its cap (>=), not before "
                 "it would exceed it, or the last, partial bucket was forgotten", title, wanted, buckets);
    for (int b = 0; b < buckets; b++)
        if (got[b] != expected[b])
            fail_msg("%s: bucket %d: expected %zu bytes, got %zu", title, b, expected[b], got[b]);
}

/* The same, for equal caps, with the expected sizes in elements. */
static void expect_elements(const char *title, const Sizes *sizes, size_t cap, const size_t *expected)
{
    size_t bytes[MAX_SIZES] = {0};
    char name[80];
    for (int i = 0; expected[i] != 0; i++)
        bytes[i] = expected[i] * sizeof(float);
    snprintf(name, sizeof name, "%s, cap %zu elements", title, cap);
    expect_plan(name, sizes, cap * sizeof(float), cap * sizeof(float), bytes);
}

/* Computed by hand: bias 95, weight 9025, bias 95, ...; the parameter that fills a bucket closes it. */
static void test_ten_linear_layers(void **state)
{
    Sizes sizes = {.count = 0};
    for (int i = 0; i < 10; i++) {
        add(&sizes, 95 * 95);
        add(&sizes, 95);
    }
    reverse(&sizes);
    const size_t pairs[] = {9120, 9120, 9120, 9120, 9120, 9120, 9120, 9120, 9120, 9120, 0};
    const size_t threes[] = {9215, 18145, 9215, 18145, 9215, 18145, 9120, 0}; /* b w b, w b w, ..., b w */
    const size_t fours[] = {18240, 18240, 18240, 18240, 18240, 0};
    const size_t fives[] = {18335, 27265, 18335, 27265, 0};
    const size_t sixes[] = {27360, 27360, 27360, 9120, 0};
    const struct {
        size_t cap;
        const size_t *expected;
    } cases[] = {{9000, pairs}, {9120, pairs}, {9121, threes}, {9215, threes}, {9216, fours}, {18240, fours},
                 {18241, fives}, {18335, fives}, {18336, sixes}, {20000, sixes}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_elements("10 x Linear(95, 95)", &sizes, cases[i].cap, cases[i].expected);
}

static void add_convolution(Sizes *sizes, size_t out, size_t in, size_t kernel)
{
    add(sizes, out * in * kernel * kernel);
    add(sizes, out); /* the batch norm behind it: weight, bias */
    add(sizes, out);
}

/* torchvision's resnet18: 62 parameters, 11689512 elements. */
static Sizes resnet18(void)
{
    Sizes sizes = {.count = 0};
    size_t in = 64;
    add_convolution(&sizes, 64, 3, 7);
    for (size_t layer = 0; layer < 4; layer++) {
        size_t out = (size_t)64 << layer;
        for (int block = 0; block < 2; block++) {
            add_convolution(&sizes, out, in, 3);
            add_convolution(&sizes, out, out, 3);
            if (in != out)
                add_convolution(&sizes, out, in, 1); /* downsample */
            in = out;
        }
    }
    add(&sizes, 1000 * 512);
    add(&sizes, 1000);
    reverse(&sizes);
    return sizes;
}

static void test_resnet18(void **state)
{
    Sizes sizes = resnet18();
    size_t total = 0;
    for (int i = 0; i < sizes.count; i++)
        total += sizes.bytes[i];
    assert_int_equal(sizes.count, 62);
    assert_int_equal(total, 4 * 11689512);
    expect_plan("ResNet18 at 25 MiB", &sizes, MIB, 25 * MIB, (const size_t[]){2052000, 28852224, 15853824, 0});
    expect_plan("ResNet18 at 35 MiB", &sizes, MIB, 35 * MIB, (const size_t[]){2052000, 38297600, 6408448, 0});
}

static void test_alternating_sizes(void **state)
{
    Sizes sizes = {.count = 0};
    for (int i = 0; i < 4; i++) {
        add(&sizes, 50);
        add(&sizes, 25);
    }
    expect_elements("50, 25, 50, 25, ...", &sizes, 50, (const size_t[]){50, 75, 75, 75, 25, 0});
    expect_elements("50, 25, 50, 25, ...", &sizes, 75, (const size_t[]){75, 75, 75, 75, 0});
    expect_elements("50, 25, 50, 25, ...", &sizes, 100, (const size_t[]){125, 100, 75, 0});
    expect_elements("50, 25, 50, 25, ...", &sizes, 300, (const size_t[]){300, 0});
    expect_elements("50, 25, 50, 25, ...", &sizes, 1000, (const size_t[]){300, 0});
}

static void test_limits(void **state)
{
    Sizes sizes = {.count = 0};
    expect_elements("nothing", &sizes, 100, (const size_t[]){0});
    add(&sizes, 1000);
    expect_elements("one parameter, larger than the cap", &sizes, 100, (const size_t[]){1000, 0});
    expect_elements("one parameter, exactly at the cap", &sizes, 1000, (const size_t[]){1000, 0});
    expect_elements("one parameter, below the cap", &sizes, 1001, (const size_t[]){1000, 0});
    add(&sizes, 10);
    add(&sizes, 2000);
    add(&sizes, 10);
    expect_elements("large ones between small ones", &sizes, 100, (const size_t[]){1000, 2010, 10, 0});
    expect_elements("cap 0: one bucket per parameter", &sizes, 0, (const size_t[]){1000, 10, 2000, 10, 0});
    expect_plan("a first bucket of its own cap", &sizes, 1, 1 << 20, (const size_t[]){4000, 8080, 0});
    expect_plan("caps one byte above a parameter", &sizes, 4001, 8001, (const size_t[]){4040, 8040, 0});
    expect_plan("a first cap above the cap", &sizes, 5000, 1, (const size_t[]){12040, 40, 0});
}

/* ---- buckets ---- */

enum { PARAMETERS = 7, FROZEN = 2 };

static ParameterList seven_parameters(void)
{
    const int64_t shapes[PARAMETERS] = {1, 15, 64, 16, 17, 33, 100};
    ParameterList list = {0};
    for (int i = 0; i < PARAMETERS; i++) {
        char name[24];
        snprintf(name, sizeof name, "weight%d", i);
        parameters_add(&list, name, 1, &shapes[i]);
    }
    list.items[FROZEN]->tensor.requires_grad = false;
    return list;
}

/* Where parameter i's gradient lies within its bucket, in elements. */
static size_t offset_of(const Buckets *buckets, const Parameter *parameter)
{
    return (size_t)((float *)parameter->tensor.grad - buckets->items[buckets->of_parameter[parameter->index]].data);
}

static void check_slice(const Buckets *buckets, const ParameterList *list, int i)
{
    const Parameter *parameter = list->items[i];
    int b = buckets->of_parameter[i];
    if (b < 0 || b >= buckets->count)
        fail_msg("%s is trained, but in bucket %d of %d", parameter->name, b, buckets->count);
    if ((uintptr_t)parameter->tensor.grad % 64 != 0)
        fail_msg("the gradient of %s is at %p: not on a 64-byte boundary; kernels would give other bits there; usual "
                 "cause: the gap behind the gradient before it is left out, or not counted in the bucket's elements",
                 parameter->name, parameter->tensor.grad);
    if (parameter->gradient_room != parameter_gradient_bytes(parameter))
        fail_msg("gradient_room of %s is %zu bytes, expected %zu: the gradient with the gap behind it", parameter->name,
                 parameter->gradient_room, parameter_gradient_bytes(parameter));
    size_t start = offset_of(buckets, parameter), end = start + (size_t)tensor_count(&parameter->tensor);
    if (end > buckets->items[b].elements)
        fail_msg("the gradient of %s ends at element %zu of bucket %d, which has %zu: a wrong offset of its slice",
                 parameter->name, end, b, buckets->items[b].elements);
    for (int k = 0; k < i; k++) {
        const Parameter *other = list->items[k];
        if (buckets->of_parameter[k] != b)
            continue;
        size_t other_start = offset_of(buckets, other), other_end = other_start + (size_t)tensor_count(&other->tensor);
        if (start < other_end && other_start < end)
            fail_msg("the gradients of %s (%zu to %zu) and %s (%zu to %zu) overlap in bucket %d: a wrong offset of a "
                     "slice", parameter->name, start, end, other->name, other_start, other_end, b);
    }
}

/* These checks hold at every cap. */
static void check_buckets(const Buckets *buckets, const ParameterList *list)
{
    int members = 0;
    for (int i = 0; i < list->count; i++) {
        if (list->items[i]->tensor.requires_grad) {
            check_slice(buckets, list, i);
        } else if (buckets->of_parameter[i] != -1 || list->items[i]->tensor.grad != NULL) {
            fail_msg("%s is frozen, but has a place in bucket %d", list->items[i]->name, buckets->of_parameter[i]);
        }
    }
    for (int b = 0; b < buckets->count; b++) {
        const Bucket *bucket = &buckets->items[b];
        char name[24];
        snprintf(name, sizeof name, "bucket %d", b);
        if (strcmp(bucket->name, name) != 0)
            fail_msg("bucket number %d is called \"%s\", expected \"%s\": errors and timelines show it", b,
                     bucket->name, name);
        for (size_t i = 0; i < bucket->elements; i++)
            if (!(bucket->data[i] == 0))
                fail_msg("element %zu of %s is %g before the first step, not 0", i, name, (double)bucket->data[i]);
        for (int i = 0; i < bucket->count; i++)
            if (buckets->of_parameter[bucket->parameters[i]->index] != b)
                fail_msg("%s is a member of bucket %d, but of_parameter says bucket %d", bucket->parameters[i]->name, b,
                         buckets->of_parameter[bucket->parameters[i]->index]);
        members += bucket->count;
    }
    if (members != PARAMETERS - 1)
        fail_msg("expected each of %d trained parameters in one bucket, got %d members; usual cause: the last, partial "
                 "bucket was forgotten", PARAMETERS - 1, members);
}

/* The parameters of all buckets, one after the other, as digits. */
static void describe_order(const Buckets *buckets, char *text)
{
    for (int b = 0; b < buckets->count; b++) {
        Parameter **members = buckets->items[b].parameters;
        for (int i = 0; i < buckets->items[b].count; i++) {
            *text++ = (char)('0' + members[i]->index);
            if (i > 0 && members[i]->tensor.grad < members[i - 1]->tensor.grad)
                fail_msg("slices of bucket %d are not in the order of its parameters", b);
        }
    }
    *text = '\0';
}

/* Parameter numbers as digits. */
static void expect_order(const char *got, const char *expected, const char *what)
{
    if (strcmp(got, expected) != 0)
        fail_msg("the order of parameters in the buckets is %s, expected %s: %s", got, expected, what);
}

static void expect_buckets(const Buckets *buckets, int expected, const char *what)
{
    if (buckets->count != expected)
        fail_msg("there are %d buckets, expected %d %s", buckets->count, expected, what);
}

static void test_gradients_live_in_buckets(void **state)
{
    const size_t caps[] = {0, 64, 70, 200, 256, 1000, 1 << 20};
    const int expected[] = {6, 5, 4, 3, 3, 2, 1}; /* by hand, of 400, 132, 68, 64, 60 and 4 bytes */
    ParameterList list = seven_parameters();
    for (size_t c = 0; c < sizeof caps / sizeof *caps; c++) {
        Buckets buckets;
        char order[2 * PARAMETERS];
        buckets_create(&buckets, NULL, &list, NULL, caps[c] / 2, caps[c]);
        check_buckets(&buckets, &list);
        describe_order(&buckets, order);
        expect_order(order, "654310", "the reverse of registration, without the frozen parameter 2");
        if (buckets.count != expected[c])
            fail_msg("there are %d buckets, expected %d, with caps of %zu and %zu bytes; usual cause: the gaps between "
                     "gradients are counted for the cap, or the two caps are exchanged", buckets.count, expected[c],
                     caps[c] / 2, caps[c]);
        buckets_free(&buckets);
    }
    parameters_free(&list);
}

static void test_order_of_readiness(void **state)
{
    const int readiness[PARAMETERS - 1] = {3, 6, 0, 5, 1, 4};
    const size_t caps[] = {0, 64, 200, 1 << 20};
    ParameterList list = seven_parameters();
    for (size_t c = 0; c < sizeof caps / sizeof *caps; c++) {
        Buckets buckets;
        char order[2 * PARAMETERS];
        buckets_create(&buckets, NULL, &list, readiness, caps[c], caps[c]);
        check_buckets(&buckets, &list);
        describe_order(&buckets, order);
        expect_order(order, "360514", "the order in which gradients became ready");
        buckets_free(&buckets);
    }
    parameters_free(&list);
}

static void test_nothing_to_train(void **state)
{
    ParameterList list = seven_parameters();
    Buckets buckets;
    for (int i = 0; i < PARAMETERS; i++)
        list.items[i]->tensor.requires_grad = false;
    buckets_create(&buckets, NULL, &list, NULL, 100, 100);
    expect_buckets(&buckets, 0, "as all parameters are frozen");
    for (int i = 0; i < PARAMETERS; i++)
        assert_int_equal(buckets.of_parameter[i], -1);
    buckets_free(&buckets);
    parameters_free(&list);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {cmocka_unit_test(test_ten_linear_layers), cmocka_unit_test(test_resnet18),
                                 cmocka_unit_test(test_alternating_sizes), cmocka_unit_test(test_limits),
                                 cmocka_unit_test(test_gradients_live_in_buckets),
                                 cmocka_unit_test(test_order_of_readiness), cmocka_unit_test(test_nothing_to_train)};
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    device_init(0, 1);
    int failures = cmocka_run_group_tests_name("buckets", tests, NULL, NULL);
    if (in_judge())
        judge_end(false);
    return failures != 0;
}
