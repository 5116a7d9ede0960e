/* combine.h: inside comm/ only: the additions of an all-reduce. They need no MPI. */
#ifndef LOCKSTEP_COMM_COMBINE_H
#define LOCKSTEP_COMM_COMBINE_H

#include "comm/process_group.h"

bool adds_in_float32(DType dtype); /* 16 bits, and blocks of 8 bits */

/* out = a op b; out may be a or b. Not for types that adds_in_float32() names. */
void combine(void *out, const void *a, const void *b, size_t count, DType dtype, ReduceOp op);

/* Every one of `totals` = parts[0] op parts[1] op ..., in this order: at least two parts, `count` elements each. A
 * total may be one of the parts. Types of 16 and 8 bits are added in float32 and rounded once. */
void combine_parts(void *const *totals, int total_count, const void *const *parts, int part_count, size_t count,
                   DType dtype, ReduceOp op);

#endif
