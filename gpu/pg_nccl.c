/* pg_nccl.c: the NCCL backend: collectives on device memory, from GPU to GPU. Barriers and host memory stay with MPI.
 * MPI also starts the ranks and broadcasts the id by which they find each other in NCCL.
 *
 * note: nccl-stream
 * NCCL has a stream of its own, and the host orders it and the computation: a collective is queued when the send buffer
 * has been computed (group_carry_out), and is done when the stream is empty again. Our kernels' cudaStreamPerThread
 * would not do: a non-blocking communicator may launch its kernels from one of NCCL's threads, where the per-thread
 * stream is another one. The stream has the highest priority, so that NCCL's kernels do not wait for a multiprocessor
 * behind kernels of the backward pass.
 */
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "device/device.h"
#include "comm/messages.h"
#include "gpu/pg_nccl.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 0)
#error "NCCL 2.18 or later is needed"
#endif

#define TIME_TO_ABORT 2.0 /* seconds to wait for ncclCommAbort before the job ends without it */

/* One group per job, as in pg_mpi.c. */
static struct {
    const Backend *mpi; /* for host memory and barriers */
    int device;
    cudaStream_t stream;
    pthread_mutex_t lock; /* guards the fields below, and every call that uses comm */
    ncclComm_t comm; /* NULL: not created yet, or destroyed */
    bool aborting; /* comm is being aborted: do not use it */
} nccl = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

/* Call before any call that uses the communicator: no other thread aborts it until pthread_mutex_unlock(). No such call
 * holds the lock for long (blocking = 0). Does not return if the job is being ended. */
static void lock_communicator(void)
{
    pthread_mutex_lock(&nccl.lock);
    if (!nccl.aborting)
        return;
    pthread_mutex_unlock(&nccl.lock);
    for (;;)
        pause();
}

/* A fault ends the job, and ending takes the lock. So unlock first, then check. */
#define CHECK_NCCL_LOCKED(call) check_nccl_locked((lock_communicator(), (call)), #call, __FILE__, __LINE__)
static void check_nccl_locked(ncclResult_t result, const char *call, const char *file, int line)
{
    pthread_mutex_unlock(&nccl.lock);
    check_nccl(result, call, file, line);
}

/* The state of NCCL's work in the background. */
static ncclResult_t communicator_state(void)
{
    ncclResult_t state = ncclSuccess;
    lock_communicator();
    ncclResult_t result = ncclCommGetAsyncError(nccl.comm, &state);
    pthread_mutex_unlock(&nccl.lock);
    return result == ncclSuccess ? state : result;
}

/* cudaSuccess: all of NCCL's queued work is done. CUDA stores "not ready" as the thread's last error. Clear it, or the
 * check after the next launch would report it. */
static cudaError_t stream_state(void)
{
    cudaError_t status = cudaStreamQuery(nccl.stream);
    if (status == cudaErrorNotReady)
        (void)cudaGetLastError();
    return status;
}

/* ---- ending ---- */

static void *abort_communicator(void *done)
{
    (void)cudaSetDevice(nccl.device); /* not checked: after a kernel's fault every CUDA call fails, but abort anyway */
    pthread_mutex_lock(&nccl.lock);
    nccl.aborting = true;
    ncclComm_t comm = nccl.comm;
    pthread_mutex_unlock(&nccl.lock);
    if (comm != NULL)
        ncclCommAbort(comm); /* without the lock: it may hang, and other threads must be able to see `aborting` */
    while (comm != NULL && stream_state() == cudaErrorNotReady)
        sleep_seconds(1e-3);
    atomic_store((atomic_bool *)done, true);
    return NULL;
}

/* note: nccl-abort
 * An NCCL kernel waits on the GPU for its peers: for ever, if a peer never joins. A process cannot end cleanly while a
 * kernel runs. So before the job ends (a time-out, an error, a fault anywhere), the kernels are stopped. Stopping may
 * itself hang, so it has a thread of its own, and after TIME_TO_ABORT the job ends without it. */
static void stop_kernels(void)
{
    static atomic_bool done;
    pthread_t thread;
    if (pthread_create(&thread, NULL, abort_communicator, &done) != 0)
        return;
    double deadline = now_seconds() + TIME_TO_ABORT;
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
    }
    FAULT("no such dtype: %d", (int)dtype);
}

