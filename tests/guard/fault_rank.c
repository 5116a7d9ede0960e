/* fault_rank.c: a program in which one rank misbehaves on purpose; the argument says how. Run by test_faults.sh.
 * It does not train; it makes the calls of a training step. The rank prints a line when its fault begins. With HALVES
 * set, the even and the odd ranks make these calls in groups of their own. */
#include <limits.h>
#include <mpi.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "autograd/ops.h"
#include "base/check.h"
#include "base/clock.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "comm/process_group.h"
#include "train/guard/guard.h"

#define STEPS 5
#define BAD_STEP 2
#define ELEMENTS 1000
#define TIMEOUT 3 /* seconds */

static void all_reduce_buckets(ProcessGroup *pg, float *gradient, bool leave_out_the_first)
{
    static const char *const names[] = {"bucket 0", "bucket 1"};
    Work *works[2] = {NULL, NULL};
    for (int b = leave_out_the_first; b < 2; b++)
        works[b] = pg_all_reduce_async(pg, gradient + b * ELEMENTS, gradient + b * ELEMENTS, ELEMENTS, DTYPE_F32,
                                       REDUCE_SUM, names[b]);
    for (int b = leave_out_the_first; b < 2; b++)
        work_wait(works[b]);
}

/* ---- MPI_Finalize, as in an MPI that hangs there ---- */

static bool finalize_hangs;

/* The linker uses this one; the library's own is PMPI_Finalize. */
int MPI_Finalize(void)
{
    while (finalize_hangs)
        sleep_seconds(1);
    return PMPI_Finalize();
}

/* ---- a device that never finishes its queued work ---- */

static atomic_bool device_hangs;

/* The linker uses this one; on a CPU the library's never waits. */
void __wrap_device_event_wait(DeviceEvent *event);
void __wrap_device_event_wait(DeviceEvent *event)
{
    (void)event;
    while (device_hangs)
        sleep_seconds(1);
}

/* ---- a backward pass: each all-reduce starts when the gradient is ready, as in stage 3 ---- */

#define WIDTH 10

typedef struct Toy {
    ProcessGroup *pg;
    ParameterList parameters;
    Tape tape;
    Work *works[2]; /* by parameter */
    bool falls_asleep;
} Toy;

static void gradient_ready(void *listener, Parameter *parameter)
{
    Toy *toy = listener;
    if (toy->falls_asleep && parameter->index == 0) /* the last gradient: the other one's all-reduce has started */
        sleep_seconds(1000);
    float *gradient = parameter->tensor.grad;
    toy->works[parameter->index] = pg_all_reduce_async(toy->pg, gradient, gradient, WIDTH * WIDTH, DTYPE_F32,
                                                       REDUCE_SUM, parameter->name);
}

static void run_backward(ProcessGroup *pg, bool falls_asleep)
{
    Toy toy = {.pg = pg, .falls_asleep = falls_asleep};
    const int64_t shape[] = {WIDTH, WIDTH}, input_shape[] = {1, WIDTH};
    float input[WIDTH] = {1}, target[WIDTH] = {0};
    Tensor *first = &parameters_add(&toy.parameters, "fc1.weight", 2, shape)->tensor;
    Tensor *second = &parameters_add(&toy.parameters, "fc2.weight", 2, shape)->tensor;
    void *gradients = parameters_allocate_gradients(&toy.parameters);
    tape_listen(&toy.tape, (TapeListener){.self = &toy, .gradient_ready = gradient_ready});
    tape_begin(&toy.tape, true);
    Tensor *x = tape_input(&toy.tape, input, DTYPE_F32, 2, input_shape);
    Tensor *output = op_linear(&toy.tape, op_linear(&toy.tape, x, first, NULL), second, NULL);
    tape_backward(&toy.tape, op_mse(&toy.tape, output, target), 1);
    for (int p = 0; p < 2; p++)
        work_wait(toy.works[p]);
    tape_free(&toy.tape);
    device_free(gradients);
    parameters_free(&toy.parameters);
}

/* ---- misbehaving ---- */

/* With 4 ranks, MPICH sends rank 0's data to rank 1 and, through rank 2, to rank 3. Rank 2 never calls, so rank 3
 * waits; ranks 0 and 1 have done their part, and compute for ever. */
