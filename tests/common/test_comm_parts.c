/* test_comm_parts.c: the parts of comm/ that one process can test: windows, announcements, counts.
 * The group here is made by hand: this process is rank 0, and what rank 1 has announced is written into its mailbox, so
 * no MPI is needed. (With real ranks: test_allreduce.c, test_reduce_scatter.c, test_shared_room.c.) */
#include "comm/allreduce.h"
#include "comm/shared_memory.h"
#include "expect.h"

enum { BYTES = 4096 };

static Mailbox boxes[2];
static unsigned char memory[2][BYTES]; /* window 1's parts */
static unsigned char *box_parts[] = {(unsigned char *)&boxes[0], (unsigned char *)&boxes[1]};
static unsigned char *window_parts[] = {memory[0], memory[1]};
static SharedWindow of_mailboxes = {.number = 0, .bytes = sizeof(Mailbox), .parts = box_parts};
static SharedWindow window = {.number = 1, .bytes = BYTES, .parts = window_parts, .next = &of_mailboxes};
static Mailbox *mailboxes[] = {&boxes[0], &boxes[1]};
static SharedMemory shared = {.windows = &window, .mailboxes = mailboxes};
static ProcessGroup group = {.rank = 0, .world_size = 2, .lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- announcements ---- */

typedef struct Calls {
    Collective mine;
    Announcement announced, theirs; /* by this rank, by the other one */
} Calls;

/* Both ranks sum 1000 float32, which begin 64 bytes behind the beginning of window 1. */
static Calls same_calls(void)
{
    const Announcement both = {.operation = OP_ALL_REDUCE, .count = 1000, .dtype = DTYPE_F32, .window = 1,
                               .offset = 64};
    const Collective mine = {.operation = OP_ALL_REDUCE, .count = 1000, .dtype = DTYPE_F32, .sequence = 7,
                             .carries = "bucket 2"};
    return (Calls){mine, both, both};
}

static void meet(void *argument)
{
    Calls *calls = argument;
    int other = 1 - group.rank;
    boxes[other].announced[shared.calls % 2] = calls->theirs;
    boxes[other].arrived = shared.barriers + 1;
    calls->announced.operation = 99; /* that of the collective counts */
    shared_announce_at_barrier(&group, &calls->mine, calls->announced);
}

static void test_same_calls_meet(void **state)
{
    group.shared = &shared;
    for (size_t round = 0; round < 4; round++) { /* each call uses the other half of the mailbox */
        Calls calls = same_calls();
        calls.mine.count = calls.announced.count = calls.theirs.count = round;
        meet(&calls);
        assert_int_equal(boxes[0].announced[round % 2].count, round);
        assert_int_equal(boxes[0].arrived, shared.barriers);
        assert_ptr_equal(shared_announced_send(&shared, 1), memory[1] + 64);
        boxes[1].announced[round % 2].window = 0;
        assert_null(shared_announced_send(&shared, 1));
    }
    assert_int_equal(shared.barriers, 4);
    Calls calls = same_calls(); /* a reduce-scatter only reads, so its buffers may lie anywhere */
    calls.mine.operation = OP_REDUCE_SCATTER;
    calls.theirs = (Announcement){.operation = OP_REDUCE_SCATTER, .count = 1000, .dtype = DTYPE_F32};
    meet(&calls);
    calls.mine.operation = calls.theirs.operation = OP_ALL_GATHER;
    meet(&calls);
    calls.mine.operation = calls.theirs.operation = OP_BARRIER;
    calls.announced = calls.theirs = (Announcement){.operation = OP_BARRIER, .frees = true, .window = 1};
    calls.mine.count = 0;
    meet(&calls);
}

static void test_other_calls_are_faults(void **state)
{
    group.shared = &shared;
    Calls calls = same_calls();
    calls.theirs.count = 999;
    expect_dies(meet, &calls, 1, "this rank calls all_reduce number 7 (bucket 2, 1000 x float32), but rank 1 calls "
                                 "all_reduce of 999 x float32");
    calls = same_calls();
    calls.theirs.dtype = DTYPE_F64;
    expect_dies(meet, &calls, 1, "but rank 1 calls all_reduce of 1000 x float64");
    calls = same_calls();
    calls.theirs.operation = OP_REDUCE_SCATTER;
    expect_dies(meet, &calls, 1, "but rank 1 calls reduce_scatter of 1000 x float32");
    calls = same_calls();
    calls.theirs.window = 2;
    expect_dies(meet, &calls, 1, "number 7 (bucket 2, 1000 x float32): the buffers of this rank and of rank 1 lie in different places");
    calls = same_calls();
    calls.theirs.offset = 128;
    expect_dies(meet, &calls, 1, "all ranks must allocate the same buffers in the same order");
    calls = same_calls();
    calls.theirs.frees = true;
    expect_dies(meet, &calls, 1, "all_reduce number 7 (bucket 2, 1000 x float32): rank 1 frees its shared memory instead");
    calls = same_calls();
    calls.announced.frees = true;
    expect_dies(meet, &calls, 1, "this rank frees its shared memory, but rank 1 calls all_reduce of 1000 elements");
    calls = same_calls();
    calls.theirs.count = 999;
    group.rank = 1;
    expect_dies(meet, &calls, 1, "but rank 0 calls all_reduce of 999 x float32");
    group.rank = 0;
}

/* ---- which window ---- */

static void test_window_of(void **state)
{
    assert_ptr_equal(shared_window_of(&shared, 0, memory[0], BYTES), &window);
    assert_ptr_equal(shared_window_of(&shared, 1, memory[1] + 100, BYTES - 100), &window);
    assert_null(shared_window_of(&shared, 0, memory[0] + 1, BYTES));
    assert_null(shared_window_of(&shared, 1, memory[0] + BYTES - 1, 8));
    assert_null(shared_window_of(&shared, 0, boxes[0].staging, 8));
}

/* ---- counts ---- */

typedef struct Count {
    float *buffer;
    size_t count;
    int counts;
} Count;

static void check_count(void *argument)
{
    const Count *count = argument;
    const Collective c = {.operation = count->counts > 1 ? OP_ALL_GATHER : OP_ALL_REDUCE, .send = count->buffer,
                          .receive = count->buffer, .count = count->count, .dtype = DTYPE_F32,
                          .carries = "bucket 0"};
    check_buffers(&c, group.rank, group.world_size, group.allocations, "");
}

static void test_counts_stay_within_their_memory(void **state)
{
    group.shared = NULL; /* so that memory comes from device_alloc() */
    float *older = pg_alloc_shared(&group, 10 * sizeof *older), *buffer = pg_alloc_shared(&group, 100 * sizeof *buffer);
    check_count(&(Count){buffer, 100, 1});
    check_count(&(Count){buffer + 90, 10, 1});
    check_count(&(Count){buffer + 100, 1000, 1}); /* memory behind it is not of this allocation */
    check_count(&(Count){buffer, 50, 2});
    check_count(&(Count){older, 10, 1});
    expect_dies(check_count, &(Count){older, 11, 1}, 1, "where 10 elements are left");
    expect_dies(check_count, &(Count){buffer + 90, 11, 1}, 1, "all_reduce number 0 (bucket 0, 11 x float32) goes "
                                                              "beyond the end of its memory, where 10 elements");
    expect_dies(check_count, &(Count){buffer, 51, 2}, 1, "(bucket 0, 51 x float32) for each rank goes beyond the end "
                                                         "of its memory, where 100 elements are left");
    pg_free_shared(&group, older);
    expect_dies(check_count, &(Count){buffer, 101, 1}, 1, "where 100 elements are left");
    pg_free_shared(&group, buffer);
    assert_null(group.allocations);
}

int main(void)
{
    return run_cases("parts of comm/", cmocka_unit_test(test_counts_stay_within_their_memory),
                     cmocka_unit_test(test_same_calls_meet), cmocka_unit_test(test_other_calls_are_faults),
                     cmocka_unit_test(test_window_of));
}
