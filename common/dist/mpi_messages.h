/* mpi_messages.h: inside dist/ only: what pg_mpi.c and allreduce.c share. */
#ifndef LOCKSTEP_DIST_MPI_MESSAGES_H
#define LOCKSTEP_DIST_MPI_MESSAGES_H

#include <mpi.h>

#include "dist/group.h"

/* Runs an MPI call; an error names the call and MPI's own explanation. */
#define CHECK_MPI(call) check_mpi((call), #call, __FILE__, __LINE__)
void check_mpi(int code, const char *call, const char *file, int line);

/* Returns when all requests are done. Fault after the group's time-out. */
void wait_for_messages(ProcessGroup *pg, const Collective *collective, int count, MPI_Request *requests);

MPI_Comm group_communicator(const ProcessGroup *pg);
MPI_Datatype mpi_datatype(DType dtype);

/* The sum (or maximum) in rank order: see allreduce.c. */
void all_reduce_ordered(ProcessGroup *pg, const Collective *collective);

#endif
