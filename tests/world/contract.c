/* contract.c: runs the rows of a stage's contract. Each row gets a separate process, and draws several modes.
 *
 *   contract_stage3                     all rows
 *   contract_stage3 sums order          these rows
 *   contract_stage3 --list              their sentences
 *   contract_stage3 --times 100 sums    100 modes for each
 *   LOCKSTEP_SEED=17 contract_stage3 sums     the mode of this seed alone: what the message of a failure says
 *   LOCKSTEP_FIRST=1000 contract_stage3 sums    draws modes from this seed on, instead of 1
 *   LOCKSTEP_LOG=1                      prints the log of a row that fails
 *
 * Status 0: all hold, or cannot run in this build; 1: one does not; 2: wrong use. */
#include "world/contract.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "world/memory.h"

/* A row's processor time, and no clock of the wall, so that a busy machine changes nothing. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { PROCESSOR_SECONDS = 400 };
#else
enum { PROCESSOR_SECONDS = 60 };
#endif

enum { NOT_RUN = 77 }; /* exit status of a row */

static const Row *const lists[] = {rows_all, rows_buckets, rows_sharded, rows_faults};
static int times_given;
static const char *program; /* as it was called */
static const Row *running;

/* What ends a row: says in which mode, and how to run it again. */
static void say_mode(void)
{
    char text[400];
    if (trial_mode != NULL) {
        mode_describe(trial_mode, text, sizeof text);
        fprintf(stderr, "  in a job of %s\n", text);
        fprintf(stderr, "  again: LOCKSTEP_SEED=%llu %s %s\n", (unsigned long long)trial_mode->seed, program,
                running->name);
    }
    if (getenv("LOCKSTEP_LOG") != NULL)
        log_print();
    fflush(NULL);
    _exit(1); /* not exit(): the other ranks' threads still hold memory */
}

int run_apart(void (*function)(const Mode *mode), const Mode *mode, char *text, size_t size)
{
    int ends[2], status;
    fflush(NULL);
    CHECK(pipe(ends) == 0, "no pipe for a row");
    const pid_t child = fork();
    CHECK(child >= 0, "no process for a row");
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        function(mode);
        fflush(NULL);
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    char rest[256];
    for (;;) {
        const bool full = used + 1 >= size;
        const ssize_t got = read(ends[0], full ? rest : text + used, full ? sizeof rest : size - 1 - used);
        if (got == 0 || (got < 0 && errno != EINTR))
            break;
        if (got > 0 && !full)
            used += (size_t)got;
    }
    text[used] = '\0';
    close(ends[0]);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        continue;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void row_not_run(void)
{
    _exit(NOT_RUN);
}

/* One row, in this process. */
static void run_row(const Mode *unused)
{
    (void)unused;
    setrlimit(RLIMIT_CPU, &(struct rlimit){PROCESSOR_SECONDS, PROCESSOR_SECONDS});
    stay_on_this_processor();
    job_set_program("contract");
    job_before_abort(say_mode);
    const char *seed = getenv("LOCKSTEP_SEED"), *first = getenv("LOCKSTEP_FIRST");
    const uint64_t begin = seed != NULL ? strtoull(seed, NULL, 10) : first != NULL ? strtoull(first, NULL, 10) : 1;
    const uint64_t count = seed != NULL ? 1 : (uint64_t)(times_given > 0 ? times_given : running->times);
    for (uint64_t s = begin; s < begin + count; s++) {
        Mode mode = mode_draw(ddp_stage_number, s);
        if (running->fix != NULL)
            running->fix(&mode);
        mode_settle(&mode);
        running->run(&mode);
    }
}

static void print_failure(const Row *row, int status, char *text)
{
    printf("FAILED  %-22s %s\n", row->name, row->sentence);
    if (status == 128 + SIGXCPU || status == 128 + SIGKILL)
        printf("        it did not end within %d seconds of a processor: is there a loop that never ends?\n",
               PROCESSOR_SECONDS);
    else if (status > 128)
        printf("        it ended by signal %d (%s): memory was used that is not there, or not there any more\n",
               status - 128, strsignal(status - 128));
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        printf("        %s\n", line);
}

static bool is_wanted(const Row *row, char **names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], row->name) == 0)
            return true;
    return count == 0;
}

static int run_rows(char **names, int count, bool list)
{
    static char text[1 << 20];
    int failed = 0, found = 0;
    for (size_t l = 0; l < sizeof lists / sizeof lists[0]; l++)
        for (const Row *row = lists[l]; row->name != NULL; row++) {
            if (ddp_stage_number < row->first_stage || ddp_stage_number > row->last_stage ||
                !is_wanted(row, names, count))
                continue;
            found++;
            running = row;
            const int status = list ? 0 : run_apart(run_row, NULL, text, sizeof text);
            failed += status != 0 && status != NOT_RUN;
            if (status != 0 && status != NOT_RUN)
                print_failure(row, status, text);
            else
                printf("%s%-22s %s\n", list ? "" : status == NOT_RUN ? "not run " : "passed  ", row->name,
                       row->sentence);
            fflush(stdout);
        }
    if (found < count || found == 0) {
        fprintf(stderr, "contract: error: stage %d has no such row; --list shows them\n", ddp_stage_number);
        return 2;
    }
    return failed > 0;
}

int main(int argc, char **argv)
{
    bool list = false;
    int next = 1;
    program = argv[0];
    heap_count_exactly(argv);
    for (; next < argc && argv[next][0] == '-'; next++)
        if (strcmp(argv[next], "--list") == 0) {
            list = true;
        } else if (strcmp(argv[next], "--times") == 0 && next + 1 < argc && atoi(argv[next + 1]) > 0) {
            times_given = atoi(argv[++next]);
        } else {
            fprintf(stderr, "usage: %s [--list] [--times N] [ROW...]\n", argv[0]);
            return 2;
        }
    return run_rows(argv + next, argc - next, list);
}
