/* test_loader.c: the loader delivers the sampler's batches, in order. */
#include <string.h>
#include <unistd.h>

#include "data/dataset.h"
#include "data/loader.h"
#include "data/sampler.h"
#include "expect.h"

static void check_batch(const Dataset *dataset, Sampler *sampler, const Batch *batch, int rank, int K, long number)
{
    int64_t indices[64], places[64];
    float inputs[64 * 30], targets[64 * 2];
    long steps_per_epoch = (long)sampler_steps_per_epoch(sampler);
    long step = number / K;
    assert_int_equal(batch->step, step);
    step += (long)sampler->batch_offset;
    assert_int_equal(batch->epoch, step / steps_per_epoch);
    assert_int_equal(batch->micro_batch, number % K);
    sampler_set_epoch(sampler, step / steps_per_epoch);
    assert_int_equal(batch->global_samples, sampler_global_count(sampler, step % steps_per_epoch));
    int64_t count = sampler_indices(sampler, step % steps_per_epoch, rank, (int)(number % K), K, indices);
    assert_int_equal(batch->samples, count);
    sampler_places(sampler, step % steps_per_epoch, rank, (int)(number % K), K, places);
    assert_true(count == 0 || memcmp(batch->places, places, (size_t)count * sizeof *places) == 0);
    assert_int_equal(batch->terms, count); /* random numbers: a term for each sample */
    dataset_get(dataset, batch->epoch, indices, count, inputs, targets);
    if (memcmp(batch->inputs, inputs, (size_t)count * dataset->input_bytes) != 0 ||
        memcmp(batch->targets, targets, (size_t)count * dataset->target_bytes) != 0) {
        fail_msg("rank %d, step %ld, micro-batch %ld of %d: the loader's data differ from dataset_get()'s: was the "
                 "buffer filled again while it was in use?",
                 rank, step, number % K, K);
    }
}

/* Batches of a loader from first_step on, over more than two epochs, are those of dataset_get(). place: where
 * first_step begins, or NULL. */
static void check_loader(int accumulate, long first_step, const int64_t *rank_samples, const DataPlace *place)
{
    Dataset dataset;
    Sampler sampler;
    dataset_open_random(&dataset, 47, 30, 2, 11);
    sampler_create(&sampler, dataset.size, 2, 20, 5, true, false); /* 48 places: steps of 20, 20 and 8 */
    sampler_set_rank_samples(&sampler, rank_samples);
    if (place != NULL)
        sampler_resume(&sampler, first_step, *place);
    for (int rank = 0; rank < 2; rank++) {
        Loader *loader = loader_start(&dataset, &sampler, rank, accumulate, first_step);
        for (long number = first_step * accumulate; number < (first_step + 8) * accumulate; number++) {
            const Batch *batch = loader_next(loader);
            check_batch(&dataset, &sampler, batch, rank, accumulate, number);
            usleep(number % 3 == 0 ? 300 : 0); /* now and then the thread has time to run ahead, perhaps too far */
            check_batch(&dataset, &sampler, batch, rank, accumulate, number);
        }
        loader_stop(loader);
    }
    sampler_free(&sampler);
    dataset_close(&dataset);
}

static void loader_equals_direct_access(void **state)
{
    check_loader(1, 0, NULL, NULL);
    check_loader(3, 0, NULL, NULL);
}

static void loader_resumes_where_it_would_have_been(void **state)
{
    check_loader(1, 4, NULL, NULL);
    check_loader(3, 5, NULL, NULL);
}

/* A run stops after `steps` steps of an epoch, and another one goes on: which samples has it in the rest of the epoch? */
static void check_going_on(const Sampler *old, int64_t steps, Sampler *next)
{
    const long step = 1000; /* of the run: other steps came before, with other batches */
    int64_t done = 0, rest = 0, step_of_epoch, first;
    for (int64_t s = 0; s < steps; s++)
        done += sampler_global_count(old, s);
    Sampler before = *old; /* only to ask for the place */
    before.batch_offset = 3 * old->steps + steps - step;
    const DataPlace place = sampler_place(&before, step);
    assert_int_equal(place.epoch, steps < old->steps ? 3 : 4);
    assert_int_equal(place.samples, steps < old->steps ? done : 0);

    const int64_t again = sampler_resume(next, step, place);
    const long epoch = sampler_epoch_of_step(next, step, &first);
    for (int64_t s = step; sampler_epoch_of_step(next, (long)s, &step_of_epoch) == epoch; s++)
        rest += sampler_global_count(next, step_of_epoch);
    const bool ended = place.samples >= next->length;
    if (epoch != place.epoch + ended || rest != next->length - (ended ? 0 : place.samples - again) || again < 0 ||
        (!ended && again >= sampler_global_count(next, first)))
        fail_msg("%lld samples of epoch %ld, then steps of %lld: goes on in epoch %ld at its step %lld, which has %lld "
                 "left, %lld of them again", (long long)place.samples, place.epoch, (long long)next->global_batch, epoch,
                 (long long)first, (long long)rest, (long long)again);
}