static void broadcast_without_one(ProcessGroup *pg, float *buffer)
{
    if (pg_rank(pg) != 2)
        pg_broadcast(pg, buffer, ELEMENTS, DTYPE_F32, 0, "weights");
    sleep_seconds(1000);
}

static void start_all_reduces(ProcessGroup *pg, float *gradient, long count)
{
    for (long i = 0; i < count; i++)
        pg_all_reduce_async(pg, gradient, gradient, ELEMENTS, DTYPE_F32, REDUCE_SUM, "bucket 0");
}

/* The tests count the seconds from here. */
static void say_now(void)
{
    puts("now");
    fflush(stdout);
}

/* The weights of one rank differ in the last bit of one number, of parameter `which`. */
static void check_drift(ProcessGroup *pg, int which, bool bad)
{
    static const char *const names[] = {"fc1.weight", "fc2.weight", "fc3.weight"};
    float weights[12] = {0};
    ParameterList parameters = {0};
    for (int i = 0; i < 3; i++)
        parameters_add(&parameters, names[i], 1, (int64_t[]){4});
    parameters_from_host(&parameters, weights);
    replicas_check_equal(pg, &parameters);
    weights[4 * which + 3] = bad ? 0x1p-149f : 0;
    parameters_from_host(&parameters, weights);
    if (bad)
        say_now();
    replicas_check_equal(pg, &parameters);
}

static void misbehave(ProcessGroup *pg, const char *how, const char *argument, float *gradient)
{
    if (strcmp(how, "sleep") == 0)
        sleep_seconds(1000);
    else if (strcmp(how, "device") == 0)
        device_hangs = true; /* the rank still makes the same calls as the others */
    else if (strcmp(how, "skip") == 0)
        all_reduce_buckets(pg, gradient, true);
    else if (strcmp(how, "count") == 0)
        pg_all_reduce(pg, gradient, gradient, ELEMENTS / 2, DTYPE_F32, REDUCE_SUM, "bucket 0");
    else if (strcmp(how, "operation") == 0) { /* the same count as the others' all-reduce */
        static float parts[16 * ELEMENTS], mine[ELEMENTS];
        CHECK(pg_world_size(pg) <= 16, "room for 16 ranks");
        pg_reduce_scatter(pg, parts, mine, ELEMENTS, DTYPE_F32, REDUCE_SUM, "bucket 0");
    } else if (strcmp(how, "whole") == 0) /* the count must be that of one rank's part */
        pg_all_gather(pg, gradient, gradient, 2 * ELEMENTS, DTYPE_F32, "bucket 0");
    else if (strcmp(how, "bytes") == 0)
        pg_all_reduce(pg, gradient + ELEMENTS, gradient + ELEMENTS, ELEMENTS * sizeof *gradient, DTYPE_F32, REDUCE_SUM,
                      "bucket 0");
    else if (strcmp(how, "negative") == 0)
        pg_all_reduce(pg, gradient, gradient, (size_t)-ELEMENTS, DTYPE_F32, REDUCE_SUM, "bucket 0");
    else if (strcmp(how, "large") == 0) { /* MPI counts with int */
        static float none[1];
        pg_broadcast(pg, none, (size_t)INT_MAX + 1, DTYPE_F32, 0, "bucket 0");
    } else if (strcmp(how, "unstarted") == 0)
        work_wait(NULL);
    else if (strcmp(how, "twice") == 0) {
        Work *work = pg_all_reduce_async(pg, gradient, gradient, ELEMENTS, DTYPE_F32, REDUCE_SUM, "bucket 0");
        work_wait(work);
        work_wait(work);
    } else if (strcmp(how, "endless") == 0)
        start_all_reduces(pg, gradient, LONG_MAX);
    else if (strcmp(how, "unwaited") == 0) {
        start_all_reduces(pg, gradient, 3);
        pg_free_shared(pg, gradient);
    } else if (strcmp(how, "leave") == 0) { /* like a rank that runs out of data */
        pg_free_shared(pg, gradient);
        job_close(pg);
        exit(0);
    } else if (strcmp(how, "exit") == 0) /* like a library that has found an error */
        exit(atoi(argument));
    else if (strcmp(how, "_Exit") == 0)
        _Exit(atoi(argument));
    else if (strcmp(how, "abort") == 0)
        abort();
    else if (strcmp(how, "crash") == 0)
        raise(SIGSEGV);
    else if (strcmp(how, "kill") == 0)
        raise(SIGKILL);
    else if (strcmp(how, "bus") == 0) /* like a write to shared memory for which the host has no room */
        raise(SIGBUS);
}

