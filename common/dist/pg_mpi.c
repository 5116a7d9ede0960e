/* pg_mpi.c: the MPI backend. Every collective is started with MPI's non-blocking call and then waited for in a loop
 * of our own, which knows when to give the core away. (When to give up is watchdog.c's business.)
 *
 * note: waiting
 * A blocking MPI call spins. With more ranks than cores it burns the time slice of the very rank it waits for, and
 * in a communication thread it takes the core from the computation that it should hide behind. The loop
 * here spins for some microseconds if every rank has a core, then yields some times, and then sleeps between tests; in
 * the background it sleeps at once, as long as there is a computation to leave the core to.
 */
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "dist/allreduce.h"
#include "dist/ending.h"
#include "dist/shared_memory.h"
#include "dist/staging.h"

#define SPIN 20e-6                    /* seconds; foreground, and a core for every rank */
#define YIELDS_BEFORE_SLEEP 2000      /* foreground: some ms on an idle machine */
#define SHORTEST_SLEEP 20e-6          /* seconds */
#define LONGEST_SLEEP 200e-6

typedef struct MpiState {
    MPI_Comm comm;
    bool one_host;       /* all ranks are on it */
    bool core_per_rank;  /* this host's ranks need not share cores */
    void *scratch; /* see group_scratch(); owned */
    size_t scratch_bytes;
    Staging staging;
} MpiState;

void check_mpi(int code, const char *call, const char *file, int line)
{
    if (code == MPI_SUCCESS)
        return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0, class = MPI_SUCCESS;
    MPI_Error_string(code, text, &length);
    text[strcspn(text, "\n")] = '\0'; /* what follows is MPI's own stack */
    MPI_Error_class(code, &class);
    fault_at(file, line, "%s failed: %s%s", call, text,
             class == MPI_ERR_TRUNCATE ? ": a rank has sent more than this one expects, so the ranks are in different "
                                         "collectives; --debug-collectives names the first one that differs" : "");
}

/* ---- the job ---- */

/* The launcher says how many ranks it has started. If MPI sees fewer, every rank believes it is alone, and would train
 * by itself: the program was built for another MPI than the launcher's. Slurm's srun brings an MPI's own variables
 * only where it speaks to that MPI. (MPICH's mpiexec starts its helpers with srun: Slurm's number is theirs then.) */
static void check_launcher(int world_size)
{
    static const char *const variables[] = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"};
    bool has_launcher = false;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *started = getenv(variables[i]);
        has_launcher |= started != NULL;
        if (started != NULL && atoi(started) != world_size)
            die("the launcher started %s ranks, but this program's MPI library sees %d: it was built with another MPI; "
                "use that MPI's own mpiexec", started, world_size);
    }
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS");
    if (!has_launcher && tasks != NULL && atoi(tasks) > 1 && world_size == 1)
        die("srun started %s ranks, but this program's MPI library sees 1: srun does not speak to it; try srun "
            "--mpi=pmix or --mpi=pmi2 (srun --mpi=list names those there are), or the MPI's own mpiexec", tasks);
}

void pg_initialize(int *argc, char ***argv)
{
    int provided = 0, rank = 0, world_size = 1;
    CHECK_MPI(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided));
    CHECK(provided == MPI_THREAD_MULTIPLE, "this MPI library was built without MPI_THREAD_MULTIPLE, which the "
                                           "communication thread needs");
    CHECK_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    CHECK_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    CHECK_MPI(MPI_Comm_size(MPI_COMM_WORLD, &world_size));
    ending_open(rank, world_size);
    check_launcher(world_size);
}

/* ---- waiting ---- */

void wait_a_moment(ProcessGroup *pg, const Collective *collective, Waiting *waiting)
{
    const MpiState *state = pg->state;
    double now = now_seconds();
    bool in_background = collective->background && !atomic_load(&pg->training_waits);
    if (waiting->start == 0)
        *waiting = (Waiting){.start = now, .pause = SHORTEST_SLEEP};
    if (!in_background && state->core_per_rank && now - waiting->start < SPIN)
        return;
    if (!in_background && waiting->yields++ < YIELDS_BEFORE_SLEEP) {
        sched_yield();
        return;
    }
    sleep_seconds(waiting->pause);
    waiting->pause = waiting->pause * 1.5 < LONGEST_SLEEP ? waiting->pause * 1.5 : LONGEST_SLEEP;
}

void wait_for_messages(ProcessGroup *pg, const Collective *collective, int count, MPI_Request *requests)
{
    Waiting waiting = {0};
    for (int finished = 0; finished < count;) {
        int done = 0; /* whichever request is tested, MPI gets on with all of them */
        CHECK_MPI(MPI_Test(&requests[finished], &done, MPI_STATUS_IGNORE));
        finished += done;
        if (!done)
            wait_a_moment(pg, collective, &waiting);
    }
}

/* ---- carrying a collective out ---- */

void *group_scratch(ProcessGroup *pg, size_t bytes)
{
    MpiState *state = pg->state;
    if (state->scratch == NULL || bytes > state->scratch_bytes) {
        free(state->scratch);
        state->scratch = alloc_or_fault(bytes);
        state->scratch_bytes = bytes;
    }
    return state->scratch;
}

MPI_Comm group_communicator(const ProcessGroup *pg)
{
    return ((MpiState *)pg->state)->comm;
}

