/* collectives_options.h: what tools/bench/collectives measures. */
#ifndef LOCKSTEP_BENCH_COLLECTIVES_OPTIONS_H
#define LOCKSTEP_BENCH_COLLECTIVES_OPTIONS_H

#include "comm/process_group.h"

enum { CONTENDERS = 9, MAX_SIZES = 40, MAX_SAMPLES = 1000 };

typedef struct Contender {
    const char *name;
    AllReduceAlgorithm algorithm;
    bool blocking;  /* MPI_Allreduce itself, without lockstep: the yardstick */
    bool in_window; /* the buffer is in memory that the host's ranks share */
    bool on_device; /* the buffer is the GPU's, and NCCL sums it */
} Contender;

extern const Contender contenders[CONTENDERS];

typedef enum Measured { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, OPERATIONS } Measured;

extern const char *const operation_names[OPERATIONS];

typedef struct Settings {
    size_t sizes[MAX_SIZES]; /* bytes */
    int size_count, samples;
    double budget; /* seconds for one contender at one size */
    bool wanted[CONTENDERS];
    bool operations[OPERATIONS]; /* which to measure */
    double wire_gbps, wire_microseconds; /* the emulated link, as --wire of train; 0: none */
    const char *csv; /* NULL: no such file */
    bool help;
} Settings;

extern const char collectives_usage[];

/* Parses the command line; dies on a mistake. */
Settings collectives_options(int argc, char **argv);

#endif
