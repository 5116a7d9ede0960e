/* pg_nccl.c: the NCCL backend: collectives on device memory, from GPU to GPU. Barriers and host memory stay with MPI.
 * MPI also starts the ranks and broadcasts the id by which they find each other in NCCL.
 *
 * note: nccl-stream
 * NCCL has a stream of its own, and the host orders it against the computation: a collective is queued when the send
 * buffer has been computed (group_carry_out), and is done when the stream is empty again. NCCL cannot use
 * cudaStreamPerThread, as our kernels do: a non-blocking communicator may launch its kernels from one of NCCL's
 * threads, where the per-thread stream is another one. The stream has the highest priority, so that NCCL's kernels do
 * not wait for a multiprocessor behind kernels of the backward pass.
 *
 * note: nccl-groups
 * A group of pg_split() has a communicator and a stream of its own (ncclCommSplit). No two threads are inside NCCL at
 * the same time (lock_communicators() below). NCCL's manual asks for more: all ranks must launch the collectives of two
 * communicators in the same order, and one after the other, or their kernels may deadlock. Nothing here ensures this.
 * So over NCCL, let the collectives of one group end before those of another begin. */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "device/device.h"
#include "comm/backend.h"
#include "backends/gpu/pg_nccl.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 0)
#error "NCCL 2.18 or later is needed"
#endif

#define MAX_ABORT_SECONDS 2.0 /* the job waits for ncclCommAbort this long, and then ends without it */

/* A group's NCCL. */
typedef struct Nccl {
    Backend backend;
    cudaStream_t stream;
    ncclComm_t comm; /* NULL: not created yet, or destroyed */
    struct Nccl *next;
} Nccl;

/* The job's state. */
static struct {
    int device;
    pthread_mutex_t lock; /* guards the fields below, and every call that uses a communicator */
    Nccl *groups;
    bool aborting; /* communicators are being aborted: do not use them */
} job = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- errors ---- */

static const char *hint_for(ncclResult_t result)
{
    switch (result) {
    case ncclUnhandledCudaError: return "a CUDA call failed inside NCCL: is the GPU's memory full?";
    case ncclSystemError: return "the network or a system call failed; NCCL_SOCKET_IFNAME=eth0 chooses an interface";
    case ncclInvalidUsage: return "do all ranks run the same NCCL, each on a GPU of its own?";
    case ncclRemoteError: return "another rank has ended or cannot be reached; its own message says more";
    default: return "NCCL_DEBUG=INFO makes NCCL say more";
    }
}

#define CHECK_NCCL(call) check_nccl((call), #call, __FILE__, __LINE__)
static void check_nccl(ncclResult_t result, const char *call, const char *file, int line)
{
    if (result == ncclSuccess || result == ncclInProgress) /* in progress: the caller waits for the end */
        return;
    fault_at(file, line, "%s failed: %s (%s); %s", call, ncclGetErrorString(result), ncclGetLastError(NULL),
             hint_for(result));
}

#define CHECK_CUDA(call) check_cuda((call), #call, __FILE__, __LINE__)
static void check_cuda(cudaError_t error, const char *call, const char *file, int line)
{
    if (error != cudaSuccess)
        fault_at(file, line, "%s failed: %s (%s); it may come from an earlier kernel: compute-sanitizer finds it", call,
                 cudaGetErrorName(error), cudaGetErrorString(error));
}

/* Call before any call that uses a communicator: no other thread aborts it until pthread_mutex_unlock(). No such call
 * holds the lock for long (blocking = 0). Does not return if the job is being ended. */
static void lock_communicators(void)
{
    pthread_mutex_lock(&job.lock);
    if (!job.aborting)
        return;
    pthread_mutex_unlock(&job.lock);
    for (;;)
        pause();
}

/* A fault ends the job, and ending takes the lock. So unlock first, then check. */
#define CHECK_NCCL_LOCKED(call) check_nccl_locked((lock_communicators(), (call)), #call, __FILE__, __LINE__)
static void check_nccl_locked(ncclResult_t result, const char *call, const char *file, int line)
{
    pthread_mutex_unlock(&job.lock);
    check_nccl(result, call, file, line);
}

/* The state of NCCL's work in the background. */
static ncclResult_t communicator_state(ncclComm_t comm)
{
    ncclResult_t state = ncclSuccess;
    lock_communicators();
    ncclResult_t result = ncclCommGetAsyncError(comm, &state);
    pthread_mutex_unlock(&job.lock);
    return result == ncclSuccess ? state : result;
}

/* Returns cudaSuccess if all work of this group that NCCL has queued is done. CUDA stores "not ready" as the thread's
 * last error. Clear it, or the check after the next launch would report it. */