MPI_Datatype mpi_datatype(DType dtype)
{
    switch (dtype) {
    case DTYPE_F32: return MPI_FLOAT;
    case DTYPE_F64: return MPI_DOUBLE;
    case DTYPE_I32: return MPI_INT32_T;
    case DTYPE_I64: return MPI_INT64_T;
    case DTYPE_BF16:
    case DTYPE_F16: return MPI_UINT16_T; /* to be moved, not added: MPI has no 16-bit floating point */
    }
    FAULT("no such dtype: %d", (int)dtype);
}

static MPI_Op mpi_op(ReduceOp op)
{
    return op == REDUCE_SUM ? MPI_SUM : MPI_MAX;
}

/* note: mpi-pieces
 * For a sum of 100 MB, MPICH asks the system for 50 MB of scratch memory in every call, gives them back, and pays for the
 * same page faults again in the next one. What it frees in smaller portions, the C library keeps for the next call. (MPI
 * wants MPI_IN_PLACE where send and receive are one buffer.) */
#define PIECE_BYTES ((size_t)16 << 20)

static void all_reduce_by_mpi(ProcessGroup *pg, const Collective *c)
{
    size_t size = dtype_size(c->dtype), piece = PIECE_BYTES / size;
    for (size_t start = 0; start < c->count || start == 0; start += piece) {
        size_t count = c->count - start < piece ? c->count - start : piece;
        const void *send = c->send == c->receive ? MPI_IN_PLACE : (const unsigned char *)c->send + start * size;
        MPI_Request request;
        CHECK_MPI(MPI_Iallreduce(send, (unsigned char *)c->receive + start * size, (int)count, mpi_datatype(c->dtype),
                                 mpi_op(c->op), group_communicator(pg), &request));
        wait_for_messages(pg, c, 1, &request);
    }
}

/* Starts the collective and waits for it. */
static void run_on_host(ProcessGroup *pg, const Collective *c)
{
    if (c->operation == OP_ALL_REDUCE) {
        if (!all_reduce_by_hand(pg, c))
            all_reduce_by_mpi(pg, c);
        return;
    }
    CHECK(c->count <= INT_MAX, "%s of %s: MPI counts %d elements at most, not %zu", operation_name(c->operation),
          c->carries, INT_MAX, c->count);
    MPI_Comm comm = group_communicator(pg);
    MPI_Datatype type = mpi_datatype(c->dtype);
    MPI_Request request = MPI_REQUEST_NULL;
    int count = (int)c->count;
    switch (c->operation) {
    case OP_BARRIER: CHECK_MPI(MPI_Ibarrier(comm, &request)); break;
    case OP_BROADCAST: CHECK_MPI(MPI_Ibcast(c->receive, count, type, c->root, comm, &request)); break;
    case OP_ALL_REDUCE: return; /* above */
    case OP_ALL_GATHER: CHECK_MPI(MPI_Iallgather(c->send, count, type, c->receive, count, type, comm, &request)); break;
    case OP_REDUCE_SCATTER:
        CHECK(!is_half(c->dtype), "reduce_scatter does not add %s", dtype_name(c->dtype));
        CHECK_MPI(MPI_Ireduce_scatter_block(c->send, c->receive, count, type, mpi_op(c->op), comm, &request));
        break;
    }
    wait_for_messages(pg, c, 1, &request);
}

static void run(ProcessGroup *pg, const Collective *c)
{
    MpiState *state = pg->state;
    if (staging_needed(c))
        staging_run(&state->staging, pg, c, run_on_host);
    else
        run_on_host(pg, c);
}

/* All ranks have met before: see pg_destroy(). */
static void close_mpi(ProcessGroup *pg)
{
    MpiState *state = pg->state;
    ending_begin();
    shared_memory_close(pg);
    staging_free(&state->staging);
    free(state->scratch);
    MPI_Comm_free(&state->comm);
    free(state);
    ending_close();
}

static const Backend mpi_backend = {"mpi", run, close_mpi};

/* Cores that this process may run on. */
static int cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void pg_mpi_open(ProcessGroup *pg)
{
    MpiState *state = alloc_or_fault(sizeof *state);
    MPI_Comm host;
    CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &state->comm));
    CHECK_MPI(MPI_Comm_rank(state->comm, &pg->rank));
    CHECK_MPI(MPI_Comm_size(state->comm, &pg->world_size));
    CHECK_MPI(MPI_Comm_split_type(state->comm, MPI_COMM_TYPE_SHARED, pg->rank, MPI_INFO_NULL, &host));
    int host_size = 0;
    CHECK_MPI(MPI_Comm_rank(host, &pg->local_rank));
    CHECK_MPI(MPI_Comm_size(host, &host_size));
    state->one_host = host_size == pg->world_size;
    state->core_per_rank = host_size <= cores();
    CHECK_MPI(MPI_Comm_free(&host));
    pg->state = state;
    pg->backend = &mpi_backend;
    pg_mpi_prepare(pg);
}

void pg_mpi_prepare(ProcessGroup *pg)
{
    const MpiState *state = pg->state;
    if (pg->options.algorithm != ALLREDUCE_SHM || pg->shared != NULL || pg->world_size == 1)
        return;
    if (!state->one_host)
        die("--allreduce: shm needs all ranks on one host; give ordered, ring or mpi");
    shared_memory_open(pg);
}
