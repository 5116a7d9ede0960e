/* allreduce.h: inside comm/ only: the algorithms of all-reduce, reduce-scatter and all-gather.
 * algorithms.c has the table of their names and properties, pg_mpi.c that of their functions.
 *
 *   mpi                 pg_mpi.c              the library's own MPI_Iallreduce
 *   root                allreduce_root.c      all parts to rank 0, the sum back
 *   ring                allreduce_ring.c      chunks are passed round a ring of ranks
 *   recursive-doubling  allreduce_doubling.c  pairs at distance 1, 2, 4, ...
 *   ordered             allreduce_ordered.c   the owner of a chunk adds all parts of it in rank order
 *   shm                 allreduce_shm.c       the same, without messages, in memory that all ranks see
 *   hierarchical        allreduce_hierarchical.c  ordered, within each host, and then across hosts
 *
 * Their costs, and which is fastest when: notes/allreduce.md.
 *
 * Interface: an algorithm gets a Collective and fills its `receive` as process_group.h says, in place or not. There may
 * be fewer elements than ranks. No algorithm is called with 0 elements or on one rank. A ring is the same function for
 * all three operations. An ordered all-reduce is an ordered reduce-scatter, and then an all-gather; root and
 * recursive-doubling use these two, too. */
#ifndef LOCKSTEP_COMM_ALLREDUCE_H
#define LOCKSTEP_COMM_ALLREDUCE_H

#include "comm/combine.h"
#include "comm/messages.h"

/* ---- the algorithms, one file each (mpi is in pg_mpi.c) ---- */
void all_reduce_root(ProcessGroup *pg, const Collective *collective);
void run_ring(ProcessGroup *pg, const Collective *collective);
void all_reduce_recursive_doubling(ProcessGroup *pg, const Collective *collective);
void all_reduce_halving_doubling(ProcessGroup *pg, const Collective *collective);
void all_reduce_ordered(ProcessGroup *pg, const Collective *collective);
void all_reduce_ordered_small(ProcessGroup *pg, const Collective *collective);
void reduce_scatter_ordered(ProcessGroup *pg, const Collective *collective);
void all_gather_ordered(ProcessGroup *pg, const Collective *collective);
void all_reduce_shm(ProcessGroup *pg, const Collective *collective);
void scatter_or_gather_shm(ProcessGroup *pg, const Collective *collective); /* a reduce-scatter, or an all-gather */

void all_reduce_hierarchical(ProcessGroup *pg, const Collective *collective);
void all_reduce_hierarchical_small(ProcessGroup *pg, const Collective *collective);
void reduce_scatter_hierarchical(ProcessGroup *pg, const Collective *collective);
void all_gather_hierarchical(ProcessGroup *pg, const Collective *collective);

/* Makes the levels of the group, in place of those of other options. Ends with die() if hosts have unequal numbers of
 * ranks. Both are collective. */
void hierarchy_open(ProcessGroup *pg);
void hierarchy_close(ProcessGroup *pg);

#endif
