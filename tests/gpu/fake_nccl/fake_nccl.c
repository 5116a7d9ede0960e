/* fake_nccl.c: simulates NCCL and a GPU's stream, over MPI and host memory, in the worst way that their documentation
 * allows: no call has done anything when it returns, the communicator is "in progress" for a while, and until then the
 * stream looks empty. FAKE_NCCL chooses an error: "remote" (a peer is lost in collective number 3), "init" (the start
 * never ends), "illegal" (a kernel crashes), "slow-call" (the third collective is not queued within any time-out),
 * "abort-hangs" (ncclCommAbort hangs, after another error). */
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"
#include "base/dtype.h"

enum { LOOKS = 3 }; /* how often the communicator says "in progress" */

struct ncclComm {
    MPI_Comm mpi;
    int calls;         /* collectives so far */
    int looks;         /* left until the last call's work starts */
    bool started;      /* the collective below */
    bool aborted;
    const void *send;
    void *receive;
    int count, root;
    MPI_Datatype type;
    MPI_Op op;
    MPI_Op half_sum, half_max; /* MPI has neither 16-bit type */
    char operation;    /* b, r, g, s; 0: none */
    MPI_Request request;
    void *result;      /* of a reduce-scatter in place, which MPI would write elsewhere; NULL: it is in `receive` */
    struct ncclComm **part; /* of a split under way: where the new communicator is to go; NULL: there is none */
    int color, key;
};

struct CUstream_st {
    struct ncclComm *comm; /* whose work it has; NULL: none yet */
};

static DType half_dtype; /* what the sums of 16-bit numbers add at present; this program has them in one group only */
static atomic_int collectives;  /* of all communicators */
static atomic_int calls_inside; /* threads that are in a call which uses the communicator */
static atomic_bool aborts;      /* ncclCommAbort has been called */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local cudaError_t last_error = cudaSuccess;

static bool playing(const char *what)
{
    const char *scene = getenv("FAKE_NCCL");
    return scene != NULL && strstr(scene, what) != NULL;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "another error";
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : "-";
}

static bool crashed(void)
{
    return playing("illegal") && collectives > 2;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 7; /* this process's only device */
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device != 7)
        abort();
    return crashed() ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest)
{
    *lowest = 0;
    *highest = -5;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *created, unsigned flags, int priority)
{
    *created = calloc(1, sizeof **created);
    return flags == cudaStreamNonBlocking && priority == -5 ? cudaSuccess : cudaErrorIllegalAddress;
}

cudaError_t cudaStreamDestroy(cudaStream_t destroyed)
{
    free(destroyed);
    return cudaSuccess;
}

static size_t part_bytes(const struct ncclComm *c)
{
    int size = 0;
    MPI_Type_size(c->type, &size);
    return (size_t)c->count * (size_t)size;
}

/* Is this rank's part, the whole of one buffer, at its place in the other, which is `longer`? NCCL allows this, and no
 * other overlap. */
static bool is_in_place(const struct ncclComm *c, const void *longer, const void *part)
{
    int rank, ranks;
    MPI_Comm_rank(c->mpi, &rank);
    MPI_Comm_size(c->mpi, &ranks);
    const char *begin = longer, *mine = part;
    bool in_place = mine == begin + (size_t)rank * part_bytes(c);
    if (!in_place && mine < begin + (size_t)ranks * part_bytes(c) && begin < mine + part_bytes(c))
        abort();
    return in_place;
}

/* Called with the lock held, when the request is done. */
static void end(struct ncclComm *c)
{
    if (c->started && c->result != NULL) {
        memcpy(c->receive, c->result, part_bytes(c));
        free(c->result);
        c->result = NULL;
    }
    c->started = false;
}

