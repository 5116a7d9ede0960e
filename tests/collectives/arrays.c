/* arrays.c: see arrays.h. */
#include "arrays.h"

#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/check.h"
#include "mailboxes.h"

enum { PAGE = 4096, GUARD_BYTES = 256, GUARDED = 0x5C };
#ifdef __SANITIZE_ADDRESS__
static const size_t behind = 0; /* the sanitizer sees what is used there */
#else
static const size_t behind = GUARD_BYTES;
#endif
enum { SMALL_ROOM = 1 << 20, LARGE_ROOM = 64 << 20 }; /* bytes; few ranks have a large one */

/* An array and the guard behind it lie at the end of a room. The page that follows cannot be used. */
typedef struct Array {
    unsigned char *room, *start, *end; /* NULL if it has not been asked for */
    size_t room_bytes;
    bool in_use; /* in this call */
} Array;

static Array arrays[MOST_RANKS][ARRAY_NAMES];
static const char *const names[] = {[RECEIVE] = "receive", [SEND] = "send"};
static unsigned char *stacks[MOST_RANKS]; /* their first page cannot be used */
static int whose_turn = EVERYBODY;

static bool lies_in(const unsigned char *address, const unsigned char *start, const unsigned char *end)
{
    return start <= address && address < end;
}

/* ---- what is wrong ---- */

static void report_use(int rank, ArrayName name, const unsigned char *address)
{
    const Array *array = &arrays[rank][name];
    if (array->room == NULL)
        return;
    if (lies_in(address, array->end, array->room + array->room_bytes + PAGE) && rank == whose_turn)
        mailboxes_fail("a wrong count or start of a chunk", "rank %d uses elements beyond the end of %s", rank,
                       names[name]);
    if (lies_in(address, array->room, array->end) && rank != whose_turn)
        mailboxes_fail("an address is sent instead of elements. Ranks are processes: one cannot see another's memory",
                       "rank %d uses the array %s of rank %d", whose_turn, names[name], rank);
    if (lies_in(address, array->start, array->end))
        mailboxes_fail("partial sums are added up in send; use receive or group_scratch()",
                       "rank %d writes to send, which is another array than receive", rank);
}

static void on_fault(int signal_number, siginfo_t *fault, void *context)
{
    (void)context;
    const unsigned char *stack = whose_turn == EVERYBODY ? NULL : stacks[whose_turn];
    if (stack != NULL && lies_in(fault->si_addr, stack, stack + PAGE))
        mailboxes_fail("large local arrays, or an endless recursion: buffers come from group_scratch()",
                       "rank %d's stack of %zu MiB is full", whose_turn, STACK_BYTES >> 20);
    for (int rank = 0; rank < MOST_RANKS; rank++)
        for (int name = 0; name < ARRAY_NAMES; name++)
            report_use(rank, (ArrayName)name, fault->si_addr);
    signal(signal_number, SIG_DFL); /* it is no array: the same fault again ends the process */
}

/* Called for each collective, because cmocka sets another handler for each case. The handler does not run on the rank's
 * stack, which may be full. */
static void watch_faults(void)
{
    static unsigned char stack[1 << 16];
    const stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
    const struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    CHECK(sigaltstack(&alternate, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0, "no handler of faults");
}

static bool is_guarded(const unsigned char *bytes, size_t count)
{
    size_t same = 0;
    while (same < count && bytes[same] == GUARDED)
        same++;
    return same == count;
}

void array_expect_guards(int rank, ArrayName name)
{
    const Array *array = &arrays[rank][name];
    if (!is_guarded(array->start - GUARD_BYTES, GUARD_BYTES))
        mailboxes_fail("a wrong start of a chunk", "rank %d has written before the start of %s", rank, names[name]);
    if (!is_guarded(array->end, behind))
        mailboxes_fail("a wrong count or start of a chunk", "rank %d has written beyond the end of %s", rank,
                       names[name]);
}

/* collectives.c is compiled with -fstack-clash-protection: it cannot leap over the page. */
void *array_stack(int rank)
{
    if (stacks[rank] == NULL) {
        stacks[rank] = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK((void *)stacks[rank] != MAP_FAILED && mprotect(stacks[rank], PAGE, PROT_NONE) == 0, "no memory for a stack");
    }
    return stacks[rank];
}

/* ---- whose they are ---- */

static void protect(int rank, bool may_use, bool keep_send)
{
    for (int name = 0; name < ARRAY_NAMES; name++) {
        Array *array = &arrays[rank][name];
        const int use = !may_use ? PROT_NONE : name == SEND && keep_send ? PROT_READ : PROT_READ | PROT_WRITE;
        if (!array->in_use)
            continue;
        unsigned char *first = array->room + (size_t)(array->start - GUARD_BYTES - array->room) / PAGE * PAGE;
        CHECK(mprotect(first, (size_t)(array->room + array->room_bytes - first), use) == 0, "memory cannot be protected");
        array->in_use = whose_turn != EVERYBODY;
    }
}

void arrays_turn(int rank, bool keep_send)
{
    const int before = whose_turn;
    whose_turn = rank;
    if (before == EVERYBODY)
        watch_faults();
    for (int other = 0; other < MOST_RANKS; other++)
        if (rank == EVERYBODY || before == EVERYBODY || other == before || other == rank)
            protect(other, rank == EVERYBODY || other == rank, rank != EVERYBODY && keep_send);
}

unsigned char *array_new(int rank, ArrayName name, size_t bytes)
{
    Array *array = &arrays[rank][name];
    CHECK(bytes + GUARD_BYTES + behind <= LARGE_ROOM, "an array of %zu bytes is too long", bytes);
    if (array->room == NULL || bytes + GUARD_BYTES + behind > array->room_bytes) {
        if (array->room != NULL)
            munmap(array->room, array->room_bytes + PAGE);
        array->room_bytes = bytes + GUARD_BYTES + behind > SMALL_ROOM ? LARGE_ROOM : SMALL_ROOM;
        array->room = mmap(NULL, array->room_bytes + PAGE, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(array->room != MAP_FAILED && mprotect(array->room + array->room_bytes, PAGE, PROT_NONE) == 0,
              "no memory for an array");
    }
    array->end = array->room + array->room_bytes - behind;
    array->start = array->end - bytes;
    array->in_use = true;
    memset(array->start - GUARD_BYTES, GUARDED, GUARD_BYTES);
    memset(array->end, GUARDED, behind);
    return array->start;
}