static cudaError_t stream_state(const Nccl *nccl)
{
    cudaError_t status = cudaStreamQuery(nccl->stream);
    if (status == cudaErrorNotReady)
        (void)cudaGetLastError();
    return status;
}

/* ---- aborting ---- */

static void *abort_communicators(void *done)
{
    (void)cudaSetDevice(job.device); /* not checked: after a kernel's fault every CUDA call fails, but abort anyway */
    pthread_mutex_lock(&job.lock);
    job.aborting = true; /* so the list does not change any more */
    pthread_mutex_unlock(&job.lock);
    for (const Nccl *nccl = job.groups; nccl != NULL; nccl = nccl->next)
        if (nccl->comm != NULL)
            ncclCommAbort(nccl->comm); /* without the lock: it may hang, and other threads must see `aborting` */
    for (const Nccl *nccl = job.groups; nccl != NULL; nccl = nccl->next)
        while (nccl->comm != NULL && stream_state(nccl) == cudaErrorNotReady)
            sleep_seconds(1e-3);
    atomic_store((atomic_bool *)done, true);
    return NULL;
}

/* note: nccl-abort
 * An NCCL kernel waits on the GPU for its peers: for ever, if a peer never joins. A process cannot end cleanly while a
 * kernel runs. So before the job ends (a time-out, an error, a fault anywhere), the kernels are stopped. Stopping may
 * itself hang, so it has a thread of its own, and after MAX_ABORT_SECONDS the job ends without it. */
static void stop_kernels(void)
{
    static atomic_bool done;
    pthread_t thread;
    if (pthread_create(&thread, NULL, abort_communicators, &done) != 0)
        return;
    double deadline = now_seconds() + MAX_ABORT_SECONDS;
    while (!atomic_load(&done) && now_seconds() < deadline)
        sleep_seconds(10e-3);
}

/* ---- carrying a collective out ---- */

static ncclDataType_t nccl_datatype(DType dtype)
{
    switch (dtype) {
    case DTYPE_F32: return ncclFloat32;
    case DTYPE_F64: return ncclFloat64;
    case DTYPE_I32: return ncclInt32;
    case DTYPE_I64: return ncclInt64;
    case DTYPE_BF16: return ncclBfloat16; /* a ring rounds every partial sum: see half-precision-sums in pg_mpi.c */
    case DTYPE_F16: return ncclFloat16;
    case DTYPE_INT8_BLOCK: break; /* options_check.c rejects it */
    }
    FAULT("no such dtype: %d", (int)dtype);
}

static void start(const Nccl *nccl, const Collective *c)
{
    ncclDataType_t type = nccl_datatype(c->dtype);
    ncclRedOp_t op = c->op == REDUCE_SUM ? ncclSum : ncclMax;
    ncclComm_t comm = nccl->comm;
    cudaStream_t stream = nccl->stream;
    const void *send = c->send;
    void *receive = c->receive;
    size_t count = c->count;
    switch (c->operation) {
    case OP_BROADCAST: CHECK_NCCL_LOCKED(ncclBroadcast(send, receive, count, type, c->root, comm, stream)); break;
    case OP_ALL_REDUCE: CHECK_NCCL_LOCKED(ncclAllReduce(send, receive, count, type, op, comm, stream)); break;
    case OP_ALL_GATHER: CHECK_NCCL_LOCKED(ncclAllGather(send, receive, count, type, comm, stream)); break;
    case OP_REDUCE_SCATTER: CHECK_NCCL_LOCKED(ncclReduceScatter(send, receive, count, type, op, comm, stream)); break;
    case OP_BARRIER: break; /* never here: run() gives it to MPI */
    }
}

/* note: nccl-wait
 * A loop that polls and yields, as back_off() does for a thread in the foreground: the computation is on the GPU
 * and does not need this core. cudaStreamSynchronize() would be shorter, but if a peer dies, NCCL's kernel and the wait
 * would never end: NCCL reports such errors only through ncclCommGetAsyncError(). The watchdog checks time-outs. */
static void wait_until_done(const Nccl *nccl, ProcessGroup *pg, const Collective *c)
{
    Collective foreground = *c;
    Backoff backoff = {0};
    bool queued = false;
    foreground.background = false;
    for (;;) {
        ncclResult_t state = communicator_state(nccl->comm);
        CHECK(state == ncclSuccess || state == ncclInProgress, "NCCL: %s: %s (%s); %s", collective_name(pg, c),
              ncclGetErrorString(state), ncclGetLastError(NULL), hint_for(state));
        if (state == ncclSuccess && !queued) {
            device_range_end();
            queued = true;
        }
        /* While NCCL is in progress, the collective is not queued yet, so an empty stream does not mean "done". */
        cudaError_t status = state == ncclSuccess ? stream_state(nccl) : cudaErrorNotReady;
        if (status == cudaSuccess)
            return;
        CHECK(status == cudaErrorNotReady, "CUDA: %s: %s (%s); it may come from an earlier kernel: compute-sanitizer "
              "finds it", collective_name(pg, c), cudaGetErrorName(status), cudaGetErrorString(status));
        back_off(pg, &foreground, &backoff);
    }
}

