/* mailboxes.c: see mailboxes.h. */
#include "mailboxes.h"

#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

#include "arrays.h"
#include "base/check.h"
#include "base/rng.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

enum { UNWRITTEN = 0xA5, FIRST_REQUEST = 1000, MOST_SECONDS = 30, NOBODY = -1 };

/* A send or a receive. The two of one message are each other's partner. */
typedef struct Request {
    bool sends;
    int rank, peer, tag;
    size_t count, bytes;
    unsigned char *elements; /* the student's; of a send, as they are now */
    unsigned char *copy;     /* of a send: as they were when it was started; owned */
    int hops, path;          /* what the rank had when it was started, and this message */
    struct Request *partner; /* NULL: the other rank has not started it */
    bool waited;
} Request;

typedef struct Rank {
    ProcessGroup *pg; /* apart, because a student's file gets it, and not what follows here; owned */
    const Collective *collective;
    Traffic traffic;
    const MPI_Request *waits_for;
    int waits_count; /* 0: it does not wait */
    bool returned;
    ucontext_t context; /* where it goes on */
    void *stack;        /* owned by arrays.c */
} Rank;

static Rank ranks[MOST_RANKS];
static int world_size, turn;
static CollectiveFunction *under_test;
static Rules rules;
static Rng rng;
static Request **requests; /* in the order of the calls; owned */
static size_t request_count, first_open; /* all before this one have partners */
static ucontext_t test; /* the context of mailboxes_run() */
static char call[160];

/* ---- what is wrong ---- */

void mailboxes_fail(const char *cause, const char *format, ...)
{
    char text[PIPE_BUF];
    va_list arguments;
    va_start(arguments, format);
    int length = snprintf(text, sizeof text, "ERROR: %s: ", call);
    length += vsnprintf(text + length, sizeof text / 2, format, arguments);
    va_end(arguments);
    length += snprintf(text + length, sizeof text / 4, cause != NULL ? "\n  usual cause: %s\n" : "\n", cause);
    fflush(stdout);
    ssize_t written = write(STDERR_FILENO, text, (size_t)length);
    _exit(written > 0 ? 1 : 2); /* without a report of what was not freed: that is not what is wrong */
}

static void end_endless(int signal_number)
{
    (void)signal_number;
    mailboxes_fail("a loop that never ends", "rank %d has neither returned nor waited for messages for %d s", turn,
                   MOST_SECONDS);
}

static const char *describe(const Request *request)
{
    static char text[160];
    snprintf(text, sizeof text, request->sends ? "its message of %zu elements to rank %d (tag %d)" :
             "a message of %zu elements from rank %d (tag %d)", request->count, request->peer, request->tag);
    return text;
}

/* ---- requests ---- */

static Request *request_of(MPI_Request handle)
{
    if (handle == MPI_REQUEST_NULL)
        return NULL;
    size_t number = (size_t)(intptr_t)handle - FIRST_REQUEST;
    if (number >= request_count)
        mailboxes_fail("a wrong count of requests, or requests[] is not filled from its start",
                       "rank %d waits for a request that no call has started", turn);
    return requests[number];
}

static bool is_done(const Request *request)
{
    return request == NULL || request->partner != NULL || (request->sends && request->bytes <= rules.stored_bytes);
}

static bool can_run(const Rank *rank)
{
    if (rank->returned)
        return false;
    for (int i = 0; i < rank->waits_count; i++)
        if (!is_done(request_of(rank->waits_for[i])))
            return false;
    return true;
}

static void find_partner(Request *request)
{
    while (first_open < request_count && requests[first_open]->partner != NULL)
        first_open++;
    for (size_t i = first_open; i < request_count && request->partner == NULL; i++) {
        Request *other = requests[i];
        if (other->partner != NULL || other->sends == request->sends || other->rank != request->peer ||
            other->peer != request->rank || other->tag != request->tag)
            continue;
        if (other->count != request->count)
            mailboxes_fail("the two ranks cut the array at different places",
                           "rank %d sends %zu elements to rank %d (tag %d), which expects %zu",
                           request->sends ? request->rank : other->rank, request->sends ? request->count : other->count,
                           request->sends ? other->rank : request->rank, request->tag,
                           request->sends ? other->count : request->count);
        request->partner = other;
        other->partner = request;
    }
}

/* Memory that MPI may still read or write. */
static void expect_unused(const Request *request)
{
    for (size_t i = 0; i < request_count && rules.strict; i++) {
        const Request *other = requests[i];
        if (other->rank == request->rank && !other->waited && !(other->sends && request->sends) &&
            other->elements < request->elements + request->bytes && request->elements < other->elements + other->bytes)
            mailboxes_fail("it is received into the place of something else that is still under way",
                           "rank %d starts %s, in memory of a message that it has not waited for", request->rank,
                           describe(request));
    }
}