/* By numbers of samples, for many pairs of settings. */
static void another_batch_size_goes_on_in_the_epoch(void **state)
{
    static const int64_t batches[] = {4, 6, 8, 12, 26, 500}, own[] = {11, 6};
    for (int pieces = 0; pieces <= 1; pieces++) {
        for (size_t b = 0; b < 36; b++) {
            const int ranks = pieces ? 2 : 1 + (int)b % 3;
            Sampler old, next;
            sampler_create(&old, 25, ranks, batches[b / 6], 3, true, false);
            sampler_create(&next, 25, pieces ? 2 : 1, batches[b % 6], 3, true, false);
            sampler_set_rank_samples(&old, pieces ? own : NULL);
            sampler_set_rank_samples(&next, pieces ? own : NULL);
            for (int64_t steps = 0; steps <= old.steps; steps++)
                check_going_on(&old, steps, &next);
            sampler_free(&old);
            sampler_free(&next);
        }
    }
}

static void loader_goes_on_where_another_batch_size_stopped(void **state)
{
    const DataPlace middle = {.epoch = 4, .samples = 30}, start = {.epoch = 1};
    Sampler sampler;
    check_loader(1, 7, NULL, &middle);
    check_loader(3, 100, NULL, &middle);
    check_loader(2, 50, NULL, &start);
    sampler_create(&sampler, 47, 2, 20, 5, true, false);
    assert_int_equal(sampler_resume(&sampler, 14, sampler_place(&sampler, 14)), 0); /* the same batch size */
    assert_int_equal(sampler.batch_offset, 0);
    assert_int_equal(sampler_resume(&sampler, 7, middle), 10); /* in the middle of step 1 */
    assert_int_equal(sampler_place(&sampler, 7).epoch, 4);
    assert_int_equal(sampler_place(&sampler, 7).samples, 20);
    sampler_free(&sampler);
}

/* 3 steps of an epoch on rank 0, 1 on rank 1: an epoch has 3 on both. */
static void loader_hands_out_data_of_the_ranks_own(void **state)
{
    const int64_t rank_samples[] = {29, 7};
    check_loader(1, 0, rank_samples, NULL);
    check_loader(3, 5, rank_samples, NULL);
}

/* Whatever the number of ranks and micro-batches, their counts add up to that of the whole batch in one process. */
static void loader_counts_tokens_that_are_not_masked(void **state)
{
    enum { CONTEXT = 8, SAMPLES = 30, BATCH = 10 };
    unsigned char text[SAMPLES * CONTEXT + CONTEXT] = {0};
    Dataset dataset = {.kind = DATASET_TEXT, .split = SPLIT_TRAIN, .size = SAMPLES, .inputs = CONTEXT,
                       .targets = CONTEXT, .input_bytes = CONTEXT * sizeof(int32_t),
                       .target_bytes = CONTEXT * sizeof(int32_t), .bytes = text, .byte_count = sizeof text,
                       .seed = 3, .mask = 0.7f};
    int64_t expected[6] = {0};
    for (int ranks = 1; ranks <= 3; ranks++) {
        for (int K = 1; K <= 3; K += 2) {
            Sampler sampler;
            int64_t terms[6] = {0};
            sampler_create(&sampler, SAMPLES, ranks, BATCH, 5, true, false);
            for (int rank = 0; rank < ranks; rank++) {
                Loader *loader = loader_start(&dataset, &sampler, rank, K, 0);
                for (int i = 0; i < 6 * K; i++) { /* 6 steps: two epochs */
                    const Batch *batch = loader_next(loader);
                    terms[batch->step] += batch->terms;
                }
                loader_stop(loader);
            }
            for (int step = 0; step < 6; step++) {
                expected[step] = ranks * K == 1 ? terms[step] : expected[step];
                assert_in_range(terms[step], 1, BATCH * CONTEXT - 1);
                assert_int_equal(terms[step], expected[step]);
            }
            sampler_free(&sampler);
        }
    }
}

/* Two samples, four ranks, three micro-batches: most micro-batches are empty, which must not end the data. */
static void loader_hands_out_empty_micro_batches(void **state)
{
    Dataset dataset;
    Sampler sampler;
    dataset_open_random(&dataset, 2, 3, 2, 1);
    sampler_create(&sampler, dataset.size, 4, 1000, 0, true, false);
    Loader *loader = loader_start(&dataset, &sampler, 3, 3, 0);
    for (int i = 0; i < 9; i++) {
        const Batch *batch = loader_next(loader);
        assert_int_equal(batch->samples, batch->micro_batch == 2 ? 1 : 0);
        assert_int_equal(batch->global_samples, 4);
    }
    loader_stop(loader);
    loader_stop(loader_start(&dataset, &sampler, 0, 1, 0)); /* stopped before the first batch is taken */
    sampler_free(&sampler);
    dataset_close(&dataset);
}

int main(void)
{
    return run_cases("loader", cmocka_unit_test(loader_equals_direct_access),
                     cmocka_unit_test(loader_resumes_where_it_would_have_been),
                     cmocka_unit_test(another_batch_size_goes_on_in_the_epoch),
                     cmocka_unit_test(loader_goes_on_where_another_batch_size_stopped),
                     cmocka_unit_test(loader_hands_out_data_of_the_ranks_own),
                     cmocka_unit_test(loader_counts_tokens_that_are_not_masked),
                     cmocka_unit_test(loader_hands_out_empty_micro_batches));
}
