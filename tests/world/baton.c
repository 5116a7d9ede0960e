/* baton.c: hands the baton from thread to thread. */
#include "world/baton.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"

typedef struct Runner {
    pthread_t thread;
    pthread_cond_t gets_baton;
    bool (*is_true)(void *what); /* NULL: the rank waits for nothing */
    void *what;
    bool ended;
} Runner;

static struct {
    pthread_mutex_t lock; /* held by the thread that has the baton */
    pthread_cond_t all_ended;
    Runner runners[MOST_RANKS];
    int ranks, left, holder;
    const Network *network;
    void (*function)(int rank, void *argument);
    void *argument;
    Rng rng;
    bool lazy;
} baton = {.lock = PTHREAD_MUTEX_INITIALIZER, .all_ended = PTHREAD_COND_INITIALIZER, .holder = -1};

int baton_rank(void)
{
    return baton.holder;
}

/* A rank that ends the job does not wait for others to make the same mistake. */
static bool nobody_arrives(double seconds)
{
    (void)seconds;
    return false;
}

/* Messages of check.c name the rank that runs. */
static void become(int rank)
{
    baton.holder = rank;
    job_set((Job){.rank = rank < 0 ? 0 : rank, .world_size = rank < 0 ? 1 : baton.ranks,
                  .all_ranks_arrive = nobody_arrives});
    if (rank >= 0 && baton.network != NULL)
        baton.network->runs(rank);
}

static bool can_run(Runner *runner)
{
    return !runner->ended && (runner->is_true == NULL || runner->is_true(runner->what));
}

static void end_in_deadlock(void)
{
    fprintf(stderr, "no rank can go on:\n");
    for (int rank = 0; rank < baton.ranks; rank++)
        if (baton.runners[rank].ended)
            fprintf(stderr, "  rank %d has ended\n", rank);
        else if (baton.network != NULL)
            baton.network->say_waits(rank);
    job_abort(1);
}

/* Draws who is next: a rank, or the network, after which it draws again. In some jobs the network is lazy: it does
 * nothing while a rank can run. So a missing wait reads too early. */
static int draw_rank(void)
{
    for (;;) {
        int able[MOST_RANKS], count = 0;
        for (int rank = 0; rank < baton.ranks; rank++)
            if (can_run(&baton.runners[rank]))
                able[count++] = rank;
        const bool network_waits = baton.network == NULL || (baton.lazy && count > 0);
        const int done = network_waits ? 0 : baton.network->count();
        if (count + done == 0)
            end_in_deadlock();
        const int drawn = (int)rng_below(&baton.rng, (uint64_t)(count + done));
        if (drawn < count)
            return able[drawn];
        baton.network->carry_out(drawn - count);
    }
}

static void hand_over(int from)
{
    const int to = draw_rank();
    if (to == from)
        return;
    become(to);
    pthread_cond_signal(&baton.runners[to].gets_baton);
    while (from >= 0 && !baton.runners[from].ended && baton.holder != from)
        pthread_cond_wait(&baton.runners[from].gets_baton, &baton.lock);
}

void baton_switch(void)
{
    hand_over(baton.holder);
}

void baton_wait(bool (*is_true)(void *what), void *what)
{
    Runner *runner = &baton.runners[baton.holder];
    runner->is_true = is_true;
    runner->what = what;
    hand_over(baton.holder);
    runner->is_true = NULL;
}

static void *run_rank(void *own)
{
    const int rank = (int)((Runner *)own - baton.runners);
    pthread_mutex_lock(&baton.lock);
    while (baton.holder != rank)
        pthread_cond_wait(&baton.runners[rank].gets_baton, &baton.lock);
    baton.function(rank, baton.argument);
    baton.runners[rank].ended = true;
    if (--baton.left > 0) {
        hand_over(rank);
    } else {
        become(-1);
        pthread_cond_signal(&baton.all_ended);
    }
    pthread_mutex_unlock(&baton.lock);
    return NULL;
}

void baton_run(int ranks, uint64_t seed, const Network *network, void (*function)(int rank, void *argument),
               void *argument)
{
    CHECK(ranks >= 1 && ranks <= MOST_RANKS, "%d ranks: the world has 1 to %d", ranks, MOST_RANKS);
    rng_seed(&baton.rng, seed);
    baton.lazy = rng_below(&baton.rng, 3) == 0;
    baton.ranks = baton.left = ranks;
    baton.network = network;
    baton.function = function;
    baton.argument = argument;
    pthread_mutex_lock(&baton.lock);
    for (int rank = 0; rank < ranks; rank++) {
        Runner *runner = &baton.runners[rank];
        *runner = (Runner){.gets_baton = PTHREAD_COND_INITIALIZER};
        CHECK(pthread_create(&runner->thread, NULL, run_rank, runner) == 0, "no thread for rank %d", rank);
    }
    hand_over(-1);
    while (baton.left > 0)
        pthread_cond_wait(&baton.all_ended, &baton.lock);
    pthread_mutex_unlock(&baton.lock);
    for (int rank = 0; rank < ranks; rank++)
        pthread_join(baton.runners[rank].thread, NULL);
}