static void start(const Collective *c)
{
    ncclDataType_t type = nccl_datatype(c->dtype);
    ncclRedOp_t op = c->op == REDUCE_SUM ? ncclSum : ncclMax;
    ncclComm_t comm = nccl.comm;
    cudaStream_t stream = nccl.stream;
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
 * A loop that polls and yields, as wait_a_moment() does for a thread in the foreground: the computation is on the GPU
 * and does not need this core. cudaStreamSynchronize() would be shorter, but if a peer dies, NCCL's kernel and the wait
 * would never end: NCCL reports such errors only through ncclCommGetAsyncError(). The watchdog checks time-outs. */
static void wait_until_done(ProcessGroup *pg, const Collective *c)
{
    Collective foreground = *c;
    Waiting waiting = {0};
    bool queued = false;
    foreground.background = false;
    for (;;) {
        ncclResult_t state = communicator_state();
        CHECK(state == ncclSuccess || state == ncclInProgress, "NCCL: %s number %ld (%s): %s (%s); %s",
              operation_name(c->operation), c->sequence, c->carries, ncclGetErrorString(state), ncclGetLastError(NULL),
              hint_for(state));
        if (state == ncclSuccess && !queued) {
            device_range_end();
            queued = true;
        }
        /* While NCCL is in progress, the collective is not queued yet, so an empty stream does not mean "done". */
        cudaError_t status = state == ncclSuccess ? stream_state() : cudaErrorNotReady;
        if (status == cudaSuccess)
            return;
        CHECK(status == cudaErrorNotReady, "CUDA: %s number %ld (%s): %s (%s); it may come from an earlier kernel: "
              "compute-sanitizer finds it", operation_name(c->operation), c->sequence, c->carries,
              cudaGetErrorName(status), cudaGetErrorString(status));
        wait_a_moment(pg, &foreground, &waiting);
    }
}

static void run(ProcessGroup *pg, const Collective *c)
{
    if (!device_owns(c->send) || !device_owns(c->receive)) {
        nccl.mpi->run(pg, c);
        return;
    }
    device_range_begin_on(nccl.stream, "NCCL"); /* wait_until_done() ends it when the collective is queued */
    start(c);
    wait_until_done(pg, c);
}

/* ---- the communicator ---- */

/* Returns when NCCL has finished the last call in the background; `what` names it. */
static void wait_while_in_progress(ProcessGroup *pg, const char *what)
{
    double deadline = now_seconds() + pg->options.timeout;
    ncclResult_t state = communicator_state();
    while (state == ncclInProgress && now_seconds() < deadline) {
        sleep_seconds(1e-3);
        state = communicator_state();
    }
    CHECK(state != ncclInProgress, "NCCL: %s took more than --timeout %g seconds: a rank has not arrived, or the GPUs "
          "do not reach each other; NCCL_DEBUG=INFO makes NCCL say more", what, pg->options.timeout);
    CHECK(state == ncclSuccess, "NCCL: %s: %s (%s); %s", what, ncclGetErrorString(state), ncclGetLastError(NULL),
          hint_for(state));
}

static void close_nccl(ProcessGroup *pg)
{
    CHECK_NCCL_LOCKED(ncclCommFinalize(nccl.comm));
    wait_while_in_progress(pg, "the end of the group");
    job_before_abort(NULL);
    lock_communicator();
    ncclResult_t result = ncclCommDestroy(nccl.comm);
    nccl.comm = NULL; /* from here on, the end of the job has nothing to abort */
    pthread_mutex_unlock(&nccl.lock);
    check_nccl(result, "ncclCommDestroy", __FILE__, __LINE__);
    CHECK_CUDA(cudaStreamDestroy(nccl.stream));
    nccl.mpi->close(pg);
}

static const Backend nccl_backend = {"nccl", run, close_nccl};

void pg_use_nccl(ProcessGroup *pg)
{
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int lowest = 0, highest = 0;
    config.blocking = 0; /* every call returns at once, so no call can hang inside NCCL */
    memset(&id, 0, sizeof id);
    if (pg->rank == 0)
        CHECK_NCCL(ncclGetUniqueId(&id));
    _Static_assert(sizeof id % sizeof(int32_t) == 0, "the id travels as int32 words");
    pg_broadcast(pg, &id, sizeof id / sizeof(int32_t), DTYPE_I32, 0, "NCCL's id");

    CHECK_CUDA(cudaGetDevice(&nccl.device));
    CHECK_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    CHECK_CUDA(cudaStreamCreateWithPriority(&nccl.stream, cudaStreamNonBlocking, highest));
    CHECK_NCCL(ncclCommInitRankConfig(&nccl.comm, pg->world_size, id, pg->rank, &config));
    job_before_abort(stop_kernels);
    wait_while_in_progress(pg, "the start of the group");
    nccl.mpi = pg->backend;
    pg->backend = &nccl_backend;
}
