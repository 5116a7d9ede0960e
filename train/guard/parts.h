/* parts.h: the guard's parts, for guard/ only. */
#ifndef LOCKSTEP_TRAIN_GUARD_PARTS_H
#define LOCKSTEP_TRAIN_GUARD_PARTS_H

#include <mpi.h>

#include "comm/process_group.h"

/* ---- shutdown.c: ends all ranks of a job together, also if MPI hangs; and sends control messages ---- */

/* Makes die(), FAULT() and job_close() end all ranks. When all ranks have reached job_close(), this rank ends within 10
 * seconds with job_status(), even if MPI_Finalize hangs. Call it once, after MPI has started. Collective. */
void shutdown_open(void);

enum { TAG_LOCAL_WORK = 1, TAG_STOP }; /* on this communicator, of all ranks */
MPI_Comm control_communicator(void);

/* Does not wait. numbers must outlive the message. Does nothing once MPI has ended on this rank. */
void message_send(MPI_Comm comm, int to, int tag, const long *numbers, int count);
/* Receives a message with this tag and `count` numbers, if one has arrived. *source: the sender's rank in comm. */
bool message_receive(MPI_Comm comm, int tag, int *source, long *numbers, int count);

/* Sends the total seconds of this rank's local work so far (base/clock.h) to all ranks that do not know them. If a
 * rank's earlier message is still pending, sends it nothing: a later call will. */
void local_work_announce(double seconds);
/* Receives such a message, if one has arrived. Call it from one thread at a time. */
bool local_work_was_announced(int *rank, double *seconds);
void local_work_stop_sending(void); /* because the job ends */

/* ---- watchdog.c: a thread that detects when a collective takes too long, and reports which rank is missing ---- */

/* note: leaving
 * When a rank leaves a group, it sends the number of its collectives to the others, and waits for theirs. A rank that
 * waits in a later collective then knows immediately which rank is missing. */

/* Watches the group, of several ranks, until this rank leaves it. Collective. */
void watchdog_watch(ProcessGroup *pg);

/* ---- stop.c, flight.c ---- */

/* Receives other ranks' messages about a signal, and answers: [note: stop]. The watchdog's thread calls it often. */
void stop_answer(void);

/* Appends this rank's latest collectives to the file of guard_record_flight(), if that was called. */
void flight_write(void);

/* ---- supervise.c ---- */

/* Sends `words` to MPICH's launcher on this host, if there is one, in PMI-1, the protocol that MPI_Init and
 * MPI_Finalize use. May be called in a signal handler. */
void launcher_send(const char *words);

/* Records the rank's last collective for its parent process. Call it from one thread at a time. */
void supervise_last_call(const char *group, long sequence);

#endif
