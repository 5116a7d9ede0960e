/* groups.h: inside tests/world only: the groups of simulated ranks, and their collectives.
 *
 *   process_group.c  the functions of comm/process_group.h
 *   groups.c         slots: collective number k of a group, as each of its ranks has called it
 *   flight.c         the buffers of a collective, from its launch to work_wait()
 */
#ifndef LOCKSTEP_TESTS_WORLD_GROUPS_H
#define LOCKSTEP_TESTS_WORLD_GROUPS_H

#include "comm/process_group.h"
#include "world/baton.h"
#include "world/log.h"

typedef struct Group Group;

/* A buffer while it is in flight: `image` is what it must hold. */
typedef struct Watched {
    unsigned char *memory; /* not owned; NULL: nothing is watched */
    unsigned char *image;  /* owned */
    size_t bytes;
} Watched;

/* One rank's part in a collective. */
typedef struct Part {
    Collective call;
    bool called, done, waits; /* waits: the rank is in work_wait(), or in the blocking call */
    bool waited_for;          /* and has returned from it */
    unsigned char *input;     /* a copy of `send` at the launch; owned */
    Watched send, receive;
    int color;                /* of pg_split() */
} Part;

/* Collective number `number` of a group. */
typedef struct Slot {
    Group *group;
    int number, arrived, left; /* ranks that have called it; ranks that have not returned from it */
    Part *parts;               /* by rank in the group; owned */
    char what[16];             /* "": a collective; else what is collective as well: "pg_split" */
} Slot;

struct Group {
    int size;
    int *ranks;                /* the job's; owned */
    Slot **slots;              /* owned */
    int count, capacity;
    int *called, *completed;   /* by rank in the group: how many slots; owned */
    int *waited;               /* and how many have had their work_wait(); owned */
    Group **siblings;          /* a reduce-scatter adds over these, too (pg_split_copies()); owned by the first */
    int sibling_count;
    const Slot *made_by;       /* pg_split()'s slot; NULL: the world */
    int color;
    Group *next;               /* of all groups */
};

/* ---- groups.c ---- */
Group *group_make(int size, const int *ranks, const Slot *made_by, int color);
Group *group_find(const Slot *made_by, int color); /* NULL: no rank has made it yet */
void groups_free(void);
int group_rank_of(const Group *group, int job_rank);
extern const Network groups_network;

/* The rank `rank` of the group makes its next call. Ends with a message if it differs from another rank's. */
Slot *slot_call(Group *group, int rank, const Collective *call, const char *what, int color);
/* Ends with a message if a collective of this rank has had no work_wait(). */
void group_check_all_waited_for(const Group *group, int rank, const char *what);

/* ---- flight.c ---- */
/* The call's buffers are there and lie in allowed places, and none of them is in flight already. */
void flight_check_buffers(const Group *group, int rank, const Collective *call);
void flight_begin(Slot *slot, int rank);   /* copies what is sent, fills what will be written */
void flight_arrive(Slot *slot, int rank);  /* writes the result */
void flight_end(Slot *slot, int rank);     /* work_wait(): the buffers are the rank's own again */

/* Memory of pg_alloc_shared(), to check counts. */
void flight_given(int job_rank, void *memory, size_t bytes);
size_t flight_taken(int job_rank, const void *memory); /* returns its bytes; 0: it was not given */

/* A mistake of the stage: prints "rank R, step S: ..." and ends the process with status 1. */
_Noreturn void world_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
