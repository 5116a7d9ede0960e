/* fibers.cpp: runs the threads of a block on one CPU core.
 *
 * A fiber has a stack of its own and a place in the code where it continues. The first fiber runs thread 0, then thread
 * 1, and so on: a kernel without barriers is a plain loop. But a thread that must wait for others keeps its fiber, and
 * the next fiber starts with the threads that have not begun. From then on the fibers that do not wait run in turns.
 * When all threads have reached a barrier, the last one releases the others.
 *
 * Fibers start with ucontext and switch with the compiler's own setjmp and longjmp. swapcontext would do both, but it
 * calls the operating system for the signal mask each time, which takes twenty times as long. The C library's longjmp
 * checks that it stays on one stack, and makes the address sanitizer clear that stack. (The compiler's longjmp must not
 * be in the same function as its setjmp. Functions that switch are not instrumented by the sanitizer, for that reason.)
 */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace
{

#define CHANGES_PLACES __attribute__((noinline, no_sanitize("address")))

const int WARP = 32, MAX_THREADS = 1024;
const size_t STACK_BYTES = 256 * 1024, GUARD_BYTES = 64 * 1024;
enum State { RUNS, AT_WARP, AT_BLOCK, LEFT };

/* A thread of the present block. */
struct Thread {
    State state;
    EmulatedPlace place; /* where it waits, or waited last */
    int meetings;        /* exchanges of its warp up to now */
};

struct Fiber {
    void *context[5]; /* where it continues */
    char *stack;      /* NULL: not allocated yet. Kept from block to block */
    bool begun;
    int thread;            /* -1: none */
    void *sanitizer_stack; /* the address sanitizer's own */
};

/* The values of a warp's lanes in an exchange. Two buffers: a fast lane may be at its next exchange while a slow lane
 * still reads from this one, but no lane is two exchanges ahead. */
struct Warp {
    int arrived;
    alignas(16) char exchange[2][WARP][EMULATED_SLOT];
};

Fiber fibers[MAX_THREADS];
int fibers_used; /* fibers that got threads in this block */
Fiber *current;
void *host[5]; /* where the block was started; continues when no fiber can */

/* The present launch and block. */
const char *kernel_name;
const std::function<void()> *thread_function;
Thread threads[MAX_THREADS];
Warp warps[MAX_THREADS / WARP];
int thread_count, threads_begun, threads_arrived;
bool reverse, anyone_met;

/* ---- switching fibers. The address sanitizer must know which stack is in use. ---- */

#if defined(__SANITIZE_ADDRESS__)
void *host_sanitizer_stack;
const void *host_stack;
size_t host_stack_bytes;
bool comes_from_host;

void leave_host(Fiber *to)
{
    comes_from_host = true;
    __sanitizer_start_switch_fiber(&host_sanitizer_stack, to->stack, STACK_BYTES);
}
void back_in_host()
{
    __sanitizer_finish_switch_fiber(host_sanitizer_stack, nullptr, nullptr);
}
void leave_fiber(Fiber *from, Fiber *to)
{
    __sanitizer_start_switch_fiber(&from->sanitizer_stack, to != nullptr ? to->stack : host_stack,
                                   to != nullptr ? STACK_BYTES : host_stack_bytes);
}
void back_in_fiber(Fiber *to)
{
    const void *last_stack;
    size_t last_bytes;
    __sanitizer_finish_switch_fiber(to->begun ? to->sanitizer_stack : nullptr, &last_stack, &last_bytes);
    if (comes_from_host) {
        host_stack = last_stack;
        host_stack_bytes = last_bytes;
    }
    comes_from_host = false;
}
#else
void leave_host(Fiber *)
{
}
void back_in_host()
{
}
void leave_fiber(Fiber *, Fiber *)
{
}
void back_in_fiber(Fiber *)
{
}
#endif

void set_thread(int thread)
{
    current->thread = thread;
    const unsigned n = (unsigned)thread;
    threadIdx = uint3{n % blockDim.x, n / blockDim.x % blockDim.y, n / (blockDim.x * blockDim.y)};
}

[[noreturn]] void begin_fiber(Fiber *fiber);

[[noreturn]] CHANGES_PLACES void back_to_host()
{
    __builtin_longjmp(host, 1);
}

/* Does not return: the fiber continues where it paused, or begins. */
[[noreturn]] CHANGES_PLACES void go_on_with(Fiber *fiber)
{
    current = fiber;
    if (fiber->thread >= 0)
        set_thread(fiber->thread);
    if (!fiber->begun)
        begin_fiber(fiber);
    __builtin_longjmp(fiber->context, 1);
}

/* Below the stack is an inaccessible guard: a thread that needs too much stack crashes instead of writing elsewhere. */
void make_stack(Fiber *fiber)
{
    char *memory = (char *)mmap(nullptr, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, GUARD_BYTES, PROT_NONE) != 0)
        emulator_fail("no memory for the stack of a thread");
    fiber->stack = memory + GUARD_BYTES;
}

