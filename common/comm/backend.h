/* backend.h: what MPI, NCCL and copies in host memory implement: carrying out the collectives of a group.
 *
 * Interface: a backend is a struct that begins with a Backend. A group begins with MPI's. pg_wrap_backend() wraps it in
 * another one, which forwards to `inner` the collectives that it does not carry out itself. Each group has its own
 * backends. */
#ifndef LOCKSTEP_COMM_BACKEND_H
#define LOCKSTEP_COMM_BACKEND_H

#include <mpi.h>

#include "comm/collective.h"

typedef struct Backend Backend;
struct Backend {
    const char *name;
    /* Returns when the collective is done on this rank. */
    void (*run)(Backend *self, ProcessGroup *pg, const Collective *collective);
    /* Wraps the backend of a group of pg_split(), which has this color. Collective. Not called for MPI's. */
    void (*split)(const Backend *self, ProcessGroup *part, int color);
    void (*close)(Backend *self, ProcessGroup *pg); /* frees it, but not `inner`, which is closed next. Collective */
    Backend *inner; /* MPI's: NULL */
};

/* From now on `outer` carries the group's collectives out. The group closes it. */
void pg_wrap_backend(ProcessGroup *pg, Backend *outer);

/* ---- waiting ---- */

/* How long a rank has been waiting for others. Initialise with {0}. */
typedef struct Backoff {
    double start, pause; /* seconds */
    long yields;
} Backoff;

/* Call between two tests of a condition: spins, yields the core or sleeps, longer from call to call. (train/guard ends
 * a wait that takes too long.) */
void back_off(const ProcessGroup *pg, const Collective *collective, Backoff *backoff);

/* ---- calls of MPI ---- */

/* Runs an MPI call. Faults if it fails, with the call and MPI's own explanation. */
#define CHECK_MPI(call) check_mpi((call), #call, __FILE__, __LINE__)
void check_mpi(int code, const char *call, const char *file, int line);

/* The communicator of the group's collectives. Send nothing on it; duplicate it (MPI_Comm_dup). */
MPI_Comm pg_communicator(const ProcessGroup *pg);

#endif
