/* supervise.c: a parent process for each rank, which reports the rank's death if the rank cannot.
 *
 * note: supervise
 * A rank that is killed (kill -9, out of memory, a crash) prints nothing, and the launcher ends the other ranks before
 * they notice: the user only sees a process number. So each rank runs as the child of a small parent process. If the
 * child ends by a signal, or exits without a message (because a library calls exit()), the parent names the rank, tells
 * the launcher to end the job, and exits. If the parent is killed, the system signals the child, which does the same.
 * If the launcher is killed, the system signals the parent, which ends its child and itself. No process is left.
 */
#include "train/guard/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "train/guard/parts.h"

#define THREADS 4 /* that a rank needs: MPI's, the watchdog, the communication thread, the loader */

/* This process's rank, by its launcher (MPICH, Open MPI or Slurm); NULL without a launcher. */
static const char *launched_rank(void)
{
    static const char *const variables[] = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i]) != NULL)
            return getenv(variables[i]);
    return NULL;
}

static pid_t child;
static struct Shared {
    atomic_bool end_is_explained; /* the child has printed why it ends, or has ended regularly */
    char group[80];               /* of the child's last collective; "": it has called none */
    long sequence;                /* the number of this collective */
} *shared; /* with the child */
static volatile sig_atomic_t ended_by_launcher; /* because another rank has failed and printed why */

void launcher_send(const char *words)
{
    const char *connection = getenv("PMI_FD");
    ssize_t written = connection != NULL ? write(atoi(connection), words, strlen(words)) : 0;
    (void)written;
}

/* note: early-end
 * A rank may die before it calls MPI_Init. MPICH's launcher then takes it for a program without MPI, which may end at
 * any time, and the other ranks wait in their MPI_Init for ever. So this function asks the launcher, in its own
 * protocol, to end the job. The pauses give the launcher time to forward this rank's output, and then to act. */
static _Noreturn void end_job(void)
{
    sleep_seconds(0.2);
    launcher_send("cmd=abort exitcode=1\n");
    sleep_seconds(0.5);
    _exit(1);
}

