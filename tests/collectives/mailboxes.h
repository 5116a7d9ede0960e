/* mailboxes.h: N ranks in one thread of this process, each with a stack of its own (ucontext.h), and the messages
 * between them, in place of MPI's. So a test needs no launcher, and sees every message.
 *
 * The linker puts start_send(), start_receive(), wait_for_messages() and group_scratch() of mailboxes.c before those of
 * comm/messages.c (--wrap). Ranks take turns: one runs until it waits for messages, or returns. Which one is next is
 * drawn. If no rank can go on, that is a deadlock, and it is reported at once.
 *
 * What is wrong ends the process, with a message.
 */
#ifndef LOCKSTEP_TESTS_MAILBOXES_H
#define LOCKSTEP_TESTS_MAILBOXES_H

#include "comm/messages.h"

enum { MOST_RANKS = 131 };

typedef struct Rules {
    size_t stored_bytes; /* a longer message is done only when its receiver has started to receive it */
    bool strict;         /* report a message that was not waited for or not received, or whose elements were touched */
    bool keep_send;      /* a write to send ends the process */
    uint64_t seed;       /* of who is next */
} Rules;

/* What one rank has sent. */
typedef struct Traffic {
    long messages, elements;
    int hops;         /* most messages one after the other, up to one that this rank has got. stored_bytes 0: also of
                       * those that it has sent, and a message cannot travel before both ranks have started it */
    int path;         /* the same, in elements of these messages: it does not grow if a message is cut into pieces */
    int to, from;     /* the only rank that it has sent to, or got something from; NO_RANK, SEVERAL_RANKS */
} Traffic;
enum { NO_RANK = -1, SEVERAL_RANKS = -2 };

typedef void CollectiveFunction(ProcessGroup *pg, const Collective *c);

/* Calls function() on each of `ranks` ranks, each with its own Collective, and returns when all have returned. `what`:
 * the call, for messages ("broadcast on 3 ranks, 10 elements"). Calls with as many ranks have the same groups, with
 * what an earlier call has left in them. */
void mailboxes_run(int ranks, const Rules *rules, const char *what, CollectiveFunction *function,
                   const Collective *collectives, Traffic *traffic);

/* "ERROR: WHAT: ..." of the call under way or the last one, with the usual cause below it, or NULL; and ends the
 * process. */
_Noreturn void mailboxes_fail(const char *cause, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