static void run(Backend *self, ProcessGroup *pg, const Collective *c)
{
    const Nccl *nccl = (const Nccl *)self;
    if (!device_owns(c->send) || !device_owns(c->receive)) {
        self->inner->run(self->inner, pg, c);
        return;
    }
    device_range_begin_on(nccl->stream, "NCCL"); /* wait_until_done() ends it when the collective is queued */
    start(nccl, c);
    wait_until_done(nccl, pg, c);
}

/* ---- the communicators ---- */

/* Returns when NCCL has finished the last call in the background; `what` names it. */
static void wait_while_in_progress(ncclComm_t comm, const ProcessGroup *pg, const char *what)
{
    double timeout = pg_options(pg)->timeout, deadline = now_seconds() + timeout;
    ncclResult_t state = communicator_state(comm);
    while (state == ncclInProgress && now_seconds() < deadline) {
        sleep_seconds(1e-3);
        state = communicator_state(comm);
    }
    CHECK(state != ncclInProgress, "NCCL: %s took more than --timeout %g seconds: a rank has not arrived, or the GPUs "
          "cannot reach each other; NCCL_DEBUG=INFO makes NCCL say more", what, timeout);
    CHECK(state == ncclSuccess, "NCCL: %s: %s (%s); %s", what, ncclGetErrorString(state), ncclGetLastError(NULL),
          hint_for(state));
}

static void close_nccl(Backend *self, ProcessGroup *pg)
{
    Nccl *nccl = (Nccl *)self;
    CHECK_NCCL_LOCKED(ncclCommFinalize(nccl->comm));
    wait_while_in_progress(nccl->comm, pg, "the end of the group");
    lock_communicators();
    Nccl **link = &job.groups;
    while (*link != nccl)
        link = &(*link)->next;
    *link = nccl->next; /* from here on, the end of the job does not abort it */
    ncclResult_t result = ncclCommDestroy(nccl->comm);
    pthread_mutex_unlock(&job.lock);
    check_nccl(result, "ncclCommDestroy", __FILE__, __LINE__);
    CHECK_CUDA(cudaStreamDestroy(nccl->stream));
    free(nccl);
}

static void split(const Backend *self, ProcessGroup *part, int color);

/* A group's NCCL, without a communicator yet. */
static Nccl *wrap(ProcessGroup *pg)
{
    int lowest = 0, highest = 0;
    Nccl *nccl = alloc_or_fault(sizeof *nccl);
    nccl->backend = (Backend){.name = "nccl", .run = run, .split = split, .close = close_nccl};
    CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CHECK_CUDA(cudaStreamCreateWithPriority(&nccl->stream, cudaStreamNonBlocking, highest));
    lock_communicators();
    nccl->next = job.groups;
    job.groups = nccl;
    pthread_mutex_unlock(&job.lock);
    pg_wrap_backend(pg, &nccl->backend);
    return nccl;
}

static void split(const Backend *self, ProcessGroup *part, int color)
{
    ncclComm_t parent = ((const Nccl *)self)->comm;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    Nccl *nccl = wrap(part);
    config.blocking = 0;
    CHECK_NCCL_LOCKED(ncclCommSplit(parent, color, pg_rank(part), &nccl->comm, &config));
    wait_while_in_progress(parent, part, "splitting the group"); /* until then there is no communicator */
    wait_while_in_progress(nccl->comm, part, "the start of the group");
}

void pg_use_nccl(ProcessGroup *world)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0; /* every call returns at once, so no call can hang inside NCCL */
    memset(&id, 0, sizeof id);
    if (pg_rank(world) == 0)
        CHECK_NCCL(ncclGetUniqueId(&id));
    _Static_assert(sizeof id % sizeof(int32_t) == 0, "the id travels as int32 words");
    pg_broadcast(world, &id, sizeof id / sizeof(int32_t), DTYPE_I32, 0, "NCCL's id");

    CHECK_CUDA(cudaGetDevice(&job.device));
    Nccl *nccl = wrap(world);
    CHECK_NCCL_LOCKED(ncclCommInitRankConfig(&nccl->comm, pg_world_size(world), id, pg_rank(world), &config));
    job_before_abort(stop_kernels);
    wait_while_in_progress(nccl->comm, world, "the start of the group");
}
