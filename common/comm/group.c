/* group.c: the life of the job and of its groups: starts and ends MPI, makes groups, and holds their options. */
#include "comm/group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/check.h"

/* ---- the job ---- */

#define UCX_BYTES ((size_t)8 << 20) /* of /dev/shm, for each rank: more than it needs at the start */

static void abort_all(int status)
{
    MPI_Abort(MPI_COMM_WORLD, status);
}

static void end_mpi(void)
{
    MPI_Finalize();
}

/* note: no-dev-shm
 * UCX, the library below many MPIs, keeps messages between the processes of a host in /dev/shm, and MPI_Init fails if
 * it cannot be written or has too little room. UCX can keep them elsewhere, but must be asked to. Returns true if it
 * was asked. */
static bool avoid_dev_shm(void)
{
    struct statvfs system;
    const char *ranks = getenv("MPI_LOCALNRANKS"); /* on this host, as MPICH's launcher counts */
    const size_t needed = UCX_BYTES * (size_t)(ranks != NULL && atoi(ranks) > 1 ? atoi(ranks) : 1);
    const bool usable = access("/dev/shm", W_OK | X_OK) == 0 && statvfs("/dev/shm", &system) == 0 &&
                        (system.f_blocks == 0 || system.f_bavail * system.f_frsize >= needed);
    return !usable && getenv("UCX_TLS") == NULL && setenv("UCX_TLS", "^posix", 0) == 0;
}

static ProcessGroup *group_create(MPI_Comm of, int color)
{
    ProcessGroup *pg = alloc_or_fault(sizeof *pg);
    pg->measuring = true;
    pthread_mutex_init(&pg->lock, NULL);
    pg_mpi_open(pg, of, color);
    const int mine = job_rank();
    pg->job_ranks = alloc_or_fault((size_t)pg->world_size * sizeof *pg->job_ranks);
    CHECK_MPI(MPI_Allgather(&mine, 1, MPI_INT, pg->job_ranks, 1, MPI_INT, pg->comm));
    return pg;
}

static void group_free(ProcessGroup *pg)
{
    CHECK(pg->children == 0, "%d group(s) from pg_split() are left: pg_destroy() must free them first",
          pg->children);
    worker_check_all_waited_for(pg, "this rank leaves the group");
    worker_stop(pg);
    for (int i = 0; i < pg->observer_count; i++)
        if (pg->observers[i].leaving != NULL)
            pg->observers[i].leaving(pg->observers[i].self);
    for (Backend *backend = pg->backend, *inner; backend != NULL; backend = inner) {
        inner = backend->inner;
        backend->close(backend, pg);
    }
    pthread_mutex_destroy(&pg->lock);
    free(pg->job_ranks);
    free(pg);
}

ProcessGroup *job_open(int *argc, char ***argv)
{
    int provided, rank, world_size;
    const bool avoids = avoid_dev_shm();
    CHECK_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided));
    CHECK(provided == MPI_THREAD_MULTIPLE, "this MPI library was built without MPI_THREAD_MULTIPLE, which the "
                                           "communication thread needs");
    CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world_size));
    job_set((Job){.rank = rank, .world_size = world_size, .leave = end_mpi, .abort_all = abort_all});
    if (avoids)
        advise("/dev/shm cannot be written or has little room, so MPI was asked to keep its messages elsewhere "
               "(UCX_TLS=^posix)");
    ProcessGroup *world = group_create(MPI_COMM_WORLD, 0);
    world->options.timeout = INFINITY;
    return world;
}

void job_close(ProcessGroup *world)
{
    group_free(world);
    job_leave();
}

/* ---- groups ---- */

static void set_name(ProcessGroup *pg, int color)
{
    const char *above = pg->parent->parent != NULL ? pg->parent->name + strlen(" of group ") : "";
    const int length = (int)strcspn(above, " ");
    snprintf(pg->name, sizeof pg->name, " of group %.*s%s%d/%d (%d ranks, %d to %d)", length, above,
             length > 0 ? "." : "", pg->parent->splits, color, pg->world_size, pg->job_ranks[0],
             pg->job_ranks[pg->world_size - 1]);
}

/* The innermost first. */
static void split_backends(const Backend *of, ProcessGroup *pg, int color)
{
    if (of->inner != NULL) {
        split_backends(of->inner, pg, color);
        of->split(of, pg, color);
    }
}

/* Adds observers before pg_mpi_prepare() sends anything, so that it has a time-out, too. */
ProcessGroup *pg_split(ProcessGroup *parent, int color)
{
    CHECK(color >= 0, "pg_split() with the color %d, which is negative", color);
    worker_drain(parent);
    Collective barrier = group_begin_barrier(parent, "splitting the group");
    ProcessGroup *pg = group_create(parent->comm, color);
    pg->options = parent->options;
    if (parent->windows_if_room)
        pg->options.algorithm = ALLREDUCE_AUTO;
    pg->parent = parent;
    parent->children++;
    parent->splits++;
    set_name(pg, color);
    split_backends(parent->backend, pg, color);
    group_end_barrier(parent, &barrier);
    for (int i = 0; i < parent->observer_count; i++)
        if (parent->observers[i].split != NULL)
            parent->observers[i].split(parent->observers[i].self, pg);
    pg_mpi_prepare(pg);
    return pg;
}

void pg_destroy(ProcessGroup *pg)
{
    CHECK(pg->parent != NULL, "pg_destroy() of the world, which lives as long as the job: job_close() frees it");
    pg->parent->children--;
    group_free(pg);
}

MPI_Comm pg_communicator(const ProcessGroup *pg)
{
    return pg->comm;
}

void pg_wrap_backend(ProcessGroup *pg, Backend *outer)
{
    outer->inner = pg->backend;
    pg->backend = outer;
}

void pg_observe(ProcessGroup *pg, const GroupObserver *observer)
{
    worker_drain(pg);
    CHECK(pg->observer_count < MAX_OBSERVERS, "a group has %d observers at most", MAX_OBSERVERS);
    pg->observers[pg->observer_count++] = *observer;
}

/* ---- properties ---- */

int pg_rank(const ProcessGroup *pg)
{
    return pg->rank;
}

int pg_world_size(const ProcessGroup *pg)
{
    return pg->world_size;
}

int pg_local_rank(const ProcessGroup *pg)
{
    return pg->local_rank;
}

const char *pg_backend(const ProcessGroup *pg)
{
    return pg->backend->name;
}

void pg_set_options(ProcessGroup *pg, const ProcessGroupOptions *options)
{
    worker_drain(pg);
    pg->options = *options;
    pg_mpi_prepare(pg);
}

void pg_set_algorithm(ProcessGroup *pg, AllReduceAlgorithm algorithm)
{
    ProcessGroupOptions options = pg->options;
    options.algorithm = algorithm;
    pg_set_options(pg, &options);
}

const ProcessGroupOptions *pg_options(const ProcessGroup *pg)
{
    return &pg->options;
}

AllReduceAlgorithm pg_algorithm(const ProcessGroup *pg)
{
    return pg->options.algorithm;
}

bool pg_is_measuring(const ProcessGroup *pg)
{
    return pg->measuring;
}
