/* simulate.h: replays a recorded training step with other ranks, another link, other buckets, as another stage.
 *
 * Interface: fill recording() and the gradients' two arrays once. For each question fill question(), call simulate() or
 * simulate_best_caps(), and read answer(). All arrays are doubles in static memory: one simulation at a time.
 * Times are in seconds, sizes in bytes. The source is freestanding C, because bench/whatif links it and the report page
 * runs it as WebAssembly: both give the same bits.
 *
 * In JavaScript (simulate.wasm needs no imports, and its memory never grows, so views stay valid):
 *
 *     const { exports: x } = (await WebAssembly.instantiate(bytes, {})).instance;
 *     const view = (place, count) => new Float64Array(x.memory.buffer, place, count);
 *     view(x.recording_bytes(), n).set([...]);                  // n gradients, in the order that buckets are filled
 *     view(x.recording_ready(), n).set([...]);
 *     view(x.recording(), 7).set([n, forward, backward, scaling, optimizer, left, 0]);
 *     const q = view(x.question(), 19), a = view(x.answer(), 9);
 *     q.fill(0);  q[0] = 3;  q[1] = 8;  q[2] = 1;  q[3] = q[4] = 25 * 2 ** 20;  q[5] = 50e-6;  q[6] = 125e6;
 *     x.simulate();
 *     console.log(a[0], a[3], a[5]);                            // step, exposed, efficiency
 *
 * `whatif TRACE... --recording` prints these arrays for a trace, as JSON.
 * To build it: cmake --build build --target simulate_wasm writes build/bench/simulate.wasm (needs clang and wasm-ld):
 *
 *     clang --target=wasm32 -O2 -nostdlib -ffreestanding -ffp-contract=off -c tools/bench/simulate.c -o simulate.o
 *     wasm-ld --no-entry --export=recording --export=recording_bytes --export=recording_ready --export=question \
 *         --export=simulate --export=simulate_best_caps --export=answer --export=answer_phases \
 *         --export=answer_collectives simulate.o -o simulate.wasm
 */
#ifndef LOCKSTEP_BENCH_SIMULATE_H
#define LOCKSTEP_BENCH_SIMULATE_H

#define MOST_GRADIENTS 4096
#define MOST_PHASES 1024       /* as many as are kept to be drawn */
#define MOST_COLLECTIVES 16384 /* the same */

/* ---- what was recorded: one step of one rank, as long as it takes while nothing else slows it ---- */

typedef enum Recording {
    RECORDED_GRADIENTS, /* how many */
    RECORDED_FORWARD,   /* of one micro-batch; so is backward */
    RECORDED_BACKWARD,
    RECORDED_SCALING,   /* dividing all gradients by the batch's size, after their all-reduces */
    RECORDED_OPTIMIZER,
    RECORDED_LEFT,      /* of a micro-batch: loading, bookkeeping */
    RECORDED_SPREAD,    /* standard deviation of a rank's computing time, as a share of it; 0: all ranks equal */
    RECORDING_COUNT
} Recording;

double *recording(void);       /* RECORDING_COUNT numbers */
double *recording_bytes(void); /* of each gradient, in the order in which buckets are filled */
double *recording_ready(void); /* of each gradient, from the beginning of backward; at most RECORDED_BACKWARD */

/* ---- what is asked. 0 means "without" for everything from ASK_PAIRWISE on ---- */

typedef enum Question {
    ASK_STAGE,            /* 1 to 4; stages 1 to 3 synchronise each micro-batch, stage 4 the last one only */
    ASK_RANKS,            /* 1 or more; each computes as much as the recorded one */
    ASK_ACCUMULATE,       /* micro-batches of a step, each as large as the recorded one; at most 1024 */
    ASK_FIRST_CAP,        /* bytes at which the first bucket is closed; 0: one gradient per bucket */
    ASK_CAP,              /* the same for all others */
    ASK_LATENCY,          /* of one message */
    ASK_BANDWIDTH,        /* of each rank's link, bytes per second in one direction; 0: the link costs nothing */
    ASK_PAIRWISE,         /* 0: a ring, 2(N-1) latencies; 1: halving-doubling, 2 log2 N (any N: rounded up) */
    ASK_CALL_SECONDS,     /* what each all-reduce takes besides, however short */
    ASK_BYTE_SECONDS,     /* adding up, for each byte that a ring sends: the longer one of this and the link counts */
    ASK_CALL_PROCESSOR,   /* processor time that an all-reduce in flight takes from computing: for itself ... */
    ASK_BYTE_PROCESSOR,   /* ... and for each byte that a ring sends */
    ASK_SLOWDOWN,         /* share of its speed that computing loses while an all-reduce is in flight (GPUs) */
    ASK_CORES,            /* cores that all ranks share; 0: each rank has its own */
    ASK_CROWDING,         /* how much longer forward and backward take when all cores compute, as a share */
    ASK_MEMORY_CROWDING,  /* the same for scaling and the optimizer, which wait for memory; both need ASK_CORES */
    ASK_WAKE,             /* stages 3 and 4: until a queued all-reduce starts, if none is under way: to wake a thread */
    ASK_EMULATED,         /* 1: the link is train's --wire, over which ranks wait less for each other: see below */
    ASK_FIRST_WAKE,       /* as ASK_WAKE, for the first all-reduce of a backward pass: the thread has slept for long */
    QUESTION_COUNT
} Question;

double *question(void); /* QUESTION_COUNT numbers */

/* Over a real link an all-reduce begins when the last rank is there. --wire emulates the link's time from the moment
 * when the rank itself is there. So a rank may be behind by as much as the last all-reduce takes, before others wait.
 * What it is behind in one step it may catch up in the next. */

/* Ranks that share cores take turns, and not evenly. Whoever is late in forward has the cores more for itself in
 * backward, so only its first gradients are late. */

/* ---- the answer ---- */

typedef enum Answer {
    ANSWER_STEP,          /* from the first forward to the end of the optimizer's step, and what is left */
    ANSWER_COMPUTE,       /* of it, computing (with everything that slows it) */
    ANSWER_COMMUNICATION, /* all-reduces in flight: exposed and hidden */
    ANSWER_EXPOSED,       /* training waits for all-reduces or slower ranks */
    ANSWER_HIDDEN,        /* communication minus exposed, at least 0 */
    ANSWER_EFFICIENCY,    /* a step of one rank with nothing to wait for / this step */
    ANSWER_BUCKETS,
    ANSWER_PHASES,        /* how many answer_phases() has */
    ANSWER_COLLECTIVES,   /* how many answer_collectives() has */
    ANSWER_COUNT
} Answer;

void simulate(void);

/* The mean of the largest of this many random numbers with mean 0 and standard deviation 1 (normal distribution). */
double largest_of_ranks(int ranks);

/* Chooses ASK_FIRST_CAP and ASK_CAP: the powers of two with the shortest step, with as few buckets as that takes;
 * writes them into question(). Then as simulate(). */
void simulate_best_caps(void);

double *answer(void);             /* ANSWER_COUNT numbers */
double *answer_phases(void);      /* for each: kind (0 forward, 1 backward, 2 optimizer), begin, end */
double *answer_collectives(void); /* for each: queued, started, done, bytes */

#endif
