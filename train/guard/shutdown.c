/* shutdown.c: ends the ranks of a job together, and sends control messages beside their collectives. */
#include "train/guard/parts.h"

#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/backend.h"

/* No collective of a group runs on it, so it does not hang with them. */
static MPI_Comm control_comm;

/* die() may end MPI while the watchdog still runs. The watchdog must not call MPI after that. */
static pthread_mutex_t receiving = PTHREAD_MUTEX_INITIALIZER;
static bool mpi_has_ended; /* guarded by `receiving` */
static bool is_ending;     /* the same: local work is no longer announced, because no rank would receive it */

#define WORTH_SENDING 10000 /* microseconds */

static struct Announced { /* by rank: the latest message to it about local work; owned */
    long microseconds; /* unchanged until the request is done */
    MPI_Request request;
} *announced;

void local_work_stop_sending(void)
{
    pthread_mutex_lock(&receiving);
    is_ending = true;
    pthread_mutex_unlock(&receiving);
}

static bool all_ranks_arrive(double seconds)
{
    MPI_Request request;
    int done = 0;
    double deadline = now_seconds() + seconds;
    local_work_stop_sending();
    MPI_Ibarrier(control_comm, &request);
    for (;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done || now_seconds() > deadline)
            return done;
        sleep_seconds(1e-3);
    }
}

static void exit_at_once(int signal_number)
{
    (void)signal_number;
    _exit(job_status());
}

/* Waits a moment, so that the launcher can forward this rank's last line before it ends all processes. MPI_Abort calls
 * exit(), where a library may hang: OpenBLAS waits for its thread, and this thread for memory. Hence SIGALRM. */
static void abort_all(int status)
{
    job_set_status(status);
    signal(SIGALRM, exit_at_once);
    alarm(2);
    sleep_seconds(0.1);
    MPI_Abort(MPI_COMM_WORLD, status);
}

/* note: finalize
 * MPICH 4.0 over UCX's TCP may hang in MPI_Finalize: one rank waits until its messages are sent, but the other rank is
 * already in the launcher's barrier, and no longer receives. All ranks have nothing left to do, so this rank exits
 * without MPI_Finalize. MPICH's launcher would treat a rank that exits without notice as failed, and kill the others.
 * So this function sends the notice that MPI_Finalize would send. */
static void exit_without_finalize(int signal_number)
{
    static const char note[] = "note: MPI_Finalize has not returned within 10 s; nothing is left to do: exiting\n";
    (void)signal_number;
    ssize_t written = write(STDERR_FILENO, note, sizeof note - 1);
    (void)written;
    launcher_send("cmd=finalize\n");
    sleep(1); /* until all ranks are here: a rank that still uses its connections would report ours as lost */
    job_end_is_explained();
    _exit(job_status());
}

MPI_Comm control_communicator(void)
{
    return control_comm;
}

void message_send(MPI_Comm comm, int to, int tag, const long *numbers, int count)
{
    MPI_Request request;
    pthread_mutex_lock(&receiving);
    if (!mpi_has_ended && MPI_Isend(numbers, count, MPI_LONG, to, tag, comm, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
    pthread_mutex_unlock(&receiving);
}

bool message_receive(MPI_Comm comm, int tag, int *source, long *numbers, int count)
{
    int waiting = 0;
    MPI_Status status;
    pthread_mutex_lock(&receiving);
    bool received = !mpi_has_ended && MPI_Iprobe(MPI_ANY_SOURCE, tag, comm, &waiting, &status) == MPI_SUCCESS &&
                    waiting && MPI_Recv(numbers, count, MPI_LONG, status.MPI_SOURCE, tag, comm, MPI_STATUS_IGNORE) ==
                        MPI_SUCCESS;
    pthread_mutex_unlock(&receiving);
    if (received)
        *source = status.MPI_SOURCE;
    return received;
}

void local_work_announce(double seconds)
{
    const long microseconds = (long)(1e6 * seconds);
    pthread_mutex_lock(&receiving);
    for (int rank = 0; rank < job_world_size() && !is_ending; rank++) {
        int is_sent = 0;
        if (rank == job_rank() || microseconds - announced[rank].microseconds < WORTH_SENDING ||
            MPI_Test(&announced[rank].request, &is_sent, MPI_STATUS_IGNORE) != MPI_SUCCESS || !is_sent)
            continue;
        announced[rank].microseconds = microseconds;
        CHECK_MPI(MPI_Isend(&announced[rank].microseconds, 1, MPI_LONG, rank, TAG_LOCAL_WORK, control_comm,
                            &announced[rank].request));
    }
    pthread_mutex_unlock(&receiving);
}

bool local_work_was_announced(int *rank, double *seconds)
{
    long microseconds = 0;
    bool received = message_receive(control_comm, TAG_LOCAL_WORK, rank, &microseconds, 1);
    *seconds = 1e-6 * (double)microseconds;
    return received;
}

/* Called on every rank when all have arrived. Receives the pending messages, because MPI may complain about them. */
static void leave(void)
{
    int rank;
    double seconds;
    signal(SIGALRM, exit_without_finalize);
    alarm(10);
    while (local_work_was_announced(&rank, &seconds))
        ;
    stop_answer();
    pthread_mutex_lock(&receiving);
    mpi_has_ended = true;
    pthread_mutex_unlock(&receiving);
    for (rank = 0; rank < job_world_size(); rank++)
        MPI_Wait(&announced[rank].request, MPI_STATUS_IGNORE);
    free(announced);
    MPI_Comm_free(&control_comm);
    job_set((Job){.rank = job_rank(), .world_size = job_world_size()});
    MPI_Finalize();
    alarm(0);
    job_end_is_explained();
}

void shutdown_open(void)
{
    CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &control_comm));
    announced = alloc_or_fault((size_t)job_world_size() * sizeof *announced);
    for (int rank = 0; rank < job_world_size(); rank++)
        announced[rank].request = MPI_REQUEST_NULL;
    job_set((Job){job_rank(), job_world_size(), all_ranks_arrive, leave, abort_all});
}
