/* sync_batch_norm.h: what batch normalization (autograd/batch_norm.h) gets from the other ranks.
 *
 * Its collectives run on a group of their own, because they are blocking ones in the middle of backward: on the group of
 * the buckets, each would first wait for all buckets that are queued, and nothing would overlap. PyTorch's SyncBatchNorm
 * takes a process group for the same reason.
 */
#ifndef LOCKSTEP_DDP_SYNC_BATCH_NORM_H
#define LOCKSTEP_DDP_SYNC_BATCH_NORM_H

#include "autograd/batch_norm.h"
#include "comm/process_group.h"

/* For op_batch_norm(): statistics over all ranks of pg. pg must outlive the result. All ranks must run the same
 * operations in the same order, also those without samples. */
RankGather sync_batch_norm_ranks(ProcessGroup *pg);

/* Where each rank normalizes by its own rows, the ranks' running statistics move apart. Here the first rank that has had
 * rows (has_rows) sends its buffers to all; if no rank has, nothing changes. (PyTorch: broadcast_buffers, of rank 0 or, under Join, of a rank
 * that still has data.) Collective. */
void buffers_broadcast(ProcessGroup *pg, ParameterList *parameters, bool has_rows);

#endif
