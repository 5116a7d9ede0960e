/* bucket_plan.c: see bucket_plan.h. */
#include "ddp/bucket_plan.h"

/* note: bucket-plan
 * A bucket closes after the gradient that fills it, so it may be larger than its cap. The last one may be smaller. Only
 * sizes decide, never a rank's timing, so all ranks have the same plan. */
int buckets_plan(const size_t *sizes, int count, size_t first_cap, size_t cap, int *bucket_of)
{
    int bucket = 0;
    size_t filled = 0;
    for (int i = 0; i < count; i++) {
        bucket_of[i] = bucket;
        filled += sizes[i];
        if (filled >= (bucket == 0 ? first_cap : cap)) {
            bucket++;
            filled = 0;
        }
    }
    return count > 0 ? bucket_of[count - 1] + 1 : 0; /* the last bucket may stay below its cap */
}
