/* supervise.c: a parent for each rank. */
#include "dist/supervise.h"

#include <errno.h>
#include <signal.h>
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

/* This process's rank as its launcher numbers it, or NULL without a launcher. MPICH's, Open MPI's and Slurm's. */
static const char *launched_rank(void)
{
    static const char *const variables[] = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i]) != NULL)
            return getenv(variables[i]);
    return NULL;
}

static pid_t child;
static atomic_bool *accounted_for; /* memory of both: the child says there that its end is accounted for */
static volatile sig_atomic_t ended_by_launcher; /* as another rank has ended with an error: that one has said why */

/* What the parent is told (to end) is meant for the rank. */
static void pass_on(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    ended_by_launcher = info->si_pid == getppid();
    if (child <= 0) /* it has ended already; and 0 would mean every process of ours */
        return;
    kill(child, signal_number);
    if (signal_number != SIGUSR1)
        kill(child, SIGCONT); /* a stopped process takes no other signal */
}

static _Noreturn void wait_for_child(const char *rank)
{
    static const int passed_on[] = {SIGTERM, SIGINT, SIGUSR1};
    const struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO};
    int status = 0;
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        sigaction(passed_on[i], &action, NULL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    bool has_said_all = WIFEXITED(status) && atomic_load(accounted_for);
    if (has_said_all && code <= 2) /* 0; or 1 or 2, and it has said why */
        _exit(code);
    const int dead = (int)child;
    child = 0;
    if (WIFEXITED(status) && !has_said_all)
        sleep_seconds(0.2); /* an MPI may end this rank as another one has ended: then the launcher comes for us, too */
    if (ended_by_launcher)
        _exit(1);
    char line[160];
    int length = WIFEXITED(status)
                     ? snprintf(line, sizeof line, "train: fault: rank %s (process %d) ended with status %d%s\n", rank,
                                dead, code, has_said_all ? "" : " before its work was done, and did not say why")
                     : snprintf(line, sizeof line, "train: fault: rank %s (process %d) was ended by signal %d (%s)\n",
                                rank, dead, WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (write(STDERR_FILENO, line, (size_t)length) < 0)
        _exit(1);
    sleep_seconds(0.2); /* so that the launcher has passed the line on before it ends everything */
    _exit(1);
}

static void tell_parent(void)
{
    atomic_store(accounted_for, true);
}

/* The rank's own line on the end of its parent: only the rank is left to say it. */
static char orphaned[120];

static void end_orphaned(int signal_number)
{
    (void)signal_number;
    ssize_t written = write(STDERR_FILENO, orphaned, strlen(orphaned));
    (void)written;
    _exit(1);
}

void supervise_rank(void)
{
    const char *rank = launched_rank();
    if (rank == NULL)
        return;
    pid_t parent = getpid();
    accounted_for = mmap(NULL, sizeof *accounted_for, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(accounted_for != MAP_FAILED, "mmap: %s", strerror(errno));
    child = fork();
    CHECK(child >= 0, "fork: %s", strerror(errno));
    if (child > 0)
        wait_for_child(rank);
    job_when_accounted_for(tell_parent);
    snprintf(orphaned, sizeof orphaned, "train: fault: rank %s (process %d) ends: its parent, process %d, was killed\n",
             rank, (int)getpid(), (int)parent);
    signal(SIGUSR2, end_orphaned);
    prctl(PR_SET_PDEATHSIG, SIGUSR2);
    if (getppid() != parent) /* it died before prctl() could tell us */
        _exit(1);
}
