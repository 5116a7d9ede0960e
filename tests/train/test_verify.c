/* test_verify.c: --verify can fail. A run of no steps is compared with its own initial weights, after one number was
 * changed: without training, every bit of the reference's weights is known. On 1 and 2 ranks: only rank 0 compares, but
 * every rank gets the result. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "device/device.h"
#include "expect.h"
#include "mpi_main.h"
#include "toy_models.h"
#include "train/loop/verify.h"

static ProcessGroup *pg;

enum { STEPS = 3 /* all done before the run begins */, ELEMENT = 7, NONE = -1 };

/* One comparison: element ELEMENT of a parameter is `expected` in the reference and `got` in the trained replica. */
typedef struct Case {
    const char *what;
    VerifyMode mode;
    DType precision;
    int parameter; /* NONE: no number is changed */
    float expected, got;
    bool passes;
    double difference; /* what max_abs_diff must be, within a thousandth */
    int64_t differing; /* elements */
} Case;

/* ---- running verify_training() ---- */

/* Prints nothing, because a table that says FAILED would be misleading in a test that passes. */
static Verification verify_quietly(const Options *options, const Dataset *dataset, Replica *trained,
                                   const float *initial, long first_step)
{
    fflush(stdout);
    int out = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY);
    CHECK(out >= 0 && nowhere >= 0 && dup2(nowhere, STDOUT_FILENO) >= 0, "cannot put stdout aside");
    Verification result = verify_training(options, pg, dataset, trained, initial, first_step);
    fflush(stdout);
    CHECK(dup2(out, STDOUT_FILENO) >= 0, "cannot get stdout back");
    close(out);
    close(nowhere);
    return result;
}

static int64_t offset_of(const ParameterList *parameters, int parameter)
{
    int64_t offset = 0;
    for (int i = 0; i < parameter; i++)
        offset += tensor_count(&parameters->items[i]->tensor);
    return offset;
}

/* Copies the changed parameter's name to `name` (64 characters), or "" if there is none. `less`: a parameter that is
 * also changed, by 1e-6; or NONE. */
static Verification run_case(const Case *one, Norm norm, int less, char *name)
{
    Options options = toy_options("mlp-toy");
    options.verify = one->mode;
    options.precision = one->precision;
    options.model.norm = norm;
    Dataset dataset = toy_dataset(&options, 100);
    Replica trained;
    replica_create(&trained, &options, options.seed, STEPS);
    ParameterList *parameters = &trained.model.parameters;
    float *weights = alloc_or_fault((size_t)parameters_total(parameters) * sizeof *weights);
    float *initial = alloc_or_fault((size_t)parameters_total(parameters) * sizeof *initial);
    parameters_to_host(parameters, weights);
    parameters_to_host(parameters, initial);
    name[0] = '\0';
    if (one->parameter != NONE) {
        int64_t at = offset_of(parameters, one->parameter) + ELEMENT;
        initial[at] = one->expected;
        weights[at] = one->got;
        snprintf(name, 64, "%s", parameters->items[one->parameter]->name);
    }
    if (less != NONE)
        weights[offset_of(parameters, less)] += 1e-6f;
    parameters_from_host(parameters, weights);
    Verification result = verify_quietly(&options, &dataset, &trained, initial, STEPS);
    free(weights);
    free(initial);
    replica_free(&trained);
    dataset_close(&dataset);
    return result;
}

static void check_case(const Case *one, int less)
{
    char name[64];
    Verification result = run_case(one, NORM_NONE, less, name);
    if (result.passed != one->passes)
        fail_msg("%s: expected %s, got %s (max |diff| %g, allowed %g, %lld elements differ): %s", one->what,
                 one->passes ? "passed" : "FAILED", result.passed ? "passed" : "FAILED", result.max_abs_diff,
                 result.tolerance, (long long)result.differing,
                 one->passes ? "did this rank get the result?" : "a verification that cannot fail proves nothing");
    bool close = isinf(one->difference) ? isinf(result.max_abs_diff)
                                        : fabs(result.max_abs_diff - one->difference) <= 1e-3 * one->difference;
    if (!close)
        fail_msg("%s: max_abs_diff: expected %g, got %g", one->what, one->difference, result.max_abs_diff);
    if (result.differing != one->differing)
        fail_msg("%s: expected %lld differing element(s), got %lld: are bits compared, or values?", one->what,
                 (long long)one->differing, (long long)result.differing);
    if (one->parameter != NONE && strcmp(result.worst_parameter, name) != 0)
        fail_msg("%s: expected %s as worst_parameter, got '%s'", one->what, name, result.worst_parameter);
}

static void check_cases(const Case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++)
        check_case(&cases[i], NONE);
}

#define CHECK_CASES(cases) check_cases(cases, sizeof(cases) / sizeof((cases)[0]))

/* ---- the cases; parameters of mlp-toy: 0 fc1.weight, 1 fc1.bias, 2 fc2.weight, ... ---- */

static void test_equal_weights_pass(void **state)
{
    static const Case cases[] = {
        {"equal weights, whole batches", VERIFY_WHOLE_BATCH, DTYPE_F32, NONE, 0, 0, true, 0, 0},
        {"equal weights, exact", VERIFY_EXACT, DTYPE_F32, NONE, 0, 0, true, 0, 0},
    };
    CHECK_CASES(cases);
}

