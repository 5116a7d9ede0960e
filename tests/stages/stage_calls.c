/* stage_calls.c: what a graded ddp.c calls in place of some functions. It runs in the process of the tests, so it gets
 * no pointer to what they look at. In a starter's build objcopy gives libddp.a (ddp.c and common/ddp/) the names of
 * stage_calls.syms, so that pg_rank() becomes stage_pg_rank(), and printf() stage_printf().
 *
 *   the group   is a handle, an address without memory, and so is each Work. The functions here know what is behind
 *               them, and fault if the stage has changed what it must not change in the group. Who holds the group
 *               itself, as train does, may pass it, too.
 *   printing    stage_prints.c
 *   exit()      is a fault: the other ranks would wait.
 *   qsort() ... call only functions of libddp.a; and so does each call through a pointer: stage_jumps.c
 */
#include "stage_calls.h"

#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "comm/group.h"

/* ---- the group ---- */

static ProcessGroup *const handle = (ProcessGroup *)64, *const part_handle = (ProcessGroup *)128;
static ProcessGroup *group; /* behind the handle; not owned */
static ProcessGroup *part;  /* for --shard-ranks, behind the other handle; NULL: there is none */
static ProcessGroup before; /* the group, when the stage was called */
static bool in_a_call;      /* of ddp.h's; between them a test may change the options */

ProcessGroup *stage_handle(ProcessGroup *pg)
{
    group = pg;
    stage_begins();
    return handle;
}

void stage_begins(void)
{
    if (group != NULL)
        before = *group;
    in_a_call = true;
}

static void expect_untouched(const char *call)
{
    int rank, world_size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    CHECK(group->rank == rank && group->world_size == world_size && group->local_rank == before.local_rank &&
              group->measuring == before.measuring && group->observer_count == before.observer_count &&
              memcmp(group->observers, before.observers, sizeof before.observers) == 0 &&
              (!in_a_call || memcmp(&group->options, &before.options, sizeof before.options) == 0) &&
              group->backend == before.backend && group->comm == before.comm,
          "%s: ddp.c has changed the process group: its rank or size, its options, or what is counted", call);
}

void stage_ends(const char *call)
{
    if (group != NULL)
        expect_untouched(call);
    in_a_call = false;
}

static ProcessGroup *behind(const ProcessGroup *pg)
{
    if (group == NULL && pg != handle)
        return (ProcessGroup *)pg; /* no stage has been called yet */
    if (part != NULL && pg == part_handle)
        return part;
    CHECK(pg != NULL, "ddp.c passes NULL where a process group is expected");
    CHECK(group != NULL && (pg == handle || pg == group), "ddp.c uses a process group that it did not get");
    if (pg == group)
        return group;
    expect_untouched("a call of the process group's");
    return group;
}

#if LOCKSTEP_STAGE == 5 /* the others' starters have no such groups */
/* For stage5_sharded/shards.c: symbols.sh lets no ddp.c call these two. */
ProcessGroup *stage_pg_split_copies(ProcessGroup *pg, int ranks)
{
    ProcessGroup *made = pg_split_copies(behind(pg), ranks);
    if (pg != handle)
        return made;
    CHECK(part == NULL, "tests have one model with --shard-ranks at a time");
    part = made;
    return part_handle;
}

void stage_pg_destroy(ProcessGroup *pg)
{
    pg_destroy(behind(pg));
    part = pg == part_handle ? NULL : part;
}
#endif

int stage_pg_rank(const ProcessGroup *pg)
{
    return pg_rank(behind(pg));
}

int stage_pg_world_size(const ProcessGroup *pg)
{
    return pg_world_size(behind(pg));
}

int stage_pg_local_rank(const ProcessGroup *pg)
{
    return pg_local_rank(behind(pg));
}

const char *stage_pg_backend(const ProcessGroup *pg)
{
    return pg_backend(behind(pg));
}

AllReduceAlgorithm stage_pg_algorithm(const ProcessGroup *pg)
{
    return pg_algorithm(behind(pg));
}

void *stage_pg_alloc_shared(ProcessGroup *pg, size_t bytes)
{
    return pg_alloc_shared(behind(pg), bytes);
}

void stage_pg_free_shared(ProcessGroup *pg, void *memory)
{
    pg_free_shared(behind(pg), memory);
}

void stage_pg_barrier(ProcessGroup *pg)
{
    pg_barrier(behind(pg));
}

void stage_pg_broadcast(ProcessGroup *pg, void *buffer, size_t count, DType dtype, int root, const char *carries)
{
    pg_broadcast(behind(pg), buffer, count, dtype, root, carries);
}

void stage_pg_all_reduce(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                         const char *carries)
{
    pg_all_reduce(behind(pg), send, receive, count, dtype, op, carries);
}

void stage_pg_all_gather(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                         const char *carries)
{
    pg_all_gather(behind(pg), send, receive, count, dtype, carries);
}

void stage_pg_reduce_scatter(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype, ReduceOp op,
                             const char *carries)
{
    pg_reduce_scatter(behind(pg), send, receive, count, dtype, op, carries);
}

