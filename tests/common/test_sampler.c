/* test_sampler.c: the sampler gives every sample to a rank. For what it rejects see test_sampler_misuse.c. */
#include <stdlib.h>
#include <string.h>

#include "data/sampler.h"
#include "expect.h"

static int compare_numbers(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* All ranks' and micro-batches' indices of a step, one after the other. */
static int64_t gather_step(const Sampler *sampler, int64_t step, int K, int64_t *all)
{
    int64_t count = 0;
    for (int rank = 0; rank < sampler->world_size; rank++) {
        for (int k = 0; k < K; k++) {
            count += sampler_indices(sampler, step, rank, k, K, all + count);
        }
    }
    return count;
}

/* What sampler_places() says of a sample is where sampler_whole_batch() has it. whole: that batch. */
static void check_places(const Sampler *sampler, int64_t step, int K, const int64_t *whole)
{
    int64_t indices[256], places[256];
    for (int rank = 0; rank < sampler->world_size; rank++) {
        for (int k = 0; k < K; k++) {
            const int64_t count = sampler_indices(sampler, step, rank, k, K, indices);
            assert_int_equal(sampler_places(sampler, step, rank, k, K, places), count);
            for (int64_t i = 0; i < count; i++)
                if (places[i] < 0 || places[i] >= sampler_global_count(sampler, step) ||
                    whole[places[i]] != indices[i] || (i > 0 && places[i] <= places[i - 1]))
                    fail_msg("step %ld, rank %d of %d, micro-batch %d of %d: its sample %ld has place %ld in the whole "
                             "batch, which is another sample's: is it counted in this rank's share only?", (long)step,
                             rank, sampler->world_size, k, K, (long)i, (long)places[i]);
        }
    }
}

/* Together, the ranks' micro-batches of a step are the whole batch, each place once. */
static void check_step_is_dealt_out(const Sampler *sampler, int64_t step, int K)
{
    int64_t dealt[256], whole[256];
    int64_t count = gather_step(sampler, step, K, dealt);
    int64_t whole_count = sampler_whole_batch(sampler, step, whole);
    if (count != whole_count || count != sampler_global_count(sampler, step)) {
        fail_msg("step %ld, %d ranks, %d micro-batches: %ld samples were dealt out, the batch has %ld, global_count "
                 "says %ld: does a share end at the right place?",
                 (long)step, sampler->world_size, K, (long)count, (long)whole_count,
                 (long)sampler_global_count(sampler, step));
    }
    check_places(sampler, step, K, whole);
    qsort(dealt, (size_t)count, sizeof *dealt, compare_numbers);
    qsort(whole, (size_t)count, sizeof *whole, compare_numbers);
    for (int64_t i = 0; i < count; i++) {
        if (dealt[i] != whole[i]) {
            fail_msg("step %ld, %d ranks, %d micro-batches: sorted sample %ld is %ld, expected %ld: two ranks or "
                     "micro-batches got the same place, and another place was lost",
                     (long)step, sampler->world_size, K, (long)i, (long)dealt[i], (long)whole[i]);
        }
    }
}

static void shares_make_up_the_whole_batch(void **state)
{
    static const int64_t sizes[] = {1, 2, 10, 97};
    static const int64_t batches[] = {1, 6, 7, 32, 200};
    for (size_t s = 0; s < 4; s++) {
        for (size_t b = 0; b < 5; b++) {
            for (int world_size = 1; world_size <= 5; world_size++) {
                Sampler sampler;
                sampler_create(&sampler, sizes[s], world_size, batches[b], 3, true, false);
                sampler_set_epoch(&sampler, 1);
                int64_t samples = 0;
                for (int64_t step = 0; step < sampler_steps_per_epoch(&sampler); step++) {
                    for (int K = 1; K <= 4; K++) {
                        check_step_is_dealt_out(&sampler, step, K);
                    }
                    samples += sampler_global_count(&sampler, step);
                }
                assert_int_equal(samples, sampler.length); /* the uneven last batch counts too */
                sampler_free(&sampler);
            }
        }
    }
}

/* Every sample occurs `least` to `most` times in the epoch's list. */
static void check_cover(const Sampler *sampler, int least, int most)
{
    int seen[128] = {0};
    for (int64_t place = 0; place < sampler->length; place++) {
        seen[sampler->list[place]]++;
    }
    for (int64_t i = 0; i < sampler->dataset_size; i++) {
        if (seen[i] < least || seen[i] > most) {
            fail_msg("sample %ld occurs %d times in an epoch, expected %d to %d: is the shuffle a permutation, and "
                     "does padding start again at place 0?",
                     (long)i, seen[i], least, most);
        }
    }
}

/* Ten samples on three ranks: 4 each, the list padded to 12, or 3 each without the tail; never 4, 3, 3. */
static void ten_samples_on_three_ranks(void **state)
{
    for (int drop_last = 0; drop_last <= 1; drop_last++) {
        Sampler sampler;
        int64_t share[16];
        int expected = drop_last ? 3 : 4;
        sampler_create(&sampler, 10, 3, 12, 7, true, drop_last);
        sampler_set_epoch(&sampler, 0);
        assert_int_equal(sampler_steps_per_epoch(&sampler), 1);
        assert_int_equal(sampler.length, 3 * expected);
        for (int rank = 0; rank < 3; rank++) {
            assert_int_equal(sampler_indices(&sampler, 0, rank, 0, 1, share), expected);
        }
        check_cover(&sampler, drop_last ? 0 : 1, drop_last ? 1 : 2);
        sampler_free(&sampler);
    }
}

/* The lists that torch.utils.data.DistributedSampler(range(n), world_size, rank, shuffle=False, drop_last) gives. */
static void places_are_those_of_distributed_sampler(void **state)
{
    static const struct {
        int64_t size;
        int world_size, rank;
        bool drop_last;
        int64_t count, expected[4];
    } cases[] = {
        {10, 3, 0, false, 4, {0, 3, 6, 9}}, {10, 3, 1, false, 4, {1, 4, 7, 0}}, {10, 3, 2, false, 4, {2, 5, 8, 1}},
        {10, 3, 2, true, 3, {2, 5, 8}},     {11, 4, 3, true, 2, {3, 7}},        {12, 4, 3, true, 3, {3, 7, 11}},
        {2, 5, 4, false, 1, {0}},           {2, 5, 3, false, 1, {1}},           {1, 4, 3, false, 1, {0}},
        {4, 4, 3, true, 1, {3}},
        {3, 8, 7, false, 1, {1}}, /* padded with more than its own length: round again and again */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Sampler sampler;
        int64_t got[8];
        sampler_create(&sampler, cases[i].size, cases[i].world_size, 100, 0, false, cases[i].drop_last);
        sampler_set_epoch(&sampler, 5);
        int64_t count = sampler_indices(&sampler, 0, cases[i].rank, 0, 1, got);
        if (count != cases[i].count || memcmp(got, cases[i].expected, (size_t)count * sizeof *got) != 0) {
            fail_msg("case %zu: rank %d of %d got %ld samples of %ld (expected %ld), the first is %ld (expected %ld): "
                     "rank r must take places r, r + N, r + 2N, ...",
                     i, cases[i].rank, cases[i].world_size, (long)count, (long)cases[i].size, (long)cases[i].count,
                     (long)got[0], (long)cases[i].expected[0]);
        }
        sampler_free(&sampler);
    }
}

/* A batch whose first place is no multiple of the world size: rank 0 does not come first in it. */
static void ranks_keep_their_places_in_odd_batches(void **state)
{
    Sampler sampler;
    int64_t got[4];
    sampler_create(&sampler, 9, 3, 4, 0, false, false); /* step 1: places 4 to 7, so ranks 1, 2, 0, 1 */
    sampler_set_epoch(&sampler, 0);
    assert_int_equal(sampler_indices(&sampler, 1, 0, 0, 1, got), 1);
    assert_int_equal(got[0], 6);
    assert_int_equal(sampler_indices(&sampler, 1, 1, 0, 1, got), 2);
    assert_int_equal(got[0], 4);
    assert_int_equal(got[1], 7);
    assert_int_equal(sampler_indices(&sampler, 2, 1, 0, 1, got), 0); /* place 8 alone is left: rank 2's */
    assert_int_equal(sampler_whole_batch(&sampler, 2, got), 1);
    sampler_free(&sampler);
}

static bool same_list(uint64_t seed_a, long epoch_a, uint64_t seed_b, long epoch_b)
{
    Sampler a, b;
    sampler_create(&a, 50, 2, 10, seed_a, true, false);
    sampler_create(&b, 50, 2, 10, seed_b, true, false);
    sampler_set_epoch(&a, epoch_a);
    sampler_set_epoch(&b, 99); /* an earlier epoch must not affect a later one */
    sampler_set_epoch(&b, epoch_b);
    bool same = memcmp(a.list, b.list, 50 * sizeof *a.list) == 0;
    sampler_free(&a);
    sampler_free(&b);
    return same;
}

static void list_depends_on_seed_and_epoch_alone(void **state)
{
    assert_true(same_list(1, 4, 1, 4));
    if (same_list(1, 4, 1, 5))
        fail_msg("epochs 4 and 5 deal out the same list: the shuffle must depend on the epoch, not on the seed alone");
    assert_false(same_list(1, 4, 2, 4));
    assert_false(same_list(1, 0, 0, 1)); /* seed + epoch is equal: the next seed must not repeat this run's epochs */
}

/* Four samples in each of their 24 orders, about equally often. */
static void all_orders_occur(void **state)
{
    int seen[256] = {0}, orders = 0;
    Sampler sampler;
    sampler_create(&sampler, 4, 1, 4, 1, true, false);
    for (long epoch = 0; epoch < 2400; epoch++) {
        sampler_set_epoch(&sampler, epoch);
        seen[sampler.list[0] << 6 | sampler.list[1] << 4 | sampler.list[2] << 2 | sampler.list[3]]++;
    }
    for (int order = 0; order < 256; order++) {
        orders += seen[order] > 0;
        assert_true(seen[order] == 0 || (seen[order] > 50 && seen[order] < 150)); /* five standard errors */
    }
    assert_int_equal(orders, 24);
    sampler_free(&sampler);
}

/* ---- ranks with data of their own ---- */

static Sampler own_sampler(int64_t size, int world_size, int64_t batch, bool shuffle, bool drop_last,
                           const int64_t *rank_samples)
{
    Sampler sampler;
    sampler_create(&sampler, size, world_size, batch, 3, shuffle, drop_last);
    sampler_set_rank_samples(&sampler, rank_samples);
    return sampler;
}

/* The table in sampler.c, without shuffling: what each rank gets in each step. */
static void ranks_run_out_one_after_the_other(void **state)
{
    static const struct {
        int64_t global, count[3], first[3];
    } steps[] = {{5, {2, 2, 1}, {0, 5, 8}}, {3, {2, 1, 0}, {2, 7, -1}}, {1, {1, 0, 0}, {4, -1, -1}}};
    Sampler sampler = own_sampler(10, 3, 6, false, false, (const int64_t[]){5, 3, 1});
    sampler_set_epoch(&sampler, 4);
    assert_int_equal(sampler_steps_per_epoch(&sampler), 3);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(sampler_rank_steps(&sampler, rank), 3 - rank);
    for (int step = 0; step < 3; step++) {
        for (int rank = 0; rank < 3; rank++) {
            int64_t got[2] = {-1, -1}, count = sampler_indices(&sampler, step, rank, 0, 1, got);
            if (count != steps[step].count[rank] || got[0] != steps[step].first[rank])
                fail_msg("step %d: rank %d got %ld samples, the first is %ld; expected %ld and %ld: a rank takes "
                         "global_batch / world_size of its own samples as long as there are any, then none",
                         step, rank, (long)count, (long)got[0], (long)steps[step].count[rank],
                         (long)steps[step].first[rank]);
        }
        assert_int_equal(sampler_global_count(&sampler, step), steps[step].global);
    }
    sampler_free(&sampler);
}

/* Counts the samples that each rank gets in an epoch, and checks that they are its own. */
static void count_own_samples(const Sampler *sampler, int *seen)
{
    for (int rank = 0; rank < sampler->world_size; rank++) {
        const Piece *piece = &sampler->pieces[rank];
        for (int64_t step = 0; step < sampler_steps_per_epoch(sampler); step++) {
            int64_t share[256], count = sampler_indices(sampler, step, rank, 0, 1, share);
            assert_true(count <= sampler_largest_share(sampler));
            assert_true((count > 0) == (step < sampler_rank_steps(sampler, rank)));
            for (int64_t i = 0; i < count; i++) {
                if (share[i] < piece->first || share[i] >= piece->first + piece->samples)
                    fail_msg("rank %d got sample %ld; its own are %ld to %ld: is each rank's data shuffled by itself?",
                             rank, (long)share[i], (long)piece->first, (long)(piece->first + piece->samples - 1));
                seen[share[i]]++;
            }
        }
    }
}

static void own_data_is_seen_once_an_epoch(void **state)
{
    static const int64_t rank_samples[][4] = {{40, 31, 9, 0}, {0, 0, 0, 1}, {5, 5, 5, 5}, {13, 90, 90, 2}};
    static const int64_t batches[] = {4, 12, 200};
    for (size_t c = 0; c < 4; c++) {
        for (size_t b = 0; b < 3; b++) {
            int seen[200] = {0};
            int64_t all = 0, samples = 0;
            Sampler sampler = own_sampler(200, 4, batches[b], true, false, rank_samples[c]);
            sampler_set_epoch(&sampler, 2);
            count_own_samples(&sampler, seen);
            int64_t richest = 0;
            for (int rank = 0; rank < 4; rank++) {
                all += rank_samples[c][rank];
                richest = rank_samples[c][rank] > richest ? rank_samples[c][rank] : richest;
            }
            /* The loader allocates memory for the largest share: it must not exceed the samples that there are. */
            assert_int_equal(sampler_largest_share(&sampler), richest < batches[b] / 4 ? richest : batches[b] / 4);
            for (int64_t i = 0; i < 200; i++)
                if (seen[i] != (i < all))
                    fail_msg("case %zu, batch %ld: sample %ld was seen %d times in an epoch, expected %d", c,
                             (long)batches[b], (long)i, seen[i], i < all);
            for (int64_t step = 0; step < sampler_steps_per_epoch(&sampler); step++) {
                for (int K = 1; K <= 3; K++)
                    check_step_is_dealt_out(&sampler, step, K);
                samples += sampler_global_count(&sampler, step);
            }
            assert_int_equal(samples, all);
            sampler_free(&sampler);
        }
    }
}

/* With drop_last, all ranks stop with the rank that has the fewest samples. A rank with more drops some, other ones in
 * each epoch. */
static void drop_last_stops_all_ranks_together(void **state)
{
    int seen[27] = {0};
    Sampler sampler = own_sampler(28, 3, 6, true, true, (const int64_t[]){11, 5, 11}); /* sample 27 belongs to no rank */
    assert_int_equal(sampler.length, 15);
    assert_int_equal(sampler_steps_per_epoch(&sampler), 3);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(sampler_rank_steps(&sampler, rank), 3);
    for (long epoch = 0; epoch < 40; epoch++) {
        sampler_set_epoch(&sampler, epoch);
        assert_int_equal(sampler_global_count(&sampler, 2), 3);
        count_own_samples(&sampler, seen);
    }
    for (int i = 0; i < 27; i++)
        if (seen[i] == 0 || (i >= 11 && i < 16 && seen[i] != 40))
            fail_msg("sample %d was seen %d times in 40 epochs: all of a rank's own samples are shuffled, then the tail "
                     "is left out", i, seen[i]);
    sampler_free(&sampler);
}

/* A checkpoint may be resumed by a later version of the program, which must then draw the same lists. */
static void lists_never_change(void **state)
{
    static const int64_t whole[] = {2, 6, 1, 7, 4, 0, 5, 3}, of_ranks[] = {3, 4, 0, 1, 2, 6, 7, 5};
    Sampler one = own_sampler(8, 2, 4, true, false, NULL);
    Sampler own = own_sampler(8, 2, 4, true, false, (const int64_t[]){5, 3});
    sampler_set_epoch(&one, 3);
    sampler_set_epoch(&own, 3);
    assert_memory_equal(one.list, whole, sizeof whole);
    assert_memory_equal(own.list, of_ranks, sizeof of_ranks);
    sampler_free(&one);
    sampler_free(&own);
}

static void a_copy_draws_the_same(void **state)
{
    int64_t of_own[8], of_copy[8];
    Sampler own = own_sampler(11, 2, 4, true, false, (const int64_t[]){8, 2}), copy;
    sampler_create_like(&copy, &own);
    assert_int_equal(copy.length, own.length);
    assert_int_equal(sampler_steps_per_epoch(&copy), sampler_steps_per_epoch(&own));
    sampler_set_epoch(&own, 1);
    sampler_set_epoch(&copy, 1);
    int64_t count = sampler_indices(&own, 0, 1, 0, 1, of_own);
    assert_int_equal(sampler_indices(&copy, 0, 1, 0, 1, of_copy), count);
    assert_memory_equal(of_copy, of_own, (size_t)count * sizeof *of_own);
    sampler_free(&own);
    sampler_free(&copy);
}

int main(void)
{
    return run_cases("sampler", cmocka_unit_test(shares_make_up_the_whole_batch),
                     cmocka_unit_test(ten_samples_on_three_ranks),
                     cmocka_unit_test(places_are_those_of_distributed_sampler),
                     cmocka_unit_test(ranks_keep_their_places_in_odd_batches),
                     cmocka_unit_test(list_depends_on_seed_and_epoch_alone), cmocka_unit_test(all_orders_occur),
                     cmocka_unit_test(ranks_run_out_one_after_the_other),
                     cmocka_unit_test(own_data_is_seen_once_an_epoch),
                     cmocka_unit_test(drop_last_stops_all_ranks_together), cmocka_unit_test(lists_never_change),
                     cmocka_unit_test(a_copy_draws_the_same));
}
