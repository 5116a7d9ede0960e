/* test_batch_norm.c: batch norm over the rows of several ranks, which have unequal numbers of them or none, is batch norm
 * over all these rows in one process: results, gradients and running statistics. On 1 to 4 ranks. */
#include <stdlib.h>

#include "base/check.h"
#include "comm/observer.h"
#include "ddp/sync_batch_norm.h"
#include "autograd/ops.h"
#include "expect.h"
#include "mpi_main.h"

enum { C = 5, MOST_ROWS = 40 };
static ProcessGroup *pg;
static int collectives;

static void count(void *self, const Collective *collective)
{
    collectives++;
}

/* A layer and what one pass makes of it; the loss is op_mse() against targets. */
typedef struct Pass {
    ParameterList parameters;
    BatchNorm norm;
    void *gradients;
    Tape tape;
    Tensor *x, *out;
} Pass;

static void pass_create(Pass *pass)
{
    *pass = (Pass){0};
    Rng rng;
    rng_seed(&rng, 3);
    pass->norm = batch_norm_create(&pass->parameters, "bn", C);
    init_normal(pass->norm.weight, &rng, 1);
    init_normal(pass->norm.bias, &rng, 1);
    pass->gradients = parameters_allocate_gradients(&pass->parameters);
}

static void pass_free(Pass *pass)
{
    parameters_free_gradients(&pass->parameters, pass->gradients);
    tape_free(&pass->tape);
    parameters_free(&pass->parameters);
}

static void pass_run(Pass *pass, float *x, const float *targets, int64_t rows, const RankGather *ranks)
{
    tape_begin(&pass->tape, true);
    pass->x = tape_input(&pass->tape, x, DTYPE_F32, 2, (int64_t[]){rows, C});
    pass->x->requires_grad = true;
    pass->out = op_batch_norm(&pass->tape, pass->x, &pass->norm.weight->tensor, &pass->norm.bias->tensor,
                              &pass->norm.running, ranks);
    tape_backward(&pass->tape, op_mse(&pass->tape, pass->out, targets), 1);
}

/* Rank r has rows[r] of the numbers below. They lie far from 0, and further from rank to rank: so the ranks' means lie
 * apart, and the mean of their variances is not the variance of all. */
static void check_rows(const int64_t rows[4])
{
    const int rank = pg_rank(pg), world_size = pg_world_size(pg);
    float x[MOST_ROWS * C], targets[MOST_ROWS * C];
    int64_t first = 0, total = 0;
    Rng rng;
    rng_seed(&rng, 1);
    for (int r = 0; r < world_size; r++) {
        first = r == rank ? total : first;
        for (int64_t i = total * C; i < (total + rows[r]) * C; i++)
            x[i] = 100 + (float)(3 * r) + rng_normal(&rng), targets[i] = rng_normal(&rng);
        total += rows[r];
    }
    Pass whole, part;
    pass_create(&whole);
    pass_create(&part);
    const RankGather ranks = sync_batch_norm_ranks(pg);
    for (int step = 0; step < 2; step++) {
        pass_run(&whole, x, targets, total, NULL);
        collectives = 0;
        pass_run(&part, x + first * C, targets + first * C, rows[rank], &ranks);
        const int made = collectives;
        if (rows[rank] == 0)
            continue;
        expect_close("result", part.out->data, (float *)whole.out->data + first * C, rows[rank] * C, 1e-5, 1e-5,
                     "mean and variance are those of all ranks' rows");
        expect_close("dx", part.x->grad, (float *)whole.x->grad + first * C, rows[rank] * C, 1e-5, 1e-6,
                     "backward needs the sums over all ranks' rows, divided by the number of all rows");
        if (made != 2)
            fail_msg("%d collectives in a pass; right are one in forward and one in backward", made);
    }
    for (int i = 0; i < 2; i++) {
        float *gradient = part.parameters.items[i]->tensor.grad;
        pg_all_reduce(pg, gradient, gradient, C, DTYPE_F32, REDUCE_SUM, "gradient");
        expect_close("gradient of weight or bias", gradient, whole.parameters.items[i]->tensor.grad, C, 1e-5, 1e-4,
                     "it is the sum over a rank's own rows: DDP adds them up");
        expect_close("running statistics", part.parameters.items[2 + i]->tensor.data,
                     whole.parameters.items[2 + i]->tensor.data, C, 1e-5, 1e-5, "they move towards those of all rows");
    }
    pass_free(&whole);
    pass_free(&part);
}

static void test_ranks_are_one_process(void **state)
{
    check_rows((int64_t[]){7, 7, 7, 7});
    check_rows((int64_t[]){9, 1, 4, 2}); /* a single row has no variance of its own */
    check_rows((int64_t[]){2, 0, 3, 0});
}

/* After a broadcast, all have the buffers of the first rank that had rows; what is trained stays. */
static void test_buffers_are_of_one_rank(void **state)
{
    const int rank = pg_rank(pg), last = pg_world_size(pg) - 1;
    for (int first = 0; first <= last + 1; first++) { /* last + 1: none has rows */
        Pass pass;
        pass_create(&pass);
        for (int i = 0; i < 4; i++)
            init_constant(pass.parameters.items[i], (float)(10 * i + rank));
        buffers_broadcast(pg, &pass.parameters, rank >= first);
        for (int i = 0; i < 4; i++)
            for (int c = 0; c < C; c++)
                assert_true(((float *)pass.parameters.items[i]->tensor.data)[c] ==
                            (float)(10 * i + (i < 2 || first > last ? rank : first)));
        pass_free(&pass);
    }
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_are_one_process),
        cmocka_unit_test(test_buffers_are_of_one_rank),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()});
    pg_observe(pg, &(GroupObserver){.called = count});
    int failures = cmocka_run_group_tests_name("batch norm", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
