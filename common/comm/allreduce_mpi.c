/* allreduce_mpi.c: the MPI library's own all-reduce. */
#include "comm/allreduce.h"

/* note: mpi-pieces
 * For a sum of 100 MB, MPICH allocates 50 MB of scratch memory in every call and returns them to the system, so that
 * every call pays for the same page faults. For smaller pieces the C library keeps the freed memory for the next call.
 * (If send and receive are one buffer, MPI requires MPI_IN_PLACE.) */
#define PIECE_BYTES ((size_t)16 << 20)

void all_reduce_mpi(ProcessGroup *pg, const Collective *c)
{
    size_t size = dtype_size(c->dtype), piece = PIECE_BYTES / size;
    for (size_t start = 0; start < c->count || start == 0; start += piece) {
        size_t count = c->count - start < piece ? c->count - start : piece;
        const void *send = c->send == c->receive ? MPI_IN_PLACE : (const unsigned char *)c->send + start * size;
        MPI_Request request;
        CHECK_MPI(MPI_Iallreduce(send, (unsigned char *)c->receive + start * size, (int)count, mpi_datatype(c->dtype),
                                 mpi_op(c->op), group_communicator(pg), &request));
        wait_for_messages(pg, c, 1, &request);
    }
}
