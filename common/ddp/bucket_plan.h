/* bucket_plan.h: which gradient goes into which bucket. */
#ifndef LOCKSTEP_DDP_BUCKET_PLAN_H
#define LOCKSTEP_DDP_BUCKET_PLAN_H

#include <stddef.h>

/* Writes the bucket number of each of `count` sizes (bytes, in the order given) to bucket_of (count), and returns the
 * number of buckets. A bucket is closed as soon as it holds at least its cap: first_cap for bucket 0, cap for all
 * others. Source: the rule of PyTorch's compute_bucket_assignment_by_size. */
int buckets_plan(const size_t *sizes, int count, size_t first_cap, size_t cap, int *bucket_of);

#endif
