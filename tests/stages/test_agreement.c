/* test_agreement.c: what the ranks agree on: which parameters were used, and in which order. On 2 ranks, of which the
 * second one marks something else than the first one. */
#include "stage3_overlap/readiness.h"
#include "expect.h"
#include "mpi_main.h"

static ProcessGroup *pg;

static ParameterList four_parameters(void)
{
    ParameterList list = {0};
    for (int i = 0; i < 4; i++)
        parameters_add(&list, "weight", 1, (int64_t[]){4});
    return list;
}

/* What one rank has used has a gradient on all, what none has used on none. With a static graph, the first answer
 * holds, and no second collective asks for it. */
static void used_parameters(bool static_graph)
{
    const bool used[2][4] = {{true, false, false, true}, {false, false, true, false}};
    const int rank = pg_rank(pg);
    for (int swapped = 0; swapped < 2; swapped++) {
        ParameterList list = four_parameters();
        Readiness readiness;
        readiness_create(&readiness, &list, static_graph);
        for (int step = 0; step < 3; step++) {
            const long before = pg_counters(pg).collectives;
            for (int i = 0; i < 4; i++)
                list.items[i]->has_gradient = used[rank ^ swapped][i];
            readiness_agree_on_use(&readiness, pg, &list);
            for (int i = 0; i < 4; i++)
                assert_int_equal(list.items[i]->has_gradient, i != 1);
            assert_int_equal(pg_counters(pg).collectives - before, !static_graph || step == 0);
        }
        readiness_free(&readiness);
        parameters_free(&list);
    }
}

static void test_used_parameters(void **state)
{
    used_parameters(false);
    used_parameters(true);
}

static void test_order_of_rank_0(void **state)
{
    ParameterList list = four_parameters();
    Readiness readiness;
    readiness_create(&readiness, &list, false);
    readiness_begin(&readiness, &list);
    for (int i = 0; i < 4; i++)
        readiness_mark(&readiness, list.items[pg_rank(pg) == 0 ? (i + 2) % 4 : i]);
    readiness_agree_on_order(&readiness, pg);
    for (int i = 0; i < 4; i++)
        assert_int_equal(readiness.order[i], (i + 2) % 4);
    readiness_free(&readiness);
    parameters_free(&list);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        cmocka_unit_test(test_used_parameters),
        cmocka_unit_test(test_order_of_rank_0),
    };
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    pg = tests_start_group(&argc, &argv, &(ProcessGroupOptions){.timeout = tests_timeout()});
    int failures = cmocka_run_group_tests_name("agreement", tests, NULL, NULL);
    job_close(pg);
    return failures != 0;
}
