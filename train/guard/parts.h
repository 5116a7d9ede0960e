/* parts.h: inside guard/ only: the guard's parts. ending.c ends the ranks of a job together, watchdog.c detects that
 * they hang, supervise.c runs each rank as the child of a process that sees it die. guard.c puts them together. */
#ifndef LOCKSTEP_TRAIN_GUARD_PARTS_H
#define LOCKSTEP_TRAIN_GUARD_PARTS_H

#include "comm/process_group.h"

/* ---- ending.c: ends a job of several ranks in good order, and does not let it hang while it ends ---- */

/* Call once, after MPI has started: tells base/check.h how die() and FAULT() end all ranks. Collective. */
void ending_open(void);

/* Observes the group. When all ranks have reached pg_destroy(), this rank ends within 10 seconds with job_status(),
 * even if MPI_Finalize hangs. */
void ending_observe(ProcessGroup *pg);

/* Call after MPI has ended: stops that limit. */
void ending_close(void);

/* ---- ending.c: three messages to all ranks: a collective has timed out; a rank has left the group; own work ---- */

/* All of ending.c uses a communicator of its own, so these messages arrive even if a collective hangs.
 * An alarm names the collective in which a rank waits. */
typedef struct Alarm {
    long sequence;    /* its number */
    long fingerprint; /* a hash of operation, name, count and dtype */
} Alarm;

/* Tells every other rank that this one has reached its time-out. Never waits. At most once per process. */
void alarm_raise(ProcessGroup *pg, Alarm alarm);
/* True if another rank has raised the alarm: *rank is that rank, *alarm the collective in which it waits. Never
 * waits. */
bool alarm_was_raised(ProcessGroup *pg, int *rank, Alarm *alarm);

/* note: leaving
 * In pg_destroy() a rank tells the others in how many collectives it has taken part, and waits until all others have
 * told it the same. A rank that waits in a later collective then knows at once which rank is missing. */

/* Tells every other rank that this one leaves. Never waits. */
void departure_announce(ProcessGroup *pg);
/* True if another rank's departure has arrived since the last call: *rank is that rank, *collectives the number of
 * collectives in which it took part. Never waits. Call it from one thread at a time. */
bool departure_was_announced(ProcessGroup *pg, int *rank, long *collectives);
/* Returns when every other rank has left, too. There is no time-out: a rank that dies ends the job by itself. */
void departures_await(ProcessGroup *pg);

/* Tells every other rank for how long this one has done own work so far (base/clock.h), all together, unless they know
 * it. Never waits: a message that is still on its way is replaced by the next call's. */
void own_work_announce(ProcessGroup *pg, double seconds);
/* True if there is such news: *rank has done own work for *seconds so far. Never waits. Call it from one thread at a
 * time. */
bool own_work_was_announced(ProcessGroup *pg, int *rank, double *seconds);

/* ---- watchdog.c: a thread that detects when a collective takes too long, and reports which rank is missing ---- */

/* Observes the group until this rank leaves it. In pg_destroy() the rank tells the others that it leaves, and waits for
 * them, so that a rank that still waits in a collective knows at once which rank is missing. Not for a group of one
 * rank. */
void watchdog_start(ProcessGroup *pg);

/* ---- flight.c ---- */

/* Appends this rank's latest collectives to the file of guard_record_flight(); does nothing if that was not called. */
void flight_write(void);

/* ---- supervise.c ---- */

/* Sends `words` to MPICH's launcher on this host, in PMI-1, the protocol that MPI_Init and MPI_Finalize use. Does
 * nothing without such a launcher. May be called in a signal handler. */
void launcher_tell(const char *words);

#endif
