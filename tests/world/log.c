/* log.c: a list of records that grows. */
#include "world/log.h"

#include <stdio.h>

#include "world/baton.h"
#include "world/memory.h"

static LogRecord *records;
static int count, capacity;
static int count_of[MOST_RANKS], steps[MOST_RANKS], micro_batches[MOST_RANKS];

void log_clear(void)
{
    count = 0;
    for (int rank = 0; rank < MOST_RANKS; rank++)
        count_of[rank] = 0, steps[rank] = micro_batches[rank] = -1;
}

void log_add(LogRecord record)
{
    log_add_for(baton_rank(), record);
}

void log_add_for(int rank, LogRecord record)
{
    if (count == capacity) {
        const size_t bytes = (size_t)capacity * sizeof *records;
        capacity = capacity > 0 ? 2 * capacity : 4096;
        records = world_grow(records, bytes, (size_t)capacity * sizeof *records);
    }
    record.rank = rank;
    record.step = steps[rank];
    record.micro_batch = micro_batches[rank];
    records[count++] = record;
    count_of[rank] += record.kind != LOG_DONE; /* that is the network's */
}

void log_set_step(int rank, int step, int micro_batch)
{
    steps[rank] = step;
    micro_batches[rank] = micro_batch;
}

int log_step(int rank)
{
    return steps[rank];
}

int log_micro_batch(int rank)
{
    return micro_batches[rank];
}

int log_count(void)
{
    return count;
}

int log_count_of(int rank)
{
    return count_of[rank];
}

const LogRecord *log_get(int number)
{
    return &records[number];
}

int log_next(int number, int rank, LogKind kind)
{
    for (; number < count; number++)
        if (records[number].rank == rank && records[number].kind == kind)
            return number;
    return -1;
}

void log_print(void)
{
    static const char *const kinds[] = {"call", "return", "launch", "done", "wait", "waited", "gradient-ready",
                                        "gradient-needed", "parameters-needed", "forward", "backward", "backward ends",
                                        "after backward", "step ends", "memory given", "memory taken back"};
    for (int i = 0; i < count; i++) {
        const LogRecord *r = &records[i];
        fprintf(stderr, "%5d rank %d step %d.%d  %-17s", i, r->rank, r->step, r->micro_batch, kinds[r->kind]);
        if (r->kind <= LOG_WAITED)
            fprintf(stderr, " %s number %d of %d ranks (%s, %zu x %s)\n", operation_name(r->operation), r->slot,
                    r->group_size, r->name, r->count, dtype_name(r->dtype));
        else
            fprintf(stderr, " %s\n", r->name);
    }
}
