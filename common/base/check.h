/* check.h: how the program ends when something is wrong.
 *
 * Interface:
 *   die("--lr: ...")             a user's mistake: one line from rank 0, all ranks end with status 2
 *   FAULT("all_reduce ...")      a fault at run time: names rank, step and place, and ends all ranks with status 1
 *   CHECK(condition, "...")      FAULT unless the condition holds (invariants; stays on in Release)
 *   alloc_or_fault(bytes)        zeroed memory, 64-byte aligned; free() it
 *
 * base/ does not use MPI. The process group tells it with job_set() which rank this is, and how to end all ranks.
 */
#ifndef LOCKSTEP_BASE_CHECK_H
#define LOCKSTEP_BASE_CHECK_H

#include <stdbool.h>
#include <stddef.h>

typedef struct Job {
    int rank;       /* 0 until job_set() */
    int world_size; /* 1 until job_set() */
    /* The functions are NULL without MPI, as in tests without a process group. */
    bool (*all_ranks_arrive)(double seconds); /* waits for all ranks to call it; false: one did not within `seconds` */
    void (*leave)(void);                      /* ends MPI on this rank: see job_leave() */
    void (*abort_all)(int status);            /* ends all ranks' processes at once */
} Job;

void job_set(Job job);
void job_leave(void); /* ends MPI on this rank, if it runs; call it on every rank */

/* Calls `action` once before the job aborts, on the thread that aborts it; NULL: no call. Use it to stop work that
 * would keep the process alive. It must not block for long. */
void job_before_abort(void (*action)(void));

/* note: explained-end
 * A process's exit is explained if the process has printed an error or has finished its work. The exit status does not
 * show this, because a library may call exit(0) or exit(1). So the process reports it to its parent
 * (train/guard/supervise.c): job_end_is_explained() calls `action`, on any thread, also in a signal handler, and
 * perhaps more than once. */
void job_on_explained_end(void (*action)(void));
void job_end_is_explained(void);

int job_rank(void);
int job_world_size(void);

/* The exit status with which this rank will end; 0 unless set. */
void job_set_status(int status);
int job_status(void);

/* The name at the start of each error ("train"), and the step that errors name. step < 0: not in a step. `name` must
 * stay valid. */
void job_set_program(const char *name);
void job_set_step(long step);

/* Reports a mistake of the user: in flags, in files, or in the data. Usually every rank makes the same mistake, so rank
 * 0 prints "PROGRAM: error: MESSAGE" for all. If only one rank has a problem, for example a file that is missing on one
 * host, this rank prints its own line after a short wait. Exit status 2. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Reports a fault at run time. Prints "PROGRAM: fault: rank R, step S: MESSAGE (FILE:LINE)" and ends all ranks with
 * status 1. Use the macros. */
_Noreturn void fault_at(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define FAULT(...) fault_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition, ...) ((condition) ? (void)0 : fault_at(__FILE__, __LINE__, __VA_ARGS__))

/* The two halves of a fault, for callers that must act between them. The first prints the line, without (FILE:LINE);
 * the second ends all ranks. */
void job_say_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void job_abort(int status);

/* Prints a line of advice on stderr, from rank 0 alone: "PROGRAM: note: MESSAGE". The run continues. */
void advise(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Zeroed, 64-byte aligned memory of at least `bytes` (0 is allowed). Owned by the caller; free() it. Never NULL: if
 * there is no memory, it faults. */
void *alloc_or_fault(size_t bytes);

#endif
