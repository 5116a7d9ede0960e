/* test_evaluate.c: ranks that share an evaluation evaluate every sample once. Compared with one forward pass over all
 * samples, on 1, 2 and 3 ranks, with numbers of samples that are not multiples of the ranks. */
#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "device/device.h"
#include "expect.h"
#include "mpi_main.h"
#include "toy_models.h"
#include "train/loop/evaluate.h"

static ProcessGroup *pg;

enum { SAMPLES = 37, BATCH = 5 /* fits into a rank's buffers: each rank needs several batches, the last one short */ };

typedef struct Expected {
    double loss, accuracy;
} Expected;

/* Samples 0, 1, ... count - 1, in host memory; free() both. */
typedef struct Samples {
    float *inputs;
    int32_t *targets;
} Samples;

static Samples get_samples(const Dataset *dataset, int64_t count)
{
    int64_t indices[SAMPLES];
    for (int64_t i = 0; i < count; i++)
        indices[i] = i;
    Samples samples = {alloc_or_fault((size_t)count * dataset->input_bytes),
                       alloc_or_fault((size_t)count * dataset->target_bytes)};
    dataset_get(dataset, 0, indices, count, samples.inputs, samples.targets);
    return samples;
}

/* Adds what one row of logits contributes: log(sum of exp) - the target's logit, and whether that is the largest. */
static void add_row(Expected *sums, const float *logits, int64_t classes, int32_t target)
{
    double sum = 0;
    int64_t largest = 0;
    for (int64_t c = 0; c < classes; c++) {
        sum += exp((double)logits[c]);
        largest = logits[c] > logits[largest] ? c : largest;
    }
    sums->loss += log(sum) - (double)logits[target];
    sums->accuracy += largest == target;
}

/* The first `count` samples in one batch, on this rank alone. */
static Expected all_at_once(Replica *replica, const Dataset *dataset, int64_t count)
{
    Samples samples = get_samples(dataset, count);
    replica_load(replica, dataset, samples.inputs, samples.targets, count);
    tape_begin(&replica->tape, false);
    Tensor *output = model_forward(&replica->model, &replica->tape, replica->inputs, count, replica->time);
    int64_t rows = tensor_rows(output), classes = tensor_last(output);
    float *logits = alloc_or_fault((size_t)(rows * classes) * sizeof *logits);
    device_to_host(logits, output->data, (size_t)(rows * classes) * sizeof *logits);
    Expected sums = {0};
    for (int64_t row = 0; row < rows; row++)
        add_row(&sums, logits + row * classes, classes, samples.targets[row]);
    free(logits);
    free(samples.inputs);
    free(samples.targets);
    return (Expected){sums.loss / (double)rows, sums.accuracy / (double)rows};
}

static void check_limit(const Options *options, Replica *replica, const Dataset *dataset, int64_t limit,
                        Expected expected, int64_t terms)
{
    Evaluation got = evaluate(replica, dataset, pg, limit);
    const char *model = options->model.name;
    if (got.terms != terms)
        fail_msg("%s, --eval-samples %lld: expected %lld terms, got %lld: a sample was left out, or two ranks saw it",
                 model, (long long)limit, (long long)terms, (long long)got.terms);
    if (!(fabs(got.loss - expected.loss) <= 1e-6 * expected.loss))
        fail_msg("%s, --eval-samples %lld: loss: expected %.9g, got %.9g: a sample was left out or seen twice, this is "
                 "the mean of the ranks' means, or evaluation drops activations (--dropout)", model, (long long)limit,
                 expected.loss, got.loss);
    if (!(fabs(got.accuracy - expected.accuracy) <= 1e-6))
        fail_msg("%s, --eval-samples %lld: accuracy: expected %.9g, got %.9g", model, (long long)limit,
                 expected.accuracy, got.accuracy);
}

static void check_model(const char *model)
{
    static const int64_t limits[] = {0, 1, 2, 7, 36, 37, 1000}; /* 0: all; 1: some ranks get none */
    Options options = toy_options(model);
    Dataset dataset = toy_dataset(&options, SAMPLES);
    Replica replica, whole;
    replica_create(&whole, &options, options.seed, 1);
    options.dropout = 0.9f; /* evaluation must drop nothing */
    replica_create(&replica, &options, options.seed, 1);
    Samples batch = get_samples(&dataset, BATCH);
    replica_load(&replica, &dataset, batch.inputs, batch.targets, BATCH); /* allocates the buffers, as training does */
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        int64_t count = limits[i] == 0 || limits[i] > SAMPLES ? SAMPLES : limits[i];
        check_limit(&options, &replica, &dataset, limits[i], all_at_once(&whole, &dataset, count),
                    model_loss_terms(&options.model, count, replica.time));
    }
    free(batch.inputs);
    free(batch.targets);
    replica_free(&replica);
    replica_free(&whole);
    dataset_close(&dataset);
}

static void test_images(void **state)
{
    check_model("mlp");
}

static void test_text(void **state)
{
    check_model("gpt");
}

int main(int argc, char **argv)
{
    Options options = toy_options("mlp");
    pg = tests_start_group(&argc, &argv, &options.group);
    int failures = run_cases("evaluate", cmocka_unit_test(test_images), cmocka_unit_test(test_text));
    job_close(pg);
    return failures != 0;
}