/* ---- its works: a Work begins with the address of the group ---- */

static Work **works; /* by handle; not owned. The group uses a Work again, and so has few of them */
static int work_count, work_room;

static Work *work_handle(Work *work)
{
    int i = 0;
    while (i < work_count && works[i] != work)
        i++;
    if (i == work_room) {
        work_room = 2 * work_room + 64;
        works = realloc(works, (size_t)work_room * sizeof(*works));
        CHECK(works != NULL, "no memory for handles");
    }
    works[i] = work;
    work_count += i == work_count;
    return (Work *)(uintptr_t)(i + 1);
}

static Work *work_behind(const Work *work)
{
    const uintptr_t number = (uintptr_t)work;
    CHECK(number <= (uintptr_t)work_count, "ddp.c waits for what is no Work");
    return number > 0 ? works[number - 1] : NULL;
}

bool stage_work_test(Work *work)
{
    return work_test(work_behind(work));
}

void stage_work_wait(Work *work)
{
    work_wait(work_behind(work));
}

Work *stage_pg_all_reduce_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                ReduceOp op, const char *carries)
{
    return work_handle(pg_all_reduce_async(behind(pg), send, receive, count, dtype, op, carries));
}

Work *stage_pg_reduce_scatter_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                    ReduceOp op, const char *carries)
{
    return work_handle(pg_reduce_scatter_async(behind(pg), send, receive, count, dtype, op, carries));
}

Work *stage_pg_all_gather_async(ProcessGroup *pg, const void *send, void *receive, size_t count, DType dtype,
                                const char *carries)
{
    return work_handle(pg_all_gather_async(behind(pg), send, receive, count, dtype, carries));
}

CommCounters stage_pg_counters(ProcessGroup *pg)
{
    return pg_counters(behind(pg));
}

/* ---- the environment: texts that the stage may write over ---- */

typedef struct Copy {
    struct Copy *next;
    char text[];
} Copy;

char *stage_getenv(const char *name)
{
    static Copy *copies;
    const char *text = getenv(name);
    Copy *copy = copies;
    while (copy != NULL && text != NULL && strcmp(copy->text, text) != 0)
        copy = copy->next;
    if (copy == NULL && text != NULL) {
        copy = malloc(sizeof *copy + strlen(text) + 1);
        CHECK(copy != NULL, "no memory for a copy of %s", name);
        copy->next = copies;
        strcpy(copy->text, text);
        copies = copy;
    }
    return text != NULL ? copy->text : NULL;
}

/* ---- the end, and functions that are called back ---- */

_Noreturn void stage_exit(int status)
{
    FAULT("ddp.c has called exit(%d): a rank that ends before the others has not passed", status);
}

/* objcopy has made one section of all code of libddp.a; the linker defines its ends. */
extern const char start_of_ddp[] __asm__("__start_ddp_text"), end_of_ddp[] __asm__("__stop_ddp_text");

bool stage_has_function(const void *function)
{
    const char *at = function;
    const bool inside = at >= start_of_ddp && at + sizeof(int) < end_of_ddp;
#ifdef LOCKSTEP_CALLS_ARE_CHECKED
    return inside && memcmp(at, "\xf3\x0f\x1e\xfa", 4) == 0; /* endbr64, with -fcf-protection=branch */
#else
    return inside;
#endif
}

typedef int (*Compare)(const void *, const void *);
typedef int (*CompareWith)(const void *, const void *, void *);

static void check_own(const void *function, const char *caller)
{
    CHECK(stage_has_function(function), "%s: ddp.c has given it a function that is not its own", caller);
}

typedef struct Comparison {
    Compare compare;
    CompareWith compare_with;
    void *argument;
} Comparison;

/* The C library calls this, not a function of ddp.c: that one must return to this program. */
static int by_comparison(const void *a, const void *b, void *comparison)
{
    const Comparison *c = comparison;
    return c->compare != NULL ? c->compare(a, b) : c->compare_with(a, b, c->argument);
}

void stage_qsort(void *base, size_t count, size_t size, Compare compare)
{
    check_own((const void *)compare, "qsort()");
    qsort_r(base, count, size, by_comparison, &(Comparison){.compare = compare});
}

void stage_qsort_r(void *base, size_t count, size_t size, CompareWith compare, void *argument)
{
    check_own((const void *)compare, "qsort_r()");
    qsort_r(base, count, size, by_comparison, &(Comparison){.compare_with = compare, .argument = argument});
}

void *stage_bsearch(const void *key, const void *base, size_t count, size_t size, Compare compare)
{
    check_own((const void *)compare, "bsearch()");
    for (size_t low = 0, high = count; low < high;) {
        const size_t middle = low + (high - low) / 2;
        const char *at = (const char *)base + middle * size;
        const int order = compare(key, at);
        if (order == 0)
            return (void *)at;
        low = order > 0 ? middle + 1 : low;
        high = order > 0 ? high : middle;
    }
    return NULL;
}
