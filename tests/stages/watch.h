/* watch.h: a listener between the tape and a stage that overlaps (3 and 4): which events came in which order, and which
 * all-reduces the stage had started by then. The linker puts the functions of watch.c before the process group's
 * (-Wl,--wrap), so whatever data a stage keeps, the calls that it makes are seen.
 */
#ifndef LOCKSTEP_TESTS_WATCH_H
#define LOCKSTEP_TESTS_WATCH_H

#include "ddp.h"

enum { MAX_EVENTS = 64 };

typedef struct Watch {
    ProcessGroup *pg; /* not owned */
    Tape *tape;       /* not owned */
    GradientReady inner; /* the stage's own */
    void *inner_listener;
    int count;
    int order[MAX_EVENTS];        /* parameter indices, as their events came */
    float *gradient[MAX_EVENTS];  /* this rank's gradient when its event came, if `copying`; owned */
    long collectives[MAX_EVENTS]; /* how many were done when the event came, before the stage heard of it */
    int started_before;           /* all-reduces that the stage had started before the first event */
    int started[MAX_EVENTS];      /* and when it returned from the event */
    bool copying;
    int hold_at;   /* at this event, hold backward until a collective is done; -1: never */
    bool hold_rank_0; /* rank 0's first event lasts until all other ranks' backward passes are over */
    bool gave_up;  /* a hold did not end by itself */
    int plan_order[MAX_EVENTS]; /* of the parameters in the buckets, after watch_follow_rank_0() */
    int planned;                /* how many; 0: buckets are filled in the reverse order of registration */
} Watch;

/* Steps in between the tape and the stage that listens to it. Fails if none does. One at a time; collective. */
void watch_start(Watch *watch, ProcessGroup *pg, Tape *tape);
void watch_stop(Watch *watch);   /* steps out again, and forgets */
void watch_forget(Watch *watch); /* the events so far: before each ddp_before_forward() */

/* ddp_before_backward() is about to be called, or has returned. */
void watch_before_backward(bool begins);

/* With hold_rank_0: this rank's tape_backward() has returned. */
void watch_backward_is_over(Watch *watch);

/* The stage rebuilds its buckets now: from here on they are planned in the order of rank 0's events of the backward
 * pass that is over. Every trained parameter must have raised one. Collective. */
void watch_follow_rank_0(Watch *watch);

/* Fails unless the stage has started each bucket as soon as it and all before it were full, and none before. A trained
 * parameter that raised no event counts as ready before backward. The plan is that of buckets_plan(). last: of the step's micro-batches; in the others a stage may leave out what it starts. */
void watch_expect_starts(const Watch *watch, const ParameterList *parameters, const DdpOptions *options, bool last);

#endif
