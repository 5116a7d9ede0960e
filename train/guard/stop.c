/* stop.c: when one rank receives SIGTERM or SIGUSR1, all ranks stop after the same step.
 *
 * note: stop
 * The ranks must agree on the step, because a rank that trains on would wait for the others in its next all-reduce. An
 * all-reduce in each step would do, but costs time in each step. Boundary b is the moment before step b. A rank that
 * has received a signal, or another rank's message about one, sends its next boundary to all others, once. At that
 * boundary it waits for the same message from each of them. The run stops at the largest of these numbers: no rank can
 * have passed it, and all ranks know the same numbers. The watchdog's thread answers, so a rank that waits in a
 * collective also answers, and there is no circular wait.
 */
#include "train/guard/guard.h"

#include <pthread.h>
#include <signal.h>

#include "base/check.h"
#include "base/clock.h"
#include "train/guard/parts.h"

#define AGAIN 1.0 /* seconds after which a SIGTERM is a second signal, not another delivery of the first */

enum { BOUNDARY, SIGNAL, NUMBERS }; /* a message of a rank; SIGNAL: 0 if it has received none */

static const int handled[] = {SIGTERM, SIGUSR1};
enum { HANDLED = sizeof handled / sizeof *handled };

static struct sigaction before[HANDLED]; /* the earlier handlers */
static volatile sig_atomic_t got;        /* the first signal that this rank has received; 0: none */
static volatile double got_term;         /* time of the first SIGTERM; 0: none. Used by the handler alone */

static struct {
    pthread_mutex_t lock; /* guards the rest */
    long next;            /* the next boundary of the training thread */
    long announced[NUMBERS]; /* of this rank; static: must outlive the messages */
    bool has_announced;
    int heard;            /* number of ranks whose boundaries are known, including this one */
    long boundary;        /* the largest of these boundaries */
    int signal;           /* that one of them has received */
    double timeout;
} stop = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A signal to a whole process group is delivered twice, because the rank's parent forwards it. */
static void handle_signal(int signal_number)
{
    const double now = now_seconds();
    if (got == 0)
        got = signal_number;
    if (signal_number != SIGTERM)
        return;
    if (got_term == 0)
        got_term = now;
    else if (now - got_term >= AGAIN) {
        signal(SIGTERM, SIG_DFL);
        raise(SIGTERM); /* ends this process when the handler returns */
    }
}

static void record_boundary(const long numbers[NUMBERS])
{
    stop.heard++;
    stop.boundary = numbers[BOUNDARY] > stop.boundary ? numbers[BOUNDARY] : stop.boundary;
    stop.signal = numbers[SIGNAL] != 0 ? (int)numbers[SIGNAL] : stop.signal;
}

static void receive(void)
{
    int rank;
    long numbers[NUMBERS];
    while (message_receive(control_communicator(), TAG_STOP, &rank, numbers, NUMBERS))
        record_boundary(numbers);
}

static void announce_boundary(void)
{
    if (stop.has_announced)
        return;
    stop.has_announced = true;
    stop.announced[BOUNDARY] = stop.next;
    stop.announced[SIGNAL] = got;
    record_boundary(stop.announced);
    for (int rank = 0; rank < job_world_size(); rank++)
        if (rank != job_rank())
            message_send(control_communicator(), rank, TAG_STOP, stop.announced, NUMBERS);
}

void stop_answer(void)
{
    pthread_mutex_lock(&stop.lock);
    receive();
    if (stop.heard > 0)
        announce_boundary();
    pthread_mutex_unlock(&stop.lock);
}

/* Counts its sleeps, because the time in which this process is suspended is no waiting time. */
static void wait_for_all_ranks(void)
{
    const double pause = 1e-3;
    for (double waited = 0; stop.heard < job_world_size(); waited += pause) {
        CHECK(waited < stop.timeout, "cannot stop: a rank received signal %d, but only %d of %d ranks have announced "
              "their step in %g s (--timeout): is one of them suspended?", stop.signal, stop.heard,
              job_world_size(), stop.timeout);
        pthread_mutex_unlock(&stop.lock);
        sleep_seconds(pause);
        pthread_mutex_lock(&stop.lock);
        receive();
    }
}

void stop_on_signals(long first_step, double timeout)
{
    struct sigaction action = {.sa_handler = handle_signal, .sa_flags = SA_RESTART};
    pthread_mutex_lock(&stop.lock);
    stop.next = first_step;
    stop.timeout = timeout;
    pthread_mutex_unlock(&stop.lock);
    for (int i = 0; i < HANDLED; i++)
        sigaction(handled[i], &action, &before[i]);
}

int stop_is_due(long step)
{
    pthread_mutex_lock(&stop.lock);
    if (got != 0 || stop.heard > 0) {
        announce_boundary();
        wait_for_all_ranks();
    }
    const bool due = stop.heard > 0 && step == stop.boundary;
    stop.next = step + 1;
    const int signal_number = stop.signal;
    pthread_mutex_unlock(&stop.lock);
    return due ? signal_number : 0;
}

void stop_restore_signals(void)
{
    for (int i = 0; i < HANDLED; i++)
        sigaction(handled[i], &before[i], NULL);
}