/* The fiber to run next: one for threads that have not begun, or the next one that does not wait. NULL: none. */
Fiber *next_fiber()
{
    if (threads_begun < thread_count) {
        Fiber *fresh = &fibers[fibers_used++];
        fresh->thread = -1;
        if (fresh->stack == nullptr)
            make_stack(fresh);
        return fresh;
    }
    Fiber *fiber = current;
    for (int i = 0; i < fibers_used; i++) {
        fiber = fiber + 1 < fibers + fibers_used ? fiber + 1 : fibers;
        if (fiber->thread >= 0 && threads[fiber->thread].state == RUNS)
            return fiber;
    }
    return nullptr;
}

/* Pauses the calling fiber and continues another one. */
CHANGES_PLACES void pause_fiber()
{
    Fiber *self = current, *next = next_fiber();
    if (__builtin_setjmp(self->context) == 0) {
        leave_fiber(self, next);
        if (next == nullptr)
            back_to_host();
        go_on_with(next);
    }
    back_in_fiber(self);
}

/* The main function of a fiber: runs threads that have not begun, one after the other. */
void fiber_main()
{
    back_in_fiber(current);
    current->begun = true;
    for (;;) {
        while (threads_begun < thread_count) {
            set_thread(reverse ? thread_count - 1 - threads_begun : threads_begun);
            threads_begun++;
            (*thread_function)();
            threads[current->thread].state = LEFT;
        }
        current->thread = -1;
        pause_fiber();
    }
}

void begin_fiber(Fiber *fiber)
{
    static ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = fiber->stack;
    start.uc_stack.ss_size = STACK_BYTES;
    makecontext(&start, fiber_main, 0);
    setcontext(&start);
    abort(); /* setcontext returns only if it fails */
}

/* ---- threads that do not meet ---- */

void describe(char *text, size_t size, int thread)
{
    const Thread *t = &threads[thread];
    if (t->state == LEFT)
        snprintf(text, size, "thread %d has left the kernel", thread);
    else
        snprintf(text, size, "thread %d waits at %s (%s:%d)", thread, t->place.call, t->place.file, t->place.line);
}

[[noreturn]] void fail_divergent(int one, int other)
{
    char first[400], second[400];
    describe(first, sizeof first, one);
    describe(second, sizeof second, other);
    emulator_fail(
        "divergence: %s, but %s. All threads of a block must reach the same __syncthreads, and all lanes of a "
        "warp the same shuffle: is one inside an if, a loop of unequal length, or behind a return?",
        first, second);
}

/* No thread can continue: names a thread that waits, and one that has not reached the same place. */
[[noreturn]] void fail_stuck()
{
    int waits = 0;
    while (threads[waits].state == LEFT)
        waits++;
    for (int i = 0; i < thread_count; i++)
        if (threads[i].state != threads[waits].state)
            fail_divergent(waits, i);
    emulator_fail("all threads wait, though all have come: a mistake in the emulator");
}

/* ---- meeting ---- */

/* Waits until the threads `first` to `end` - 1 have called it; *arrived counts them. */
void meet(State state, int first, int end, int *arrived, EmulatedPlace place)
{
    threads[current->thread].state = state;
    threads[current->thread].place = place;
    anyone_met = true;
    if (++*arrived < end - first) {
        pause_fiber();
        return;
    }
    *arrived = 0; /* the last one releases all others, and continues at once */
    for (int i = first; i < end; i++) {
        const EmulatedPlace *other = &threads[i].place;
        if (other->line != place.line || other->file != place.file)
            fail_divergent(current->thread, i);
        threads[i].state = RUNS;
    }
}