cudaError_t cudaStreamQuery(cudaStream_t queried)
{
    int done = 1;
    pthread_mutex_lock(&lock);
    struct ncclComm *comm = queried->comm;
    if (crashed()) {
        pthread_mutex_unlock(&lock);
        return cudaErrorIllegalAddress;
    }
    if (comm != NULL && comm->started && !comm->aborted) /* otherwise nothing is queued, and the stream looks done */
        MPI_Test(&comm->request, &done, MPI_STATUS_IGNORE);
    if (done && comm != NULL)
        end(comm);
    pthread_mutex_unlock(&lock);
    if (!done)
        last_error = cudaErrorNotReady; /* until cudaGetLastError() clears it */
    return done ? cudaSuccess : cudaErrorNotReady;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclRemoteError ? "remote process exited or there was a network error" : "another error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    return comm == NULL ? "no details" : "?";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    snprintf(id->internal, sizeof id->internal, "the id of process %ld", (long)getpid());
    return ncclSuccess;
}

/* One addition, or maximum, for each element: what comes out is a 16-bit number again, as in a ring of NCCL's. */
static void combine_halves(const uint16_t *in, uint16_t *inout, int count, bool maximum)
{
    for (int i = 0; i < count; i++) {
        float a, b, c;
        half_to_floats(&a, &in[i], half_dtype, 1);
        half_to_floats(&b, &inout[i], half_dtype, 1);
        c = !maximum ? a + b : a > b ? a : b;
        half_from_floats(&inout[i], &c, half_dtype, 1);
    }
}

static void add_halves(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    combine_halves(in, inout, *count, false);
}

static void largest_halves(void *in, void *inout, int *count, MPI_Datatype *type)
{
    (void)type;
    combine_halves(in, inout, *count, true);
}

static struct ncclComm *make(MPI_Comm mpi)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    comm->mpi = mpi;
    MPI_Op_create(add_halves, 1, &comm->half_sum);
    MPI_Op_create(largest_halves, 1, &comm->half_max);
    comm->looks = LOOKS;
    return comm;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    int mpi_rank, mpi_ranks;
    char first[sizeof id.internal];
    MPI_Comm mpi;
    MPI_Comm_dup(MPI_COMM_WORLD, &mpi);
    MPI_Comm_rank(mpi, &mpi_rank);
    MPI_Comm_size(mpi, &mpi_ranks);
    memcpy(first, id.internal, sizeof first);
    MPI_Bcast(first, sizeof first, MPI_BYTE, 0, mpi);
    *comm = make(mpi);
    bool good = rank == mpi_rank && ranks == mpi_ranks && config->blocking == 0 && first[0] == 't' &&
                memcmp(first, id.internal, sizeof first) == 0;
    return good ? ncclInProgress : ncclInvalidArgument;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *part, ncclConfig_t *config)
{
    if (comm->part != NULL || comm->started || comm->operation != 0)
        abort(); /* one at a time */
    *part = NULL;
    comm->part = part;
    comm->color = color;
    comm->key = key;
    comm->looks = LOOKS;
    return config->blocking == 0 ? ncclInProgress : ncclInvalidArgument;
}

/* Called with the lock held. */
static void begin_split(struct ncclComm *comm)
{
    MPI_Comm mpi;
    if (comm->part == NULL)
        return;
    MPI_Comm_split(comm->mpi, comm->color, comm->key, &mpi);
    *comm->part = make(mpi);
    comm->part = NULL;
}

