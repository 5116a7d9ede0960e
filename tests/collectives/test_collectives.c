/* test_collectives.c: what assignment 0 is graded by: one case for each property. All ranks are in this process:
 * mailboxes.h. */
#include "choose_case.h"
#include "judge.h"
#include "trial.h"

enum { MANY_RANKS = 17, MORE_RANKS = 67, A_MILLION_ON = 5 /* ranks */ };
static const size_t ALL_STORED = SIZE_MAX, NONE_STORED = 0, A_MILLION = 1000003, LONGEST = 2200003;

/* ---- values ---- */

/* Counts around what the cuts depend on: the number of ranks, and 32 elements. First, one that shows most mistakes
 * well: each chunk has elements. In the last two, chunks that are sent in pieces of a power of two, up to 8192
 * elements, have different numbers of pieces. */
static int counts_for(int ranks, size_t *counts)
{
    const size_t N = (size_t)ranks;
    const size_t all[] = {64 * N + 7, 0, 1, N - 1, N, N + 1, 31, 32, 33, 32 * N - 1, 32 * N, 32 * N + 1, 1000, 4999,
                          8192 * N + 32, 8192 * N - 32};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        counts[i] = all[i];
    return sizeof all / sizeof *all;
}

static void try_values(Kind kind, int ranks, int root, size_t count)
{
    Outcome outcome;
    Trial trial = {.kind = kind, .ranks = ranks, .root = root, .count = count,
                   .rules = {.stored_bytes = ALL_STORED, .seed = count}};
    trial_run(&trial, &outcome);
    expect_values(&trial, &outcome);
    expect_sent(&trial, &outcome);
}

static void try_counts(Kind kind, int ranks, bool and_a_million)
{
    size_t counts[20];
    const int count = counts_for(ranks, counts);
    for (int i = 0; i < count; i++)
        try_values(kind, ranks, i % ranks, counts[i]);
    for (int root = 0; root < ranks && kind == BROADCAST; root++)
        try_values(kind, ranks, root, 100);
    if (and_a_million)
        try_values(kind, ranks, ranks - 1, A_MILLION);
    if (ranks == 2) /* no stack holds a chunk of this */
        try_values(kind, ranks, 1, LONGEST);
}

/* Each row is a case. The ranks end with 0; a_million_on: of these, the number on which a million elements are
 * tried. */
typedef struct ValueCase {
    const char *name;
    Kind kind;
    int ranks[MOST_DIGITS + 1], a_million_on;
} ValueCase;

static const ValueCase value_cases[] = {
    {"test_broadcast", BROADCAST, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 5},
    {"test_reduce_scatter", REDUCE_SCATTER, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 5},
    {"test_all_gather", ALL_GATHER, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 5},
    {"test_ring", RING, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 5},
    {"test_halving_doubling", HALVING, {1, 2, 4, 8}, 4},
    {"test_halving_doubling_on_any_number_of_ranks", HALVING, {3, 5, 6, 7, 9}, 5},
};
enum { VALUE_CASES = sizeof value_cases / sizeof *value_cases };

static void test_values(void **state)
{
    const ValueCase *row = *state;
    for (const int *ranks = row->ranks; *ranks > 0; ranks++)
        try_counts(row->kind, *ranks, *ranks == row->a_million_on);
}

/* ---- costs ---- */

static int log2_below(int ranks) /* rounded down */
{
    int log = 0;
    while (2 << log <= ranks)
        log++;
    return log;
}

/* What the formulas allow: messages and elements of the rank that sends most, elements of all ranks together, and the
 * longest chain of messages, also in elements (path). (In a chain, what a rank sends before it receives counts, too. So
 * the chain is twice as long if ranks send and receive in turn, which is allowed.) */
typedef struct Cost {
    int messages, hops;
    size_t elements, of_all, path;
    const char *cause;
} Cost;

static void measure_chunks(size_t count, int ranks, size_t *shortest, size_t *longest)
{
    *shortest = count;
    *longest = 0;
    for (int chunk = 0; chunk < ranks; chunk++) {
        const size_t length = chunk_count(count, ranks, chunk);
        *shortest = length < *shortest ? length : *shortest;
        *longest = length > *longest ? length : *longest;
    }
}

