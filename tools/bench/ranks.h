/* ranks.h: where the ranks of a benchmark run, and memory in which they meet. It needs MPI, and nothing of lockstep:
 * peer_all_reduce.cpp has it, too. */
#ifndef LOCKSTEP_BENCH_RANKS_H
#define LOCKSTEP_BENCH_RANKS_H

/* Rank 0 prints two lines that begin with "#": on which processors each rank may run, and which processors of rank 0's
 * host share which caches. All ranks must call this. */
void ranks_print_processors(void);

/* Memory for fresh_meet() that all ranks share, or NULL if they are on several hosts. Rank 0 prints how long a meeting
 * takes. All ranks must call this. The memory is freed with ranks_free_meeting(), before MPI_Finalize(). */
void *ranks_create_meeting(void);
void ranks_free_meeting(void);

#endif
