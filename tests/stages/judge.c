/* judge.c: see judge.h: two processes, and what passes between them. */
#include "judge.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "judge_parts.h"

bool judge_runs_cases, judge_left_out;
static int channel = -1; /* to the other process; -1: there is none */
static pid_t child;      /* in the judge: the process with the submission; else 0 */
static int secrets_to;   /* in the judge: where it prints */
static char *secrets;    /* in the judge: those of the cases to come, a line each */
static bool grades;      /* judge_start() was called, on any rank */
static uint64_t drawn;   /* by the judge, for this case */
static int complaint;    /* in the judge: a file in memory, what its own comparisons have printed */

bool in_judge(void)
{
    return child > 0;
}

bool judge_grades(void)
{
    return grades;
}

uint64_t judge_number(void)
{
    return drawn;
}

/* ---- the judge's end ---- */

_Noreturn void judge_end(bool found_wrong)
{
    int status = 0;
    char text[512];
    ssize_t length;
    close(channel); /* a child that still sends goes on without a judge */
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    if (WEXITSTATUS(status) != 0 || !found_wrong)
        _exit(WEXITSTATUS(status));
    lseek(complaint, 0, SEEK_SET);
    while ((length = read(complaint, text, sizeof text)) > 0)
        if (write(secrets_to, text, (size_t)length) < 0)
            break;
    _exit(1);
}

static void on_abort(int signal_number)
{
    (void)signal_number;
    judge_end(true);
}

static void on_exit_of_judge(void)
{
    judge_end(true);
}

/* ---- the channel ---- */

static bool transfer(void *bytes, size_t count, bool sends)
{
    for (size_t done = 0; done < count;) {
        char *at = (char *)bytes + done;
        const ssize_t part = sends ? send(channel, at, count - done, MSG_NOSIGNAL) : recv(channel, at, count - done, 0);
        if (part <= 0 && !(part < 0 && errno == EINTR))
            return false;
        done += part > 0 ? (size_t)part : 0;
    }
    return true;
}

typedef struct Record {
    uint64_t kind, bytes;
} Record;

void judge_pass(uint64_t kind, void *bytes, size_t count)
{
    const Record mine = {kind, count};
    Record record = mine;
    if (channel < 0)
        return;
    if (!in_judge()) {
        if (!transfer(&record, sizeof record, true) || !transfer(bytes, count, true)) {
            close(channel); /* the judge has found something wrong; this process may find it, too, and say it better */
            channel = -1;
        }
        return;
    }
    if (!transfer(&record, sizeof record, false))
        judge_end(false);
    if (memcmp(&record, &mine, sizeof mine) != 0 || !transfer(bytes, count, false)) {
        dprintf(complaint, "ERROR: the test has not reported what it should have got from ddp.c\n");
        judge_end(true);
    }
}

void judge_draw(void)
{
    if (channel < 0)
        return;
    const bool there = !in_judge() || getrandom(&drawn, sizeof drawn, 0) == (ssize_t)sizeof drawn;
    if (there && transfer(&drawn, sizeof drawn, in_judge()))
        return;
    if (in_judge())
        judge_end(false);
    close(channel);
    channel = -1;
}

/* The child must repeat a number that it gets only now: so nothing that was written to the channel before, in any way,
 * ends a case. */
void judge_case_is_over(const char *name)
{
    uint64_t repeated;
    char what[128] = "";
    snprintf(what, sizeof what, "%s", name);
    judge_left_out = false;
    judge_pass(SAYS_OVER, what, sizeof what);
    judge_draw();
    repeated = drawn;
    judge_pass(ASKS_BACK, &repeated, sizeof repeated);
    if (!in_judge())
        return;
    if (repeated != drawn || strncmp(what, name, sizeof what) != 0) {
        dprintf(complaint, "ERROR: the test has not reported the end of %s\n", name);
        judge_end(true);
    }
    const size_t length = strcspn(secrets, "\n");
    if (length > 0)
        dprintf(secrets_to, "\npassed: %s %.*s\n", name, (int)length, secrets);
    secrets += length + (secrets[length] == '\n');
}

/* ---- two processes ---- */

static bool is_rank_0(void)
{
    static const char *const variables[] = {"PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (getenv(variables[i]) != NULL)
            return strcmp(getenv(variables[i]), "0") == 0;
    return true;
}

/* Its own comparisons print to memory, because its stdout is not read. */
static void become_judge(void)
{
    const int nothing = open("/dev/null", O_WRONLY);
    secrets_to = dup(STDOUT_FILENO);
    complaint = memfd_create("complaint", 0);
    CHECK(nothing >= 0 && secrets_to >= 0 && complaint >= 0, "no descriptor: %s", strerror(errno));
    dup2(nothing, STDOUT_FILENO);
    dup2(complaint, STDERR_FILENO);
    setenv("CMOCKA_TEST_ABORT", "1", 1);
    signal(SIGABRT, on_abort);
    atexit(on_exit_of_judge);
}

/* What has been read from a pipe is no longer there. The child waits until then. */
static void read_secrets(void)
{
    static char text[1 << 14];
    const char *path = getenv("LOCKSTEP_TEST_SECRETS");
    const int from = path != NULL ? open(path, O_RDONLY) : -1;
    CHECK(path == NULL || (from >= 0 && read(from, text, sizeof text - 1) >= 0), "%s: %s", path, strerror(errno));
    close(from);
    secrets = text;
    CHECK(transfer((char[]){1}, 1, true), "the test has ended before it began");
}

void judge_start(void)
{
    int ends[2];
    const pid_t parent = getpid();
    grades = true;
    if (!is_rank_0())
        return;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "no socket: %s", strerror(errno));
    prctl(PR_SET_DUMPABLE, 0); /* the child, of the same user, cannot look into this process */
    child = fork();
    CHECK(child >= 0, "fork: %s", strerror(errno));
    channel = ends[child > 0];
    close(ends[child == 0]);
    if (child > 0) {
        become_judge();
        read_secrets();
        return;
    }
    prctl(PR_SET_DUMPABLE, 1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || !transfer((char[1]){0}, 1, false))
        _exit(1);
}