static Cost cost_of(const Trial *trial)
{
    const int N = trial->ranks, log = log2_below(N), P = 1 << log, rest = N > P;
    const size_t n = trial->count, slack = 32 * (size_t)(2 * log + 2); /* chunks begin at multiples of 32 elements */
    size_t shortest, longest;
    measure_chunks(n, N, &shortest, &longest);
    switch (trial->kind) {
    case BROADCAST:
        return (Cost){log + rest, log + rest, (size_t)(log + rest) * n, (size_t)(N - 1) * n, (size_t)(log + rest) * n,
                      "the root sends to all others; let those that have the buffer send it, too"};
    case REDUCE_SCATTER:
    case ALL_GATHER:
        return (Cost){N - 1, 2 * (N - 1), n - shortest, (size_t)(N - 1) * n, 2 * (size_t)(N - 1) * longest,
                      "more than a chunk is sent in each step"};
    case RING:
        return (Cost){2 * (N - 1), 4 * (N - 1), 2 * (n - shortest), 2 * (size_t)(N - 1) * n,
                      4 * (size_t)(N - 1) * longest, "more than a chunk is sent in each step"};
    case HALVING: break;
    }
    const size_t of_one = 2 * (n - n / (size_t)P) + (size_t)rest * n + slack;
    return (Cost){2 * log + rest, 4 * log + 2 * rest, of_one, 2 * (size_t)(N - 1) * n, 2 * of_one,
                  "the whole buffer is sent, where a part of it is enough"};
}

static void expect_cost(const Trial *trial, const Outcome *outcome, bool messages)
{
    const Cost cost = cost_of(trial);
    size_t of_all = 0;
    for (int rank = 0; rank < trial->ranks; rank++) {
        const Traffic *traffic = &outcome->traffic[rank];
        of_all += (size_t)traffic->elements;
        if (messages && traffic->messages > cost.messages)
            mailboxes_fail(cost.cause, "rank %d sends %ld messages, and %d are enough", rank, traffic->messages,
                           cost.messages);
        if ((size_t)traffic->elements > cost.elements)
            mailboxes_fail(cost.cause, "rank %d sends %ld elements, and %zu are enough", rank, traffic->elements,
                           cost.elements);
        if (messages && traffic->hops > cost.hops)
            mailboxes_fail("ranks wait for each other in a chain", "rank %d gets its last part after %d messages, one "
                           "after the other, and %d are enough", rank, traffic->hops, cost.hops);
        if ((size_t)traffic->path > cost.path)
            mailboxes_fail("ranks wait for each other in a chain", "rank %d gets its last part after messages of %d "
                           "elements, one after the other, and %zu are enough", rank, traffic->path, cost.path);
        if (trial->kind >= REDUCE_SCATTER && trial->kind <= RING &&
            (traffic->to == SEVERAL_RANKS || traffic->from == SEVERAL_RANKS))
            mailboxes_fail(NULL, "rank %d sends to several ranks, or receives from several; in a ring each sends to one",
                           rank);
    }
    if (of_all > cost.of_all)
        mailboxes_fail(cost.cause, "all ranks together send %zu elements, and %zu are enough", of_all, cost.of_all);
}

/* Where nothing is stored, a rank waits until the other one receives. If the ranks of a ring send and receive in turn,
 * and N is odd, two neighbours begin with the same, and a step takes three messages, not two. */
static void expect_no_chain(Trial trial, bool messages)
{
    Outcome outcome;
    trial.rules.stored_bytes = NONE_STORED;
    trial_run(&trial, &outcome);
    const char *const cause = "each rank waits for its send before it receives, so that ranks send one after the other";
    const int most = cost_of(&trial).hops * 3 / 2;
    const size_t longest = cost_of(&trial).path * 3 / 2;
    for (int rank = 0; rank < trial.ranks; rank++) {
        if (messages && outcome.traffic[rank].hops > most)
            mailboxes_fail(cause, "rank %d is done after %d messages, one after the other, and %d are enough, though "
                           "none is stored", rank, outcome.traffic[rank].hops, most);
        if ((size_t)outcome.traffic[rank].path > longest)
            mailboxes_fail(cause, "rank %d is done after messages of %d elements, one after the other, and %zu are "
                           "enough, though none is stored", rank, outcome.traffic[rank].path, longest);
    }
}

