/* watch.h: a listener between the tape and a stage that overlaps (3 to 5). It records the order of the events, and
 * which all-reduces (stage 5: reduce-scatters) the stage had started at each of them. The linker replaces the process
 * group's functions by those of watch_calls.c (-Wl,--wrap). So the stage's calls are recorded, whatever data it keeps.
 * With "order" in LOCKSTEP_TEST_GIVEN (given.h), "bucket 2" that a stage starts before buckets 0 and 1 starts after
 * them instead.
 */
#ifndef LOCKSTEP_TESTS_WATCH_H
#define LOCKSTEP_TESTS_WATCH_H

#include "ddp.h"

enum { MAX_EVENTS = 1100 };

typedef struct Watch {
    ProcessGroup *pg; /* not owned */
    Tape *tape;       /* not owned */
    TapeListener stage; /* events are passed on to it */
    void (*before_parameters_needed)(void); /* called before the stage handles this event, and after; may be NULL */
    void (*after_parameters_needed)(Parameter *const *parameters, int count);
    int count;
    int order[MAX_EVENTS];        /* parameter indices, in the order of their events */
    float *gradient[MAX_EVENTS];  /* this rank's gradient when its event came, if `copying`; owned */
    long collectives[MAX_EVENTS]; /* how many were done at the event, before the stage received it */
    int started_before;           /* all-reduces that the stage had started before the first event */
    int started[MAX_EVENTS];      /* and at the end of its event */
    bool copying;
    int hold_at;   /* at this event, wait until a collective is done; -1: never */
    bool hold_rank_0; /* rank 0's first event lasts until all other ranks' backward passes are over, */
    int over_at;      /* or, if this is above 0, until they have come to the event with this number */
    bool gave_up;  /* a wait did not end by itself */
    int plan_order[MAX_EVENTS]; /* order of the parameters in the buckets, after watch_follow_rank_0() */
    int planned;                /* how many; 0: buckets are filled in the reverse order of registration */
} Watch;

/* Inserts the watch between the tape and the stage that listens to it; fails if no stage listens. One at a time;
 * collective. */
void watch_start(Watch *watch, ProcessGroup *pg, Tape *tape);
void watch_stop(Watch *watch);   /* removes the watch, and forgets all events */
void watch_forget(Watch *watch); /* forgets the events so far; call it before each ddp_before_forward() */

/* How many gathers have been started so far, in all. */
int watch_gathers(void);

/* Call it with true before ddp_before_backward(), and with false after it. */
void watch_before_backward(bool begins);

/* With hold_rank_0: call it when this rank's tape_backward() has returned. */
void watch_backward_is_over(Watch *watch);

/* Call it when the stage rebuilds its buckets: from here on the expected order is that of rank 0's events in the last
 * backward pass. Every trained parameter must have raised one. Collective. */
void watch_follow_rank_0(Watch *watch);

/* What messages end with, of the case that is tried. "": nothing. */
void watch_set_title(const char *title);

/* Fails unless the stage has started each bucket as soon as it and all buckets before it were full, and no bucket
 * earlier. A trained parameter without an event counts as ready before backward. The plan is that of buckets_plan().
 * last: this is the step's last micro-batch; in the others a stage need not start any bucket. */
void watch_expect_starts(const Watch *watch, const ParameterList *parameters, const DdpOptions *options, bool last);

#endif