/* Fills the shared memory of all kernels with NaN, so that a block cannot use an earlier block's numbers. */
extern "C" char __start_emulated_shared[] __attribute__((weak));
extern "C" char __stop_emulated_shared[] __attribute__((weak));

void spoil_shared_memory()
{
    char *start = __start_emulated_shared, *stop = __stop_emulated_shared;
    if (start != nullptr)
        memset(start, 0xff, (size_t)(stop - start));
}

CHANGES_PLACES void run_block()
{
    threads_begun = threads_arrived = fibers_used = 0;
    anyone_met = false;
    for (int warp = 0; warp * WARP < thread_count; warp++)
        warps[warp].arrived = 0;
    memset(threads, 0, (size_t)thread_count * sizeof *threads);
    if (__builtin_setjmp(host) == 0) {
        Fiber *first = next_fiber();
        leave_host(first);
        go_on_with(first);
    }
    back_in_host();
    for (int i = 0; i < thread_count; i++)
        if (threads[i].state != LEFT)
            fail_stuck();
    pipeline_expect_empty();
}

} // namespace

void fibers_run(const char *kernel, dim3 grid, dim3 block, const std::function<void()> &thread)
{
    for (int i = 0; i < MAX_THREADS && kernel_name != nullptr; i++)
        fibers[i].begun = false; /* left over if the last kernel crashed and a test jumped out of it */
    const char *order = getenv("LOCKSTEP_EMULATED_ORDER");
    reverse = order != nullptr && strcmp(order, "reverse") == 0;
    kernel_name = kernel;
    thread_function = &thread;
    gridDim = grid;
    blockDim = block;
    thread_count = (int)(block.x * block.y * block.z);
    const long blocks = (long)grid.x * grid.y * grid.z;
    anyone_met = true;
    for (long i = 0; i < blocks; i++) {
        const long n = reverse ? blocks - 1 - i : i;
        blockIdx = uint3{(unsigned)(n % grid.x), (unsigned)(n / grid.x % grid.y), (unsigned)(n / grid.x / grid.y)};
        if (anyone_met)
            spoil_shared_memory(); /* needed only if threads met: shared memory is useless without a barrier */
        run_block();
    }
    kernel_name = nullptr;
}

const char *fibers_kernel()
{
    return kernel_name;
}

void emulator_meet_block(EmulatedPlace place)
{
    meet(AT_BLOCK, 0, thread_count, &threads_arrived, place);
}

void emulator_meet_warp(unsigned mask, EmulatedPlace place)
{
    const int warp = current->thread / WARP;
    if (mask != 0xffffffffu)
        emulator_fail("%s (%s:%d) with mask 0x%08x: only the full mask is supported", place.call, place.file,
                      place.line, mask);
    if ((warp + 1) * WARP > thread_count)
        emulator_fail("%s (%s:%d) in a block of %d threads: its last warp lacks lanes that the full mask names",
                      place.call, place.file, place.line, thread_count);
    threads[current->thread].meetings++;
    meet(AT_WARP, warp * WARP, (warp + 1) * WARP, &warps[warp].arrived, place);
}

const char *emulator_exchange(const void *value, size_t bytes, unsigned mask, EmulatedPlace place)
{
    if (bytes > EMULATED_SLOT)
        emulator_fail("%s (%s:%d) of %zu bytes: %d at most", place.call, place.file, place.line, bytes, EMULATED_SLOT);
    const int thread = current->thread;
    char(*exchange)[EMULATED_SLOT] = warps[thread / WARP].exchange[threads[thread].meetings % 2];
    memcpy(exchange[thread % WARP], value, bytes);
    emulator_meet_warp(mask, place);
    return exchange[0];
}

void emulator_shuffle(void *value, size_t bytes, int source, unsigned mask, EmulatedPlace place)
{
    if (bytes > 8)
        emulator_fail("%s (%s:%d) of %zu bytes: 8 at most", place.call, place.file, place.line, bytes);
    memcpy(value, emulator_exchange(value, bytes, mask, place) + source * EMULATED_SLOT, bytes);
}

int emulator_lane()
{
    return current->thread % WARP;
}
