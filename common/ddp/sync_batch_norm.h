/* sync_batch_norm.h: gathers the statistics of batch normalization (autograd/batch_norm.h) from all ranks.
 *
 * Its collectives block in the middle of backward, so they need a group of their own. On the group of the buckets, each
 * would first wait for all buckets in the queue, and nothing would overlap. PyTorch's SyncBatchNorm takes a process
 * group for the same reason.
 */
#ifndef LOCKSTEP_DDP_SYNC_BATCH_NORM_H
#define LOCKSTEP_DDP_SYNC_BATCH_NORM_H

#include "autograd/batch_norm.h"
#include "comm/process_group.h"

/* For op_batch_norm(): statistics over all ranks of pg. pg must outlive the result. All ranks must run the same
 * operations in the same order, also those without samples. */
RankGather sync_batch_norm_ranks(ProcessGroup *pg);

/* For batch normalization without shared statistics, where the ranks' running averages drift apart: the first rank that
 * has had rows (has_rows) sends its buffers to all ranks. If no rank has, nothing changes. PyTorch's broadcast_buffers
 * sends those of rank 0, or under Join of a rank that still has data. Collective. */
void buffers_broadcast(ProcessGroup *pg, ParameterList *parameters, bool has_rows);

#endif