/* 1 to 17, 67, and then, if there are more than that, MOST_RANKS; 0 after that. */
static int more_ranks(int ranks, int most)
{
    return ranks < MANY_RANKS ? ranks + 1 : ranks < MORE_RANKS ? MORE_RANKS : ranks < most ? most : 0;
}

/* Short buffers for the messages, and long ones, which may be cut into pieces, for the elements. */
static void try_cost(Kind kind)
{
    for (int ranks = 1; ranks > 0; ranks = more_ranks(ranks, MORE_RANKS)) {
        const size_t counts[] = {1, 33, 4999, 200, 1000, 8000, 100003, A_MILLION};
        for (int i = 0; i < (ranks > MOST_DIGITS ? 6 : ranks == A_MILLION_ON ? 15 : 14); i++) {
            Outcome outcome;
            Trial trial = {.kind = kind, .ranks = ranks, .root = ranks / 2, .count = counts[i / 2],
                           .values = ranks > MOST_DIGITS ? FRACTIONS : DIGITS, .place = i % 2 == 1 ? IN_PLACE : APART,
                           .rules = {.stored_bytes = ALL_STORED, .seed = 3}};
            trial_run(&trial, &outcome);
            expect_cost(&trial, &outcome, trial.count <= 8000);
            expect_sent(&trial, &outcome);
            expect_no_chain(trial, trial.count <= 8000);
        }
    }
}

static void test_cost_of_broadcast(void **state)
{
    try_cost(BROADCAST);
}

static void test_cost_of_rings(void **state)
{
    for (int kind = REDUCE_SCATTER; kind <= RING; kind++)
        try_cost((Kind)kind);
}

static void test_cost_of_halving_doubling(void **state)
{
    try_cost(HALVING);
}

/* ---- bits and NaN ---- */

/* In place, too; and on more ranks than the values of other cases allow. */
static void test_same_bits_on_all_ranks(void **state)
{
    for (int kind = RING; kind <= HALVING; kind++) {
        for (int ranks = 1; ranks > 0; ranks = more_ranks(ranks, MOST_RANKS)) {
            for (int place = APART; place <= IN_PLACE; place++) {
                Outcome outcome;
                Trial trial = {.kind = (Kind)kind, .ranks = ranks, .count = 1999, .values = FRACTIONS,
                               .place = (Place)place, .rules = {.stored_bytes = ALL_STORED, .seed = 5}};
                trial_run(&trial, &outcome);
                expect_same_bits(&trial, &outcome);
                expect_sent(&trial, &outcome);
            }
        }
    }
}

static void try_numbers(Trial trial)
{
    Outcome outcome;
    trial_run(&trial, &outcome);
    expect_numbers(&trial, &outcome);
    expect_sent(&trial, &outcome);
}

/* All types and operations that combine() knows. On few ranks, each has the NaN of float32 once; else three of them. */
static void test_nan_survives(void **state)
{
    static const DType dtypes[] = {DTYPE_F32, DTYPE_F64, DTYPE_I32, DTYPE_I64, DTYPE_BF16};
    for (int kind = BROADCAST; kind <= HALVING; kind++) {
        const bool copies = kind == BROADCAST || kind == ALL_GATHER; /* combine() knows no bf16 */
        for (int ranks = 2; ranks > 0; ranks = more_ranks(ranks, MORE_RANKS)) {
            for (int i = 0; i < (copies ? 9 : 8); i++) {
                const DType dtype = dtypes[i / 2];
                const bool each = ranks == 2 || (dtype == DTYPE_F32 && ranks <= MOST_DIGITS);
                const int next = each ? 1 : (ranks - 1) / 2;
                for (int with_nan = 0; with_nan < (ranks < MORE_RANKS ? ranks : 1); with_nan += next)
                    try_numbers((Trial){.kind = (Kind)kind, .ranks = ranks, .root = with_nan, .count = 321,
                                        .values = NUMBERS, .dtype = dtype, .op = i % 2 == 0 ? REDUCE_SUM : REDUCE_MAX,
                                        .rules = {.stored_bytes = ALL_STORED, .seed = 7}});
            }
        }
    }
}

