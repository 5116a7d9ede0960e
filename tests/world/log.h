/* log.h: what the simulated ranks did, one record after the other. The rows of the contract ask it questions. */
#ifndef LOCKSTEP_TESTS_WORLD_LOG_H
#define LOCKSTEP_TESTS_WORLD_LOG_H

#include "comm/collective.h"

typedef enum LogKind {
    LOG_CALL,      /* a blocking collective begins */
    LOG_RETURN,    /* ... and returns */
    LOG_LAUNCH,    /* an asynchronous collective is queued */
    LOG_DONE,      /* a collective is done on this rank */
    LOG_WAIT,      /* work_wait() begins */
    LOG_WAITED,    /* work_wait() returns */
    LOG_READY,     /* gradient-ready of a parameter */
    LOG_GRADIENT_NEEDED,
    LOG_NEEDED,    /* parameters-needed: one record for each parameter */
    LOG_FORWARD, LOG_BACKWARD, LOG_BACKWARD_END, LOG_AFTER, LOG_STEP_END, /* what the loop does */
    LOG_GIVEN,     /* memory of pg_alloc_shared() */
    LOG_TAKEN      /* pg_free_shared() */
} LogKind;

typedef struct LogRecord {
    LogKind kind;
    int rank, step, micro_batch; /* step -1: before the first one */
    char name[64];       /* what the collective carries, or the parameter */
    Operation operation; /* of a collective */
    DType dtype;
    ReduceOp op;
    size_t count;        /* elements; memory: bytes */
    const void *send;
    const void *receive;
    int group_size;
    int slot;            /* number of the collective in its group */
    int parameter;       /* index; -1: the record is of no parameter */
} LogRecord;

void log_clear(void);
/* Adds the record, with the running rank and its step. */
void log_add(LogRecord record);
void log_add_for(int rank, LogRecord record); /* of another rank: the network's work */
void log_set_step(int rank, int step, int micro_batch); /* of the records that follow, of this rank */
int log_step(int rank);
int log_micro_batch(int rank);

int log_count(void);
int log_count_of(int rank); /* of what this rank has done itself */
const LogRecord *log_get(int number); /* 0: the first */
/* The next record of the rank with this kind, from `number` on; -1: there is none. */
int log_next(int number, int rank, LogKind kind);
void log_print(void); /* all of it, to stderr */

#endif
