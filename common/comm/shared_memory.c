/* shared_memory.c: windows of memory that all ranks of one host share, and barriers without messages. */
#include "comm/shared_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/messages.h"

#define PAGE_BYTES 4096
#define QUICK_TESTS 100 /* well under a microsecond, so no clock is read */

static void check_same_call(const ProcessGroup *pg, const Collective *c, Announcement mine, int rank,
                            Announcement theirs)
{
    const char *other = operation_name((Operation)theirs.operation);
    CHECK(!theirs.frees || mine.frees,
          "%s: rank %d frees its shared memory instead: did it run out of data before the others?",
          collective_name(pg, c), rank);
    CHECK(!mine.frees || theirs.frees,
          "this rank frees its shared memory, but rank %d calls %s of %zu elements: did this rank run out of "
          "data before the others?", rank, other, theirs.count);
    CHECK(theirs.operation == mine.operation && theirs.count == mine.count && theirs.dtype == mine.dtype,
          "this rank calls %s, but rank %d calls %s of %zu x %s: all ranks must call the same collectives in the same "
          "order", collective_name(pg, c), rank, other, theirs.count, dtype_name((DType)theirs.dtype));
    bool same_place = theirs.window == mine.window && theirs.offset == mine.offset;
    CHECK(same_place || c->operation == OP_REDUCE_SCATTER || c->operation == OP_ALL_GATHER,
          "%s: the buffers of this rank and of rank %d lie in different places of the shared windows: all ranks must "
          "allocate the same buffers in the same order", collective_name(pg, c), rank);
}

void shared_announce_at_barrier(ProcessGroup *pg, const Collective *collective, Announcement mine)
{
    SharedMemory *shared = pg->shared;
    int slot = (int)(shared->calls++ % 2);
    mine.operation = (uint8_t)collective->operation;
    mine.dtype = (uint8_t)collective->dtype;
    mine.count = collective->count;
    shared->mailboxes[pg->rank]->announced[slot] = mine;
    shared_barrier(pg, collective);
    for (int rank = 0; rank < pg->world_size; rank++)
        check_same_call(pg, collective, mine, pg_job_rank(pg, rank), shared->mailboxes[rank]->announced[slot]);
}

const unsigned char *shared_announced_send(const SharedMemory *shared, int rank)
{
    const Announcement *theirs = &shared->mailboxes[rank]->announced[(shared->calls - 1) % 2];
    for (const SharedWindow *window = shared->windows; window != NULL && theirs->window > 0; window = window->next)
        if (window->number == theirs->window)
            return window->parts[rank] + theirs->offset;
    return NULL;
}

/* note: room-for-windows
 * A window is a file that all ranks map. MPICH and Open MPI make it in /dev/shm, or, if nothing can be written there,
 * in /tmp. The system allocates a page at the first write to it. If no page is left, this write ends the process
 * (SIGBUS). MPI does not check this, and a container's /dev/shm often has only 64 MB. */
static bool has_room(const ProcessGroup *pg, size_t bytes_per_rank)
{
    const size_t mebibyte = (size_t)1 << 20;
    struct statvfs system = {0};
    size_t needed = bytes_per_rank * (size_t)pg->world_size;
    const char *directory = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
    const bool writable = access(directory, W_OK | X_OK) == 0;
    if (writable && (statvfs(directory, &system) != 0 || system.f_blocks == 0))
        return true; /* size unknown, or unlimited */
    size_t there = system.f_bavail * system.f_frsize; /* 0 if it cannot be written */
    if (needed > there && !pg->windows_if_room)
        die("all-reduce in shared memory (shm): the next %zu MiB do not fit into %s, which has %zu MiB left%s, and "
            "more may follow; make /dev/shm larger (docker: --shm-size) or choose ordered",
            (needed + mebibyte - 1) / mebibyte, directory, there / mebibyte,
            strcmp(directory, "/tmp") == 0 ? " (MPI uses it because /dev/shm cannot be written)" : "");
    return needed <= there;
}

/* Allocates the window's memory. All processes map whole pages, so the offset of a part within its page, and of the
 * next 64-byte boundary, is the same in all of them. */
static void map_window(ProcessGroup *pg, SharedWindow *window, size_t bytes_per_rank)
{
    void *mine;
    CHECK_MPI(MPI_Win_allocate_shared((MPI_Aint)bytes_per_rank, 1, MPI_INFO_NULL, pg->comm, &mine, &window->window));
    for (int rank = 0; rank < pg->world_size; rank++) {
        MPI_Aint size;
        int unit;
        unsigned char *part;
        CHECK_MPI(MPI_Win_shared_query(window->window, rank, &size, &unit, &part));
        window->parts[rank] = part + (64 - (uintptr_t)part % 64) % 64;
    }
    memset(window->parts[pg->rank], 0, window->bytes); /* the first write places the pages near this core */
    CHECK_MPI(MPI_Barrier(pg->comm)); /* the next has_room() of any rank must see this memory as used */
}