/* ---- arrays and messages ---- */

/* All collectives, on all numbers of ranks. */
static void try_all(Place place, Rules rules, void (*expect)(const Trial *, const Outcome *))
{
    for (int kind = BROADCAST; kind <= HALVING; kind++) {
        for (int ranks = 1; ranks <= MOST_DIGITS; ranks++) {
            const size_t counts[] = {1, (size_t)ranks + 1, 32 * (size_t)ranks + 5, 3001, 20011, 10007};
            for (int i = 0; i < 6; i++) {
                Outcome outcome;
                Trial trial = {.kind = (Kind)kind, .ranks = ranks, .root = i % ranks, .count = counts[i],
                               .place = place, .rules = rules};
                trial.rules.seed = (uint64_t)(100 * ranks + i);
                trial_run(&trial, &outcome);
                if (expect != NULL)
                    expect(&trial, &outcome);
                expect_sent(&trial, &outcome);
            }
        }
    }
}

/* All collectives once. */
static void run_once(int ranks, size_t count, Values values, Rules rules)
{
    for (int kind = BROADCAST; kind <= HALVING; kind++) {
        Outcome outcome;
        trial_run(&(Trial){.kind = (Kind)kind, .ranks = ranks, .count = count, .values = values, .rules = rules}, &outcome);
    }
}

static void test_in_place(void **state)
{
    try_all(IN_PLACE, (Rules){.stored_bytes = ALL_STORED}, expect_values);
    try_all(SOME_IN_PLACE, (Rules){.stored_bytes = ALL_STORED}, expect_values);
}

static void test_send_is_left_alone(void **state)
{
    const Rules rules = {.stored_bytes = ALL_STORED, .keep_send = true};
    try_all(APART, rules, NULL);
    run_once(2, A_MILLION, DIGITS, rules);
}

static void test_no_deadlock_when_nothing_is_stored(void **state)
{
    try_all(APART, (Rules){.stored_bytes = NONE_STORED}, NULL);
    try_all(IN_PLACE, (Rules){.stored_bytes = NONE_STORED}, NULL);
}

static void test_every_message_is_waited_for(void **state)
{
    try_all(IN_PLACE, (Rules){.stored_bytes = ALL_STORED, .strict = true}, NULL);
    try_all(APART, (Rules){.stored_bytes = ALL_STORED, .strict = true}, NULL);
}

/* Everything once, for the address sanitizer. */
static void test_memory(void **state)
{
    try_all(APART, (Rules){.stored_bytes = ALL_STORED}, NULL);
    try_all(IN_PLACE, (Rules){.stored_bytes = ALL_STORED}, NULL);
    run_once(MOST_RANKS, 1000, FRACTIONS, (Rules){.stored_bytes = ALL_STORED});
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[] = {
        [VALUE_CASES] = cmocka_unit_test(test_same_bits_on_all_ranks), /* before the costs, which then rise, too */
        cmocka_unit_test(test_nan_survives),
        cmocka_unit_test(test_cost_of_broadcast),
        cmocka_unit_test(test_cost_of_rings),
        cmocka_unit_test(test_cost_of_halving_doubling),
        cmocka_unit_test(test_in_place),
        cmocka_unit_test(test_send_is_left_alone),
        cmocka_unit_test(test_no_deadlock_when_nothing_is_stored),
        cmocka_unit_test(test_every_message_is_waited_for),
        cmocka_unit_test(test_memory),
    };
    for (int i = 0; i < VALUE_CASES; i++)
        tests[i] = (struct CMUnitTest){value_cases[i].name, test_values, NULL, NULL, (void *)&value_cases[i]};
    tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
    int failures = cmocka_run_group_tests_name("collectives", tests, NULL, NULL);
    if (in_judge())
        judge_end(false);
    return failures != 0;
}
