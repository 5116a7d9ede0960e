/* world.h: comm/process_group.h for N ranks in one process, without MPI.
 *
 * The functions of process_group.h work as over MPI, but everything that may differ from run to run is drawn from one
 * seed: which rank goes on, and when a collective is done on each rank. It is done at any time after the last rank of
 * its group has called it, in the group's order. Ranks switch inside pg_ and work_ functions and at the tape's events.
 *
 * By itself the world ends the process, with one line and status 1, if ranks call different collectives; if no rank can
 * go on; if buffers in flight are written, used again or given back; if a Work is waited for twice, or never; if a rank
 * waits inside gradient_ready().
 *
 * It does not have data races (thread sanitizer, on real runs), MPI's progress, time, or several hosts. */
#ifndef LOCKSTEP_TESTS_WORLD_WORLD_H
#define LOCKSTEP_TESTS_WORLD_WORLD_H

#include "autograd/tape.h"
#include "comm/process_group.h"
#include "world/baton.h"
#include "world/log.h"

/* Runs body(pg, argument) on each of the ranks; pg is the world's group. Clears the log first. */
void world_run(int ranks, uint64_t seed, void (*body)(ProcessGroup *pg, void *argument), void *argument);

/* Logs the tape's events before its listener gets them. Call it after ddp_create(); and unwatch_events() before
 * ddp_destroy(), which then finds its own listener. */
void watch_events(Tape *tape);
void unwatch_events(Tape *tape);

/* Adds to the log what the loop does. */
void world_log(LogKind kind, const char *name);
void world_log_bytes(LogKind kind, size_t bytes);

_Noreturn void world_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