static _Noreturn __attribute__((format(printf, 1, 2))) void report_and_end(const char *format, ...)
{
    char line[300];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    ssize_t written = write(STDERR_FILENO, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
    (void)written;
    end_job();
}

static void forward_signal(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    ended_by_launcher = info->si_pid == getppid();
    if (child <= 0) /* the child has ended; kill(0) would signal all our processes */
        return;
    kill(child, signal_number);
    if (signal_number != SIGUSR1)
        kill(child, SIGCONT); /* a stopped process handles no signal until it continues */
}

static _Noreturn void wait_for_child(const char *rank)
{
    static const int forwarded[] = {SIGTERM, SIGINT, SIGUSR1};
    const struct sigaction action = {.sa_sigaction = forward_signal, .sa_flags = SA_SIGINFO};
    int status = 0;
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        sigaction(forwarded[i], &action, NULL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    bool has_said_all = WIFEXITED(status) && atomic_load(&shared->end_is_explained);
    if (has_said_all && (code <= 2 || code == STOPPED_STATUS)) /* if not 0, it has printed the reason */
        _exit(code);
    const int dead = (int)child;
    child = 0;
    if (WIFEXITED(status) && !has_said_all)
        sleep_seconds(0.2); /* if another rank's end is the cause, the launcher also signals us */
    if (ended_by_launcher)
        _exit(1);
    if (WIFEXITED(status))
        report_and_end("train: fault: rank %s (process %d) ended with status %d%s\n", rank, dead, code,
                       has_said_all ? "" : " before its work was done, without a message");
    char last[120] = "";
    if (shared->group[0] != '\0')
        snprintf(last, sizeof last, " in or after collective number %ld of %s", shared->sequence, shared->group);
    report_and_end("train: fault: rank %s (process %d) was ended by signal %d (%s)%s%s\n", rank, dead, WTERMSIG(status),
                   strsignal(WTERMSIG(status)), last,
                   WTERMSIG(status) == SIGBUS ? ": is there room in /dev/shm (df /dev/shm)?" : "");
}

/* MPI_Init would print many lines about this. A rank that is alone on its host shares no memory. */
static void check_memory_can_be_shared(const char *rank)
{
    const char *ranks_here = getenv("MPI_LOCALNRANKS"), *rank_here = getenv("MPI_LOCALRANKID");
    if (ranks_here == NULL || atoi(ranks_here) < 2 || access("/dev/shm", W_OK | X_OK) == 0 ||
        access("/tmp", W_OK | X_OK) == 0)
        return;
    if (rank_here != NULL && atoi(rank_here) > 0)
        end_job(); /* one line for a host is enough */
    report_and_end("train: fault: rank %s: MPI keeps the memory that ranks of a host share in /dev/shm, or else in "
                   "/tmp, but neither can be written: make one of them writable\n", rank);
}

static void notify_parent(void)
{
    if (shared != NULL)
        atomic_store(&shared->end_is_explained, true);
}

void supervise_last_call(const char *group, long sequence)
{
    if (shared == NULL)
        return;
    if (strcmp(shared->group, group) != 0)
        snprintf(shared->group, sizeof shared->group, "%s", group);
    shared->sequence = sequence;
}

static char orphaned[120]; /* printed when the parent of this process was killed */

/* SIGUSR2: the parent of this process was killed: for the rank our parent process, for that process the launcher. */
static void end_orphaned(int signal_number)
{
    (void)signal_number;
    if (child > 0)
        kill(child, SIGKILL);
    ssize_t written = write(STDERR_FILENO, orphaned, strlen(orphaned));
    (void)written;
    end_job();
}

/* Makes the system call end_orphaned() when the process `parent` ends. */
static void end_with_parent(const char *rank, pid_t parent, const char *whose)
{
    snprintf(orphaned, sizeof orphaned, "train: fault: rank %s (process %d) ends: %s, process %d, was killed\n", rank,
             (int)getpid(), whose, (int)parent);
    signal(SIGUSR2, end_orphaned);
    prctl(PR_SET_PDEATHSIG, SIGUSR2);
    if (getppid() != parent) /* it died before prctl() */
        end_job();
}

static void *wait_for(void *held)
{
    pthread_mutex_lock(held);
    pthread_mutex_unlock(held);
    return NULL;
}

/* MPI_Init would report a limit on the user's threads in many lines, or not at all. */
static void check_threads_can_start(const char *rank)
{
    pthread_t threads[THREADS];
    pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
    int started = 0;
    pthread_mutex_lock(&held);
    while (started < THREADS && pthread_create(&threads[started], NULL, wait_for, &held) == 0)
        started++;
    pthread_mutex_unlock(&held);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (started == THREADS)
        return;
    notify_parent();
    report_and_end("train: fault: rank %s: the system allows %d more thread(s), and a rank needs %d: raise the limit "
                   "(ulimit -u, or a container's pids.max)\n", rank, started, THREADS);
}

static void end_as_by_signal(int signal_number)
{
    _exit(128 + signal_number); /* as a shell reports it */
}

/* note: process-1
 * A container's first process has the number 1. The system does not deliver signals to it that it does not handle, so
 * `docker stop` would wait and then kill it. (MPICH's launcher handles them, and so does the parent of a rank.) */
static void handle_signals_as_process_1(void)
{
    static const int ending[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    for (size_t i = 0; getpid() == 1 && i < sizeof ending / sizeof *ending; i++)
        signal(ending[i], end_as_by_signal);
}

void supervise_rank(void)
{
    const char *rank = launched_rank();
    if (rank == NULL) {
        handle_signals_as_process_1();
        check_threads_can_start("0");
        return;
    }
    /* Without PMI_FD, the parent may be a shell, which may end while its background jobs continue. */
    if (getenv("PMI_FD") != NULL)
        end_with_parent(rank, getppid(), "its launcher");
    check_memory_can_be_shared(rank);
    pid_t parent = getpid();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED, "mmap: %s", strerror(errno));
    child = fork();
    if (child < 0)
        report_and_end("train: fault: rank %s: the system allows no more processes (%s): raise the limit (ulimit -u, "
                       "or a container's pids.max)\n", rank, strerror(errno));
    if (child > 0)
        wait_for_child(rank);
    job_on_explained_end(notify_parent);
    end_with_parent(rank, parent, "its parent");
    check_threads_can_start(rank);
}
