/* mpi_messages.h: inside dist/ only: what pg_mpi.c and the all-reduce algorithms share. */
#ifndef LOCKSTEP_DIST_MPI_MESSAGES_H
#define LOCKSTEP_DIST_MPI_MESSAGES_H

#include <mpi.h>

#include "dist/group.h"

/* Runs an MPI call; an error names the call and MPI's own explanation. */
#define CHECK_MPI(call) check_mpi((call), #call, __FILE__, __LINE__)
void check_mpi(int code, const char *call, const char *file, int line);

/* How long a rank has been waiting for others. {0} to begin with. */
typedef struct Waiting {
    double start, pause; /* seconds */
    long yields;
} Waiting;

/* One round of waiting: gives the core away, for longer and longer. (watchdog.c ends a wait that takes too long.) */
void wait_a_moment(ProcessGroup *pg, const Collective *collective, Waiting *waiting);

/* Returns when all requests are done. */
void wait_for_messages(ProcessGroup *pg, const Collective *collective, int count, MPI_Request *requests);

MPI_Comm group_communicator(const ProcessGroup *pg);
MPI_Datatype mpi_datatype(DType dtype);

/* Memory for the collective under way, of any content; the group's own. */
void *group_scratch(ProcessGroup *pg, size_t bytes);

#endif
