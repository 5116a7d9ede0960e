/* compare_calls.c: do all ranks call the same collective? If not, MPI would hang, fail far from the cause, or add
 * gradients of different parameters. */
#include "train/guard/compare_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"

#define CALL_SIZE 160 /* "all_reduce number 35 of bucket 2: 262144 x float32, sum", sent as 40 int32 words */

static void describe_call(const Collective *c, char *text)
{
    memset(text, 0, CALL_SIZE); /* all bytes are compared */
    snprintf(text, CALL_SIZE, "%s number %ld of %.60s: %zu x %s, %s, root %d", operation_name(c->operation),
             c->sequence, c->carries[0] != '\0' ? c->carries : "nothing", c->count, dtype_name(c->dtype),
             c->op == REDUCE_SUM ? "sum" : "max", c->root);
}

void compare_calls(void *self, const Collective *collective)
{
    ProcessGroup *pg = self;
    char mine[CALL_SIZE];
    char *all = alloc_or_fault((size_t)pg->world_size * CALL_SIZE);
    describe_call(collective, mine);
    pg->backend->run(pg, &(Collective){.operation = OP_ALL_GATHER, .send = mine, .receive = all,
                                       .count = CALL_SIZE / sizeof(int32_t), .dtype = DTYPE_I32,
                                       .carries = "the call to be compared", .sequence = collective->sequence,
                                       .background = collective->background});
    for (int rank = 1; rank < pg->world_size; rank++) {
        const char *theirs = all + (size_t)rank * CALL_SIZE;
        if (memcmp(all, theirs, CALL_SIZE) == 0)
            continue;
        if (pg->rank != 0)
            sleep_seconds(5); /* rank 0 prints the message for all ranks, and ends the job */
        FAULT("the ranks call different collectives: rank 0 %s; rank %d %s. Ranks must make the same calls in the same "
              "order", all, rank, theirs);
    }
    free(all);
}