/* Kills the last rank, or its parent, before the rank calls MPI_Init, where the others wait for it. */
static void die_early(const char *victim)
{
    const char *rank = getenv("PMI_RANK"), *ranks = getenv("PMI_SIZE");
    if (rank == NULL || ranks == NULL || atoi(rank) != atoi(ranks) - 1)
        return;
    say_now();
    kill(strcmp(victim, "parent") == 0 ? getppid() : getpid(), SIGKILL);
    sleep_seconds(1000);
}

static void take_step(ProcessGroup *pg, const char *how, const char *argument, float *gradient, int step)
{
    bool now = step == BAD_STEP, bad = now && job_rank() == job_world_size() - 1;
    job_set_step(step);
    if (bad)
        say_now();
    if (now && strcmp(how, "die") == 0) { /* all ranks make the same mistake; and then MPI_Finalize hangs */
        finalize_hangs = bad;
        die("planted: a mistake that every rank makes");
    }
    if (now && strcmp(how, "wire") == 0) /* 4000 bytes take 43 s on 3 ranks */
        pg_set_options(pg, &(ProcessGroupOptions){.timeout = TIMEOUT, .wire_gbps = 1e-6});
    if (now && strcmp(how, "broadcast") == 0)
        broadcast_without_one(pg, gradient);
    if (bad)
        misbehave(pg, how, argument, gradient);
    if (strcmp(how, "backward") == 0)
        run_backward(pg, bad);
    else
        all_reduce_buckets(pg, gradient, false);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    const char *where = argc > 2 ? argv[2] : "";
    supervise_rank();
    if (strcmp(how, "early") == 0)
        die_early(where);
    ProcessGroup *world = job_open(&argc, &argv), *pg = world;
    guard_job(world);
    const bool late_free = strcmp(how, "late_free") == 0, in_windows = late_free || strcmp(where, "shm") == 0;
    ProcessGroupOptions options = {.algorithm = in_windows ? ALLREDUCE_SHM : ALLREDUCE_MPI, .timeout = TIMEOUT,
                                   .debug_collectives = strcmp(where, "debug") == 0};
    pg_set_options(world, &options);
    if (getenv("FLIGHT_RECORDER") != NULL)
        guard_record_flight(world, getenv("FLIGHT_RECORDER"));
    device_init(pg_local_rank(world), 1);
    if (getenv("HALVES") != NULL)
        pg = pg_split(world, pg_rank(world) % 2);
    float *gradient = pg_alloc_shared(pg, 2 * ELEMENTS * sizeof *gradient);
    bool bad = pg_rank(pg) == pg_world_size(pg) - 1;
    if (strcmp(how, "model") == 0) { /* the last rank has another model */
        ParameterList parameters = {0};
        parameters_add(&parameters, "fc1.weight", 2, (int64_t[]){4, bad ? 5 : 3});
        if (bad)
            say_now();
        int64_t number = INT64_MAX, numbers[8];
        if (bad && strcmp(where, "text") == 0)
            replicas_check_same_text(pg, "a line is there", "planted", "");
        else if (bad && strcmp(where, "number") == 0)
            pg_all_gather(pg, &number, numbers, 1, DTYPE_I64, "a number");
        else
            replicas_check_same_model(pg, &parameters);
    }
    if (strcmp(how, "drift") == 0)
        check_drift(pg, atoi(where), atoi(where) == 1 ? pg_rank(pg) == 1 : bad);
    for (int step = 0; step < STEPS; step++)
        take_step(pg, how, where, gradient, step);
    if (late_free && bad) { /* the other ranks wait until it frees its memory, too */
        say_now();
        sleep_seconds(1000);
    }
    pg_free_shared(pg, gradient);
    finalize_hangs = bad && strcmp(how, "finalize") == 0;
    if (pg != world)
        pg_destroy(pg);
    job_close(world);
    return 0;
}
