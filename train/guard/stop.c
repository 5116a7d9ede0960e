/* stop.c: when one rank gets SIGTERM or SIGUSR1, all ranks stop after the same step.
 *
 * note: stop
 * The ranks must agree on the step, because a rank that trains on would wait for the others in its next all-reduce. An
 * all-reduce of one number per step could tell them, but here no step pays for it. Boundary b is the moment before step
 * b. A rank that has got a signal, or has heard of one, tells all others, once, at which boundary it will be next. When
 * it comes there, it waits until it has heard the same of all of them. The run stops at the largest of these numbers:
 * no rank can have passed it, and all ranks know the same numbers. The watchdog's thread answers, so a rank that waits
 * in a collective answers, too, and nobody waits in a circle.
 */
#include "train/guard/guard.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "train/guard/parts.h"

#define AGAIN 1.0 /* seconds after which another SIGTERM is a second one, and not the first one by another way */

enum { BOUNDARY, SIGNAL, NUMBERS }; /* what a rank tells the others; SIGNAL is 0 if it has got none */

static const int handled[] = {SIGTERM, SIGUSR1};
enum { HANDLED = sizeof handled / sizeof *handled };

static struct sigaction before[HANDLED]; /* how these signals were handled before */
static volatile sig_atomic_t got;        /* the signal that this rank has got first; 0: none */
static volatile double got_term;         /* time of the first SIGTERM; 0: none. Used by the handler alone */

static struct {
    pthread_mutex_t lock; /* guards all below */
    long next;            /* the boundary at which the training thread will be next */
    long told[NUMBERS];   /* of this rank; static, because it must outlive the messages */
    bool has_told;
    int heard;            /* ranks whose boundaries are known, with this one */
    long boundary;        /* the largest of them */
    int signal;           /* that one of them has got */
    double timeout;
} stop = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* A signal that goes to a whole process group comes twice: the rank's parent forwards it, too. */
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

static void hear(const long numbers[NUMBERS])
{
    stop.heard++;
    stop.boundary = numbers[BOUNDARY] > stop.boundary ? numbers[BOUNDARY] : stop.boundary;
    stop.signal = numbers[SIGNAL] != 0 ? (int)numbers[SIGNAL] : stop.signal;
}

static void receive(void)
{
    int rank;
    long numbers[NUMBERS];
    while (message_receive(ending_communicator(), TAG_STOP, &rank, numbers, NUMBERS))
        hear(numbers);
}

static void tell(void)
{
    if (stop.has_told)
        return;
    stop.has_told = true;
    stop.told[BOUNDARY] = stop.next;
    stop.told[SIGNAL] = got;
    hear(stop.told);
    for (int rank = 0; rank < job_world_size(); rank++)
        if (rank != job_rank())
            message_send(ending_communicator(), rank, TAG_STOP, stop.told, NUMBERS);
}

void stop_answer(void)
{
    pthread_mutex_lock(&stop.lock);
    receive();
    if (stop.heard > 0)
        tell();
    pthread_mutex_unlock(&stop.lock);
}

/* The time in which this process is suspended does not count as waiting. */
static void wait_for_all_ranks(void)
{
    const double pause = 1e-3;
    for (double waited = 0; stop.heard < job_world_size(); waited += pause) {
        CHECK(waited < stop.timeout, "is to stop, because a rank has got signal %d, but only %d of %d ranks have said "
              "in %g s at which step they are (--timeout): is one of them suspended?", stop.signal, stop.heard,
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
        tell();
        wait_for_all_ranks();
    }
    const bool due = stop.heard > 0 && step == stop.boundary;
    stop.next = step + 1;
    const int signal_number = stop.signal;
    pthread_mutex_unlock(&stop.lock);
    return due ? signal_number : 0;
}

void stop_no_more(void)
{
    for (int i = 0; i < HANDLED; i++)
        sigaction(handled[i], &before[i], NULL);
}