/* Rank 0 decides for all, because other programs may take and free room between two ranks' checks. */
void *window_create(ProcessGroup *pg, size_t bytes)
{
    /* Whole pages, so that parts begin on page boundaries; and one page more, because Open MPI's begin anywhere. */
    const size_t bytes_per_rank = (bytes / PAGE_BYTES + 2) * PAGE_BYTES;
    Collective barrier = group_begin_barrier(pg, "making shared memory");
    int fits = has_room(pg, bytes_per_rank);
    CHECK_MPI(MPI_Bcast(&fits, 1, MPI_INT, 0, pg->comm));
    SharedWindow *window = NULL;
    if (fits) {
        window = alloc_or_fault(sizeof *window);
        window->bytes = bytes;
        window->parts = alloc_or_fault((size_t)pg->world_size * sizeof *window->parts);
        map_window(pg, window, bytes_per_rank);
    }
    group_end_barrier(pg, &barrier);
    if (window == NULL)
        return NULL;
    window->number = pg->shared->windows_made++;
    window->next = pg->shared->windows;
    pg->shared->windows = window;
    return window->parts[pg->rank];
}

static void free_first(SharedWindow **windows)
{
    SharedWindow *first = *windows;
    *windows = first->next;
    MPI_Win_free(&first->window);
    free(first->parts);
    free(first);
}

bool window_free(ProcessGroup *pg, const void *memory)
{
    SharedWindow **link = pg->shared != NULL ? &pg->shared->windows : NULL;
    while (link != NULL && *link != NULL && (*link)->parts[pg->rank] != memory)
        link = &(*link)->next;
    if (link == NULL || *link == NULL)
        return false;
    Collective barrier = group_begin_barrier(pg, "freeing shared memory");
    shared_announce_at_barrier(pg, &barrier, (Announcement){.frees = true, .window = (*link)->number});
    free_first(link);
    CHECK_MPI(MPI_Barrier(pg->comm)); /* no rank maps it any more: has_room() counts free memory */
    group_end_barrier(pg, &barrier);
    return true;
}

bool shared_memory_open(ProcessGroup *pg)
{
    pg->shared = alloc_or_fault(sizeof *pg->shared);
    if (window_create(pg, sizeof(Mailbox)) == NULL) {
        free(pg->shared);
        pg->shared = NULL;
        return false;
    }
    pg->shared->mailboxes = alloc_or_fault((size_t)pg->world_size * sizeof *pg->shared->mailboxes);
    pg->shared->parts = alloc_or_fault((size_t)pg->world_size * sizeof *pg->shared->parts);
    pg->shared->totals = alloc_or_fault((size_t)pg->world_size * sizeof *pg->shared->totals);
    for (int rank = 0; rank < pg->world_size; rank++)
        pg->shared->mailboxes[rank] = (Mailbox *)pg->shared->windows->parts[rank];
    return true;
}

void shared_memory_close(ProcessGroup *pg)
{
    if (pg->shared == NULL)
        return;
    while (pg->shared->windows != NULL)
        free_first(&pg->shared->windows);
    free(pg->shared->mailboxes);
    free(pg->shared->parts);
    free(pg->shared->totals);
    free(pg->shared);
    pg->shared = NULL; /* pg_free_shared() asks whether there is any */
}

const SharedWindow *shared_window_of(const SharedMemory *shared, int rank, const void *memory, size_t bytes)
{
    uintptr_t begin = (uintptr_t)memory;
    for (const SharedWindow *window = shared->windows; window != NULL; window = window->next) {
        uintptr_t part = (uintptr_t)window->parts[rank];
        if (window->number > 0 && begin >= part && begin + bytes <= part + window->bytes)
            return window;
    }
    return NULL;
}

/* Tests QUICK_TESTS times without a pause, and then with the pauses of back_off(). */
static void wait_until_arrived(ProcessGroup *pg, const Collective *collective, int rank, long barrier)
{
    const Mailbox *mailbox = pg->shared->mailboxes[rank];
    for (int look = 0; look < QUICK_TESTS; look++)
        if (atomic_load_explicit(&mailbox->arrived, memory_order_acquire) >= barrier)
            return;
    Backoff backoff = {0};
    while (atomic_load_explicit(&mailbox->arrived, memory_order_acquire) < barrier)
        back_off(pg, collective, &backoff);
}

/* note: shm-barrier
 * A barrier without messages: each rank counts its own barriers in shared memory, and waits until the counts of all
 * other ranks are as high. Release and acquire make everything that a rank wrote before the barrier visible to the
 * ranks that have read its count. */
void shared_barrier(ProcessGroup *pg, const Collective *collective)
{
    long barrier = ++pg->shared->barriers;
    atomic_store_explicit(&pg->shared->mailboxes[pg->rank]->arrived, barrier, memory_order_release);
    for (int rank = 0; rank < pg->world_size; rank++)
        if (rank != pg->rank)
            wait_until_arrived(pg, collective, rank, barrier);
}
