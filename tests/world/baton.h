/* baton.h: simulated ranks. Each rank is a thread, but only the one that holds the baton runs.
 *
 * Threads, and not coroutines: they need no assembler, a debugger shows them, and sanitizers know them. As one runs at
 * a time, nothing here needs a lock. All that differs between two runs of real ranks is drawn from one seed. So the
 * seed is the whole run. */
#ifndef LOCKSTEP_TESTS_WORLD_BATON_H
#define LOCKSTEP_TESTS_WORLD_BATON_H

#include <stdbool.h>
#include <stdint.h>

enum { MOST_RANKS = 160 };

/* What ranks do beside running: the network. NULL in baton_run(): nothing. */
typedef struct Network {
    int (*count)(void);          /* messages or sums that could be done now */
    void (*carry_out)(int which); /* does one of them; which < count() */
    void (*say_waits)(int rank); /* prints what this rank waits for, if no rank can go on */
    void (*runs)(int rank);      /* this rank runs from now on */
} Network;

/* Runs function(rank, argument) on each rank, and returns when all have returned. If no rank can go on, prints what
 * each waits for and ends the process with status 1. */
void baton_run(int ranks, uint64_t seed, const Network *network, void (*function)(int rank, void *argument),
               void *argument);

int baton_rank(void); /* the running rank; -1 outside baton_run() */

/* Another rank may run now, and the network may do something. Call it before each action that other ranks can see: what
 * a rank does between two of them, nobody sees. */
void baton_switch(void);
/* Returns when is_true(what) is true. Others run until then. */
void baton_wait(bool (*is_true)(void *what), void *what);

#endif