static void start(bool sends, ProcessGroup *pg, const Collective *c, void *elements, size_t count, int peer, int tag,
                  MPI_Request *handles, int *pending)
{
    if (count == 0)
        return;
    CHECK(pg->rank == turn, "rank %d has changed its group", turn);
    const char *does = sends ? "sends to" : "receives from";
    if (peer < 0 || peer >= world_size)
        mailboxes_fail("a partner that does not exist; N is not always a power of two",
                       "rank %d %s rank %d, and there are ranks 0 to %d", turn, does, peer, world_size - 1);
    Request *request = alloc_or_fault(sizeof *request);
    *request = (Request){.sends = sends, .rank = turn, .peer = peer, .tag = tag, .count = count,
                         .bytes = count * dtype_size(c->dtype), .elements = elements,
                         .hops = ranks[turn].traffic.hops + 1, .path = ranks[turn].traffic.path + (int)count};
    expect_unused(request);
    Traffic *traffic = &ranks[turn].traffic;
    int *only = sends ? &traffic->to : &traffic->from;
    *only = *only == NO_RANK || *only == peer ? peer : SEVERAL_RANKS;
    if (sends) {
        request->copy = alloc_or_fault(request->bytes);
        memcpy(request->copy, elements, request->bytes);
        traffic->messages++;
        traffic->elements += (long)count;
    } else
        memset(elements, UNWRITTEN, request->bytes); /* until it is waited for, MPI may write anything there */
    requests = realloc(requests, (request_count + 1) * sizeof *requests);
    CHECK(requests != NULL, "no memory");
    find_partner(request);
    handles[(*pending)++] = (MPI_Request)(intptr_t)(FIRST_REQUEST + request_count);
    requests[request_count++] = request;
}

static void note_path(const Request *request, const Request *last)
{
    Traffic *traffic = &ranks[request->rank].traffic;
    traffic->hops = last->hops > traffic->hops ? last->hops : traffic->hops;
    traffic->path = last->path > traffic->path ? last->path : traffic->path;
}

/* It was waited for, and is done. */
static void finish(Request *request)
{
    if (request->waited)
        return;
    if (request->sends && rules.strict && memcmp(request->elements, request->copy, request->bytes) != 0)
        mailboxes_fail("what is being sent is written to before wait_for_messages() returns",
                       "rank %d has changed the elements of %s while it was under way", request->rank,
                       describe(request));
    request->waited = true;
    if (rules.stored_bytes == 0)
        note_path(request, request);
    if (request->sends && rules.stored_bytes > 0)
        return;
    note_path(request, request->partner);
    if (!request->sends)
        memcpy(request->elements, request->partner->copy, request->bytes);
}

/* ---- turns ---- */

static _Noreturn void report_deadlock(void)
{
    char text[1200];
    int length = 0, listed = 0;
    bool sends = true;
    for (int r = 0; r < world_size; r++) {
        for (int i = 0; !ranks[r].returned && i < ranks[r].waits_count; i++) {
            const Request *request = request_of(ranks[r].waits_for[i]);
            if (is_done(request))
                continue;
            sends = sends && request->sends;
            if (listed++ < 4)
                length += snprintf(text + length, sizeof text / 5, "; rank %d waits %s%s%s", r,
                                   request->sends ? "until the other rank receives " : "for ", describe(request),
                                   ranks[request->peer].returned ? ", which has returned" : "");
            break;
        }
    }
    mailboxes_fail(sends ? "ranks wait for their sends before any of them starts to receive: start both, then wait"
                         : "a rank sends something else, or nothing, or with another tag, or in another order",
                   "deadlock: no rank can go on%s", text);
}

/* Called by the rank whose turn it is. Returns the next one; NOBODY: all have returned. */
static int draw_next(void)
{
    int able[MOST_RANKS], count = 0;
    bool all_returned = true;
    for (int r = 0; r < world_size; r++) {
        all_returned = all_returned && ranks[r].returned;
        if (can_run(&ranks[r]))
            able[count++] = r;
    }
    if (count == 0 && !all_returned)
        report_deadlock();
    return count > 0 ? able[rng_below(&rng, (uint64_t)count)] : NOBODY;
}

/* The address sanitizer must know on which stack it is. */
static void switch_context(ucontext_t *from, ucontext_t *to, const void *stack, size_t bytes)
{
#ifdef __SANITIZE_ADDRESS__
    void *fake_stack = NULL;
    __sanitizer_start_switch_fiber(&fake_stack, stack, bytes);
    swapcontext(from, to);
    __sanitizer_finish_switch_fiber(fake_stack, NULL, NULL);
#else
    (void)stack, (void)bytes;
    swapcontext(from, to);
#endif
}

static const void *test_stack;
static size_t test_stack_bytes;

/* Runs the next rank; the test, if all have returned. Returns when it is this one's turn again. */
static void give_turn(ucontext_t *from)
{
    int before = turn;
    turn = draw_next();
    if (turn != before)
        arrays_turn(turn == NOBODY ? EVERYBODY : turn, rules.keep_send);
    if (turn == NOBODY)
        switch_context(from, &test, test_stack, test_stack_bytes);
    else if (turn != before)
        switch_context(from, &ranks[turn].context, ranks[turn].stack, STACK_BYTES);
}