/* Called with the lock held. */
static void begin(struct ncclComm *c)
{
    const void *send = c->send == c->receive ? MPI_IN_PLACE : c->send;
    switch (c->operation) {
    case 'b':
        if (c->send != c->receive)
            abort(); /* not simulated */
        MPI_Ibcast(c->receive, c->count, c->type, c->root, c->mpi, &c->request);
        break;
    case 'r': MPI_Iallreduce(send, c->receive, c->count, c->type, c->op, c->mpi, &c->request); break;
    case 'g':
        send = is_in_place(c, c->receive, c->send) ? MPI_IN_PLACE : c->send;
        MPI_Iallgather(send, c->count, c->type, c->receive, c->count, c->type, c->mpi, &c->request);
        break;
    case 's':
        c->result = is_in_place(c, c->send, c->receive) ? malloc(part_bytes(c) + 1) : NULL;
        MPI_Ireduce_scatter_block(c->send, c->result != NULL ? c->result : c->receive, c->count, c->type, c->op, c->mpi,
                                  &c->request);
        break;
    default: return;
    }
    c->operation = 0;
    c->started = true;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    pthread_mutex_lock(&lock);
    if (comm->aborted)
        fprintf(stderr, "fake NCCL: used while it is taken apart\n");
    if (playing("remote") && comm->calls > 3)
        *state = ncclRemoteError;
    else if (playing("init") || comm->looks-- > 0)
        *state = ncclInProgress;
    else {
        begin_split(comm);
        begin(comm);
        *state = ncclSuccess;
    }
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    comm->looks = LOOKS;
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    MPI_Op_free(&comm->half_sum);
    MPI_Op_free(&comm->half_max);
    MPI_Comm_free(&comm->mpi);
    free(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    fprintf(stderr, "fake NCCL: abort\n");
    if (calls_inside > 0)
        fprintf(stderr, "fake NCCL: taken apart under a call that uses it\n");
    aborts = true;
    while (playing("abort-hangs"))
        sleep(1000);
    pthread_mutex_lock(&lock);
    comm->aborted = true;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* For longer than any time-out, or until the job is being ended. */
static void take_long(void)
{
    for (int tenths = 0; tenths < 300 && !aborts; tenths++)
        usleep(100000);
}

static MPI_Datatype mpi_type(ncclDataType_t type)
{
    switch (type) {
    case ncclFloat32: return MPI_FLOAT;
    case ncclFloat64: return MPI_DOUBLE;
    case ncclInt32: return MPI_INT32_T;
    case ncclInt64: return MPI_INT64_T;
    case ncclFloat16:
    case ncclBfloat16: return MPI_UINT16_T; /* added by combine_halves() */
    }
    return MPI_DATATYPE_NULL;
}

static ncclResult_t enqueue(ncclComm_t comm, char operation, const void *send, void *receive, size_t count,
                            ncclDataType_t type, ncclRedOp_t op, int root, cudaStream_t used)
{
    if (last_error != cudaSuccess)
        return ncclUnhandledCudaError; /* like NCCL, which reports an earlier CUDA error as its own */
    calls_inside++;
    if (playing("slow-call") && comm->calls == 2)
        take_long();
    pthread_mutex_lock(&lock);
    if (comm->started || comm->operation != 0 || (used->comm != NULL && used->comm != comm))
        abort(); /* one at a time, on a stream of its own */
    used->comm = comm;
    comm->calls++;
    collectives++;
    comm->looks = LOOKS;
    comm->operation = operation;
    comm->send = send;
    comm->receive = receive;
    comm->count = (int)count;
    comm->root = root;
    comm->type = mpi_type(type);
    half_dtype = type == ncclFloat16 ? DTYPE_F16 : DTYPE_BF16;
    if (comm->type == MPI_UINT16_T)
        comm->op = op == ncclSum ? comm->half_sum : comm->half_max;
    else
        comm->op = op == ncclSum ? MPI_SUM : MPI_MAX;
    pthread_mutex_unlock(&lock);
    calls_inside--;
    return comm->type == MPI_DATATYPE_NULL ? ncclInvalidArgument : ncclInProgress;
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t used)
{
    return enqueue(comm, 'b', send, receive, count, type, ncclSum, root, used);
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t used)
{
    return enqueue(comm, 'r', send, receive, count, type, op, 0, used);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t used)
{
    return enqueue(comm, 'g', send, receive, count, type, ncclSum, 0, used);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t used)
{
    return enqueue(comm, 's', send, receive, count, type, op, 0, used);
}