static void test_whole_batches_allow_rounding_only(void **state)
{
    static const Case cases[] = {
        {"off by 1e-3", VERIFY_WHOLE_BATCH, DTYPE_F32, 2, 0.5f, 0.501f, false, 1e-3, 1},
        {"off by 1e-3, in the first parameter", VERIFY_WHOLE_BATCH, DTYPE_F32, 0, 0.501f, 0.5f, false, 1e-3, 1},
        {"off by 2e-5", VERIFY_WHOLE_BATCH, DTYPE_F32, 1, 0, 2e-5f, false, 2e-5, 1},
        {"off by 5e-6", VERIFY_WHOLE_BATCH, DTYPE_F32, 3, 0, 5e-6f, true, 5e-6, 1},
        {"off by 5e-5 in bf16", VERIFY_WHOLE_BATCH, DTYPE_BF16, 3, 0, 5e-5f, true, 5e-5, 1},
        {"off by 2e-4 in bf16", VERIFY_WHOLE_BATCH, DTYPE_BF16, 3, 0, 2e-4f, false, 2e-4, 1},
    };
    CHECK_CASES(cases);
}

static void test_nothing_that_is_no_number_passes(void **state)
{
    static const Case cases[] = {
        {"NaN, whole batches", VERIFY_WHOLE_BATCH, DTYPE_F32, 2, 0.5f, NAN, false, INFINITY, 1},
        {"NaN, exact", VERIFY_EXACT, DTYPE_F32, 2, 0.5f, NAN, false, INFINITY, 1},
        {"infinity, whole batches", VERIFY_WHOLE_BATCH, DTYPE_F32, 2, 0.5f, INFINITY, false, INFINITY, 1},
        {"NaN on both sides, whole batches", VERIFY_WHOLE_BATCH, DTYPE_F32, 2, NAN, NAN, false, INFINITY, 0},
    };
    CHECK_CASES(cases);
}

static void test_exact_means_every_bit(void **state)
{
    static const Case cases[] = {
        {"the last bit, exact", VERIFY_EXACT, DTYPE_F32, 2, 1, 1 + 0x1p-23f, false, 0x1p-23, 1},
        {"the last bit, whole batches", VERIFY_WHOLE_BATCH, DTYPE_F32, 2, 1, 1 + 0x1p-23f, true, 0x1p-23, 1},
        {"+0 against -0, exact", VERIFY_EXACT, DTYPE_F32, 2, 0.0f, -0.0f, false, 0, 1},
        {"+0 against -0, whole batches", VERIFY_WHOLE_BATCH, DTYPE_F32, 2, 0.0f, -0.0f, true, 0, 1},
    };
    CHECK_CASES(cases);
}

static void test_the_worst_parameter_is_named(void **state)
{
    static const Case cases[] = {
        {"off by 2e-5, then by less", VERIFY_WHOLE_BATCH, DTYPE_F32, 1, 0, 2e-5f, false, 2e-5, 2},
        {"off by less, then by 2e-5", VERIFY_WHOLE_BATCH, DTYPE_F32, 3, 0, 2e-5f, false, 2e-5, 2},
    };
    for (int i = 0; i < 2; i++)
        check_case(&cases[i], 2);
}

/* A running statistic may be off by ten times as much as a weight, and not by more. In exact mode it may not at all. */
static void test_running_statistics(void **state)
{
    enum { BN1_WEIGHT = 1, BN1_RUNNING_MEAN = 3 };
    static const Case cases[] = {
        {"5e-5", VERIFY_WHOLE_BATCH, DTYPE_F32, BN1_RUNNING_MEAN, 0, 5e-5f, true, 0, 0},
        {"2e-4", VERIFY_WHOLE_BATCH, DTYPE_F32, BN1_RUNNING_MEAN, 0, 2e-4f, false, 0, 0},
        {"the last bit", VERIFY_EXACT, DTYPE_F32, BN1_RUNNING_MEAN, 1, 1 + 0x1p-23f, false, 0, 0},
        {"5e-5, a weight", VERIFY_WHOLE_BATCH, DTYPE_F32, BN1_WEIGHT, 1, 1 + 5e-5f, false, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64];
        const Verification result = run_case(&cases[i], NORM_SYNC_BATCH, NONE, name);
        assert_string_equal(name, cases[i].parameter == BN1_WEIGHT ? "bn1.weight" : "bn1.running_mean");
        if (result.passed != cases[i].passes)
            fail_msg("%s off by %s: expected %s", name, cases[i].what, cases[i].passes ? "passed" : "FAILED");
    }
}

/* Without this, a reference that never trains would pass all tests above. */
static void test_the_reference_trains(void **state)
{
    Options options = toy_options("mlp-toy");
    options.verify = VERIFY_WHOLE_BATCH;
    Dataset dataset = toy_dataset(&options, 100);
    Replica idle;
    replica_create(&idle, &options, options.seed, STEPS);
    float *initial = alloc_or_fault((size_t)parameters_total(&idle.model.parameters) * sizeof *initial);
    parameters_to_host(&idle.model.parameters, initial);
    Verification result = verify_quietly(&options, &dataset, &idle, initial, 0);
    if (result.passed)
        fail_msg("weights that were never trained passed: max |diff| %g after %d steps", result.max_abs_diff, STEPS);
    free(initial);
    replica_free(&idle);
    dataset_close(&dataset);
}

int main(int argc, char **argv)
{
    Options options = toy_options("mlp-toy");
    pg = tests_start_group(&argc, &argv, &options.group);
    int failures = run_cases("verify", cmocka_unit_test(test_equal_weights_pass),
                             cmocka_unit_test(test_whole_batches_allow_rounding_only),
                             cmocka_unit_test(test_nothing_that_is_no_number_passes),
                             cmocka_unit_test(test_exact_means_every_bit),
                             cmocka_unit_test(test_the_worst_parameter_is_named),
                             cmocka_unit_test(test_running_statistics), cmocka_unit_test(test_the_reference_trains));
    job_close(pg);
    return failures != 0;
}