static void run_rank(void)
{
#ifdef __SANITIZE_ADDRESS__
    const void *from;
    size_t bytes;
    __sanitizer_finish_switch_fiber(NULL, &from, &bytes);
    if (test_stack == NULL) { /* the first one is called from there */
        test_stack = from;
        test_stack_bytes = bytes;
    }
#endif
    Rank *rank = &ranks[turn];
    under_test(rank->pg, rank->collective);
    rank->returned = true;
    CHECK(rank->pg->rank == turn && rank->pg->world_size == world_size, "rank %d has changed its group", turn);
    for (size_t i = 0; i < request_count && rules.strict; i++)
        if (requests[i]->rank == turn && !requests[i]->waited)
            mailboxes_fail("a request is missing in wait_for_messages(), so buffers are used after the return",
                           "rank %d has returned, and has not waited for %s", turn, describe(requests[i]));
    give_turn(&rank->context);
}

static void start_rank(Rank *rank, int number, const Collective *collective)
{
    rank->pg = rank->pg != NULL ? rank->pg : alloc_or_fault(sizeof *rank->pg);
    if (rank->pg->world_size != world_size) {
        free(rank->pg->scratch);
        *rank->pg = (ProcessGroup){.rank = number, .world_size = world_size};
    }
    *rank = (Rank){.pg = rank->pg, .collective = collective,
                   .stack = array_stack(number),
                   .traffic = {.to = NO_RANK, .from = NO_RANK}};
    getcontext(&rank->context);
    rank->context.uc_stack = (stack_t){.ss_sp = rank->stack, .ss_size = STACK_BYTES};
    makecontext(&rank->context, run_rank, 0);
}

/* ---- in place of comm/messages.c ---- */

void __wrap_start_send(ProcessGroup *pg, const Collective *c, const void *elements, size_t count, int to, int tag,
                       MPI_Request *handles, int *pending);
void __wrap_start_send(ProcessGroup *pg, const Collective *c, const void *elements, size_t count, int to, int tag,
                       MPI_Request *handles, int *pending)
{
    start(true, pg, c, (void *)elements, count, to, tag, handles, pending);
}

void __wrap_start_receive(ProcessGroup *pg, const Collective *c, void *elements, size_t count, int from, int tag,
                          MPI_Request *handles, int *pending);
void __wrap_start_receive(ProcessGroup *pg, const Collective *c, void *elements, size_t count, int from, int tag,
                          MPI_Request *handles, int *pending)
{
    start(false, pg, c, elements, count, from, tag, handles, pending);
}

void __wrap_wait_for_messages(ProcessGroup *pg, const Collective *c, int count, MPI_Request *handles);
void __wrap_wait_for_messages(ProcessGroup *pg, const Collective *c, int count, MPI_Request *handles)
{
    (void)pg, (void)c;
    Rank *rank = &ranks[turn];
    rank->waits_for = handles;
    rank->waits_count = count;
    give_turn(&rank->context);
    rank->waits_count = 0;
    for (int sends = 1; sends >= 0; sends--) /* sends first: what arrives may lie in the same place */
        for (int i = 0; i < count; i++) {
            Request *request = request_of(handles[i]);
            if (request != NULL && request->sends == sends)
                finish(request);
        }
    for (int i = 0; i < count; i++)
        handles[i] = MPI_REQUEST_NULL;
}

/* New memory for each call, of exactly this size: so the address sanitizer sees what is used beyond it, or too late. */
void *__wrap_group_scratch(ProcessGroup *pg, size_t bytes);
void *__wrap_group_scratch(ProcessGroup *pg, size_t bytes)
{
    free(pg->scratch);
    pg->scratch = malloc(bytes > 0 ? bytes : 1);
    CHECK(pg->scratch != NULL, "no memory");
    memset(pg->scratch, UNWRITTEN, bytes);
    return pg->scratch;
}

/* ---- a call on all ranks ---- */

static void expect_all_received(void)
{
    for (size_t i = 0; i < request_count; i++)
        if (requests[i]->sends && requests[i]->partner == NULL)
            mailboxes_fail("more is sent than the other rank asks for, or with another tag",
                           "rank %d has sent %s, which that rank never receives", requests[i]->rank,
                           describe(requests[i]));
}

void mailboxes_run(int count, const Rules *the_rules, const char *what, CollectiveFunction *function,
                   const Collective *collectives, Traffic *traffic)
{
    snprintf(call, sizeof call, "%s", what);
    rules = *the_rules;
    under_test = function;
    rng_seed(&rng, rules.seed);
    world_size = count;
    request_count = first_open = 0;
    turn = NOBODY;
    signal(SIGPROF, end_endless);
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = MOST_SECONDS}, NULL); /* of a processor */
    for (int r = 0; r < count; r++)
        start_rank(&ranks[r], r, &collectives[r]);
    give_turn(&test);
    for (int r = 0; r < count; r++)
        traffic[r] = ranks[r].traffic;
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = 0}, NULL);
    if (rules.strict)
        expect_all_received();
    for (size_t i = 0; i < request_count; i++) {
        free(requests[i]->copy);
        free(requests[i]);
    }
    free(requests);
    requests = NULL;
    request_count = 0;
}
