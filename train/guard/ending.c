/* ending.c: how the ranks of a job end together, and what they tell each other beside their collectives. */
#include "train/guard/parts.h"

#include <mpi.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "comm/backend.h"

/* Used only to end the job together and for news of own work. No collective of a group runs on it, so it does not hang
 * with them. */
static MPI_Comm ending_comm;

/* die() may end MPI while the watchdog still runs. The watchdog must not call MPI after that. */
static pthread_mutex_t receiving = PTHREAD_MUTEX_INITIALIZER;
static bool mpi_has_ended; /* guarded by `receiving` */
static bool is_ending;     /* the same: no more news of own work is sent, because no rank would receive it */

#define WORTH_TELLING 10000 /* microseconds */

/* For each rank: what it was last told of this rank's own work. Owned. */
static struct Told {
    long microseconds; /* unchanged until the request is done */
    MPI_Request request;
} *told;

/* ---- MPI's part of base/check.h ---- */

void own_work_news_end(void)
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
    own_work_news_end();
    MPI_Ibarrier(ending_comm, &request);
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

/* The launcher ends all processes at once. Wait a moment, so that it can forward this rank's last line before.
 * MPI_Abort ends with exit(), where a library may hang: OpenBLAS waits there for its thread, and this thread for
 * memory. So SIGALRM ends the process after 2 seconds. */
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
 * already in the launcher's barrier, and receives no more. All ranks have met before and have nothing left to do, so
 * this rank exits without MPI_Finalize. MPICH's launcher takes a rank that exits without notice for a failed one, and
 * kills the others. So this function sends the notice that MPI_Finalize would send. */
static void exit_without_finalize(int signal_number)
{
    static const char note[] = "note: MPI_Finalize has not returned within 10 s; nothing is left to do: exiting\n";
    (void)signal_number;
    ssize_t written = write(STDERR_FILENO, note, sizeof note - 1);
    (void)written;
    launcher_tell("cmd=finalize\n");
    sleep(1); /* until all ranks are here: a rank that still tests its connections would report ours as lost */
    job_end_is_explained();
    _exit(job_status());
}

static void limit_finalize(void)
{
    signal(SIGALRM, exit_without_finalize);
    alarm(10);
}

/* ---- messages that nobody waits for ---- */

MPI_Comm ending_communicator(void)
{
    return ending_comm;
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

void own_work_announce(double seconds)
{
    const long microseconds = (long)(1e6 * seconds);
    pthread_mutex_lock(&receiving);
    for (int rank = 0; rank < job_world_size() && !is_ending; rank++) {
        int is_sent = 0;
        if (rank == job_rank() || microseconds - told[rank].microseconds < WORTH_TELLING ||
            MPI_Test(&told[rank].request, &is_sent, MPI_STATUS_IGNORE) != MPI_SUCCESS || !is_sent)
            continue;
        told[rank].microseconds = microseconds;
        CHECK_MPI(MPI_Isend(&told[rank].microseconds, 1, MPI_LONG, rank, TAG_OWN_WORK, ending_comm,
                            &told[rank].request));
    }
    pthread_mutex_unlock(&receiving);
}

bool own_work_was_announced(int *rank, double *seconds)
{
    long microseconds = 0;
    bool announced = message_receive(ending_comm, TAG_OWN_WORK, rank, &microseconds, 1);
    *seconds = 1e-6 * (double)microseconds;
    return announced;
}

/* ---- the start and the end of a job ---- */

/* On every rank, when all have arrived. No rank sends any more, and MPI may complain about messages that are left. */
static void leave(void)
{
    int rank;
    double seconds;
    limit_finalize();
    while (own_work_was_announced(&rank, &seconds))
        ;
    stop_answer();
    pthread_mutex_lock(&receiving);
    mpi_has_ended = true;
    pthread_mutex_unlock(&receiving);
    for (rank = 0; rank < job_world_size(); rank++)
        MPI_Wait(&told[rank].request, MPI_STATUS_IGNORE);
    free(told);
    MPI_Comm_free(&ending_comm);
    job_set((Job){.rank = job_rank(), .world_size = job_world_size()});
    MPI_Finalize();
    alarm(0);
    job_end_is_explained();
}

void ending_open(void)
{
    CHECK_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &ending_comm));
    told = alloc_or_fault((size_t)job_world_size() * sizeof *told);
    for (int rank = 0; rank < job_world_size(); rank++)
        told[rank].request = MPI_REQUEST_NULL;
    job_set((Job){job_rank(), job_world_size(), all_ranks_arrive, leave, abort_all});
}
