/* parts.h: inside guard/ only: the guard's parts. ending.c ends the ranks of a job together, watchdog.c detects that
 * they hang, supervise.c runs each rank as the child of a process that sees it die, stop.c stops them after a signal.
 * guard.c puts them together. */
#ifndef LOCKSTEP_TRAIN_GUARD_PARTS_H
#define LOCKSTEP_TRAIN_GUARD_PARTS_H

#include <mpi.h>

#include "comm/process_group.h"

/* ---- ending.c: ends a job of several ranks in good order, and does not let it hang while it ends ---- */

/* Call once, after MPI has started: tells base/check.h how die(), FAULT() and job_close() end all ranks. When all ranks
 * have reached job_close(), this rank ends within 10 seconds with job_status(), even if MPI_Finalize hangs.
 * Collective. */
void ending_open(void);

/* ---- ending.c: messages, beside the collectives and never waited for ---- */

enum { TAG_OWN_WORK = 1, TAG_STOP }; /* on this communicator, of all ranks */
MPI_Comm ending_communicator(void);

/* numbers: must outlive the message. Does nothing once MPI has ended on this rank. */
void message_send(MPI_Comm comm, int to, int tag, const long *numbers, int count);
/* Receives a message with this tag and `count` numbers, if one has arrived: then *source is its rank in comm. */
bool message_receive(MPI_Comm comm, int tag, int *source, long *numbers, int count);

/* Tells every other rank of the job for how long this one has done own work so far (base/clock.h), all together, unless
 * they know it. A message that is still on its way is replaced by the next call's. */
void own_work_announce(double seconds);
/* True if there is such news: *rank has done own work for *seconds so far. Call it from one thread at a time. */
bool own_work_was_announced(int *rank, double *seconds);
void own_work_news_end(void); /* no more is sent from here on, because the job ends */

/* ---- watchdog.c: a thread that detects when a collective takes too long, and reports which rank is missing ---- */

/* note: leaving
 * When a rank leaves a group, it tells the others in how many collectives it has taken part, and waits until all others
 * have told it the same. A rank that waits in a later collective then knows at once which rank is missing. */

/* Watches the group, of several ranks, until this rank leaves it. Collective. */
void watchdog_watch(ProcessGroup *pg);

/* ---- stop.c ---- */

/* Receives what other ranks say about a signal, and answers: [note: stop]. The watchdog's thread calls it often. */
void stop_answer(void);

/* ---- flight.c ---- */

/* Appends this rank's latest collectives to the file of guard_record_flight(); does nothing if that was not called. */
void flight_write(void);

/* ---- supervise.c ---- */

/* Sends `words` to MPICH's launcher on this host, in PMI-1, the protocol that MPI_Init and MPI_Finalize use. Does
 * nothing without such a launcher. May be called in a signal handler. */
void launcher_tell(const char *words);

/* Tells this rank's parent process which collective the rank has called last: it says so if the rank is killed. Call it
 * from one thread at a time. */
void supervise_last_call(const char *group, long sequence);

#endif
