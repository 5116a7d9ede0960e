/* test_bucket_plan.c: what buckets of some size are predicted to cost, and which sizes are chosen. */
#include <math.h>

#include "ddp/bucket_plan.h"
#include "expect.h"

/* Four gradients of 100 KB become ready after 1, 2, 3 and 4 ms of a backward pass of 4 ms. A link that takes 0.5 ms and
 * 1 ms per 100 KB: worked out by hand. */
static void test_predicted_exposure(void **state)
{
    const size_t sizes[] = {100000, 100000, 100000, 100000};
    const double ready[] = {1e-3, 2e-3, 3e-3, 4e-3};
    const Link link = {.latency = 0.5e-3, .bytes_per_second = 1e8};
    const struct {
        size_t first, others;
        int buckets;
        double end, all; /* of communication, in ms */
    } cases[] = {
        {100000, 100000, 4, 7.0, 6.0}, /* one after the other from 1 ms on */
        {200000, 200000, 2, 7.0, 5.0}, /* 2 to 4.5; the second is ready at 4, and waits until 4.5 */
        {400000, 400000, 1, 8.5, 4.5},
        {300000, 100000, 2, 8.0, 5.0}, /* 3 to 6.5, 6.5 to 8 */
        {100000, 300000, 2, 7.5, 5.0}, /* 1 to 2.5, 4 to 7.5 */
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        BucketCaps caps = bucket_caps_predict(sizes, ready, 4, 4e-3, link, cases[c].first, cases[c].others);
        double exposed = cases[c].end - 4;
        if (caps.buckets != cases[c].buckets || fabs(1e3 * caps.exposed - exposed) > 1e-9 ||
            fabs(1e3 * caps.hidden - (cases[c].all - exposed)) > 1e-9)
            fail_msg("caps of %zu and %zu bytes: %d buckets, %g ms exposed, %g ms hidden; expected %d, %g and %g",
                     cases[c].first, cases[c].others, caps.buckets, 1e3 * caps.exposed, 1e3 * caps.hidden,
                     cases[c].buckets, exposed, cases[c].all - exposed);
    }
}

/* Many gradients of equal size and backward time: what must be chosen for extreme links, and that nothing is better. */
static void test_best_caps(void **state)
{
    enum { COUNT = 64 };
    const double PRICE = 100e-6; /* of a bucket */
    size_t sizes[COUNT];
    double ready[COUNT], at_end[COUNT];
    for (int i = 0; i < COUNT; i++) {
        sizes[i] = (size_t)1 << 16;
        ready[i] = (i + 1) * 1e-3;
        at_end[i] = COUNT * 1e-3;
    }
    const double backward = COUNT * 1e-3;
    const Link links[] = {{1e-6, 1e11}, {1e-6, 1e8}, {1e-3, 1e8}, {1e-4, 1e7}, {1e-1, 1e9}};
    for (size_t l = 0; l < sizeof links / sizeof *links; l++) {
        BucketCaps best = bucket_caps_best(sizes, ready, COUNT, backward, links[l]);
        for (size_t first = 1 << 12; first < 1 << 24; first *= 2)
            for (size_t cap = 1 << 12; cap < 1 << 24; cap *= 2) {
                BucketCaps other = bucket_caps_predict(sizes, ready, COUNT, backward, links[l], first, cap);
                if (other.exposed + PRICE * other.buckets < best.exposed + PRICE * best.buckets - 1e-9)
                    fail_msg("link %zu: chosen are caps of %zu and %zu bytes, which leave %g ms exposed; %zu and %zu "
                             "leave %g ms", l, best.first, best.others, 1e3 * best.exposed, first, cap,
                             1e3 * other.exposed);
            }
        if (bucket_caps_best(sizes, at_end, COUNT, backward, links[l]).buckets != 1)
            fail_msg("link %zu: nothing can be hidden, so one message is best, but there is more than one bucket", l);
    }
    if (bucket_caps_best(sizes, ready, COUNT, backward, links[0]).buckets != 1)
        fail_msg("a link that takes next to nothing: one bucket costs as little as many, but there is more than one");
    if (bucket_caps_best(sizes, ready, COUNT, backward, links[2]).buckets < 3)
        fail_msg("a link on which most can be hidden, but there are fewer than 3 buckets");
}

/* Only the first gradient can be sent behind backward: after it, one bucket holds all others. */
static void test_one_early_gradient(void **state)
{
    enum { COUNT = 64 };
    size_t sizes[COUNT];
    double ready[COUNT];
    for (int i = 0; i < COUNT; i++) {
        sizes[i] = (size_t)1 << 16;
        ready[i] = i == 0 ? 1e-3 : 64e-3;
    }
    const BucketCaps caps = bucket_caps_best(sizes, ready, COUNT, 64e-3, (Link){1e-4, 1e7});
    assert_int_equal(caps.buckets, 2);
    assert_true(caps.others >= (COUNT - 1) * sizes[0]);
}

/* The smallest cap that is tried is larger than the whole model. */
static void test_tiny_model(void **state)
{
    const size_t sizes[] = {100, 100, 100};
    const double ready[] = {1e-3, 2e-3, 3e-3};
    assert_int_equal(bucket_caps_best(sizes, ready, 3, 3e-3, (Link){1e-6, 1e6}).buckets, 1);
}

int main(void)
{
    return run_cases("bucket_plan", cmocka_unit_test(test_predicted_exposure), cmocka_unit_test(test_best_caps),
                     cmocka_unit_test(test_one_early_gradient), cmocka_unit_test(test_tiny_model));
}
