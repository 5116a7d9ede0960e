/* check.h: how the program ends when something is wrong.
 *
 * Interface:
 *   die("--lr: ...")             a user's mistake: one line from rank 0, every rank ends with status 2
 *   FAULT("all_reduce ...")      a fault at run time: names rank, step and place, ends the whole job with status 1
 *   CHECK(condition, "...")      FAULT unless the condition holds (invariants; stays on in Release)
 *   alloc_or_fault(bytes)        zeroed memory, 64-byte aligned; free() it
 *
 * base/ knows nothing of MPI. The process group tells it, through job_set(), which rank this is and how a
 * job of several ranks is ended.
 */
#ifndef LOCKSTEP_BASE_CHECK_H
#define LOCKSTEP_BASE_CHECK_H

#include <stdbool.h>
#include <stddef.h>

typedef struct Job {
    int rank;       /* 0 until job_set() */
    int world_size; /* 1 until job_set() */
    /* True once every rank has called it, false if some did not within `seconds`. NULL outside MPI: in tests without a process group. */
    bool (*all_ranks_arrive)(double seconds);
    /* Leaves the job in good order: every rank calls it. NULL outside MPI: in tests without a process group. */
    void (*leave)(void);
    /* Ends every rank's process, now. NULL outside MPI: in tests without a process group. */
    void (*abort_all)(int status);
} Job;

void job_set(Job job);

/* `action` is called, once, before the whole job is ended: for what would keep a process from ending. Must not wait for
 * long, and comes in whichever thread ends the job. NULL: nothing. */
void job_before_abort(void (*action)(void));

/* note: explained-end
 * The end of a process is explained once the process has printed an error, or has reached the regular end of its work.
 * From outside, an unexplained end looks the same: a library may call exit(0) or exit(1). So the parent process that
 * watches (train/guard/supervise.c) is told: `action` is called each time, in any thread, also in a signal's handler. */
void job_on_explained_end(void (*action)(void));
void job_end_is_explained(void);

int job_rank(void);
int job_world_size(void);

/* The exit status that this rank is going to end with: 0 unless set. */
void job_set_status(int status);
int job_status(void);

/* The name errors begin with ("train"), and the step they name. step < 0: not in a step. */
void job_set_program(const char *name);
void job_set_step(long step);

/* A mistake of the user's: flags, files, what the data holds. Prints "PROGRAM: error: MESSAGE" once: every
 * rank sees the same mistake as a rule, so rank 0 speaks for all; a rank that is alone with its mistake
 * (a file missing on one host) says so itself after a short wait. Exit status 2. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A fault at run time. Prints "PROGRAM: fault: rank R, step S: MESSAGE (FILE:LINE)" and ends all ranks with
 * status 1. Use the macro. */
_Noreturn void fault_at(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define FAULT(...) fault_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition, ...) ((condition) ? (void)0 : fault_at(__FILE__, __LINE__, __VA_ARGS__))

/* The parts of a fault, for one who has more to do in between: the line, without a place, and the end of all ranks. */
void job_say_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void job_abort(int status);

/* A line of advice on stderr, from rank 0 alone: "PROGRAM: note: MESSAGE". The run goes on. */
void advise(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Zeroed, 64-byte aligned memory of at least `bytes` (0 is allowed); owned by the caller, free() it.
 * Never NULL: a lack of memory is a fault. */
void *alloc_or_fault(size_t bytes);
char *copy_string(const char *text);

#endif
