/* left_out.c: takes the place of parts of the whole project that stage 1 can do without: checkpoints, generated text,
 * traces, the step log, the flight recorder, signals that stop a run, three algorithms (who asks for one of these is announced
 * so), gradients and operands in 16 bits, files that appear whole or not at all, and what --data says of a file that is
 * neither images nor text. */
#include <stdio.h>
#include <string.h>

#include "autograd/rounding.h"
#include "base/check.h"
#include "comm/allreduce.h"
#include "data/file_kind.h"
#include "ddp/codec.h"
#include "train/files/atomic_file.h"
#include "train/guard/guard.h"
#include "train/guard/parts.h"
#include "train/loop/evaluate.h"
#include "train/loop/replica.h"
#include "train/report/step_log.h"
#include "train/report/trace.h"

static void refuse(const char *flag)
{
    die("%s: this directory leaves it out; the whole project has it", flag);
}

long replica_resume(Replica *replica, const char *path, Sampler *sampler)
{
    (void)replica, (void)path, (void)sampler;
    refuse("--resume");
    return 0;
}

bool replica_save(Replica *replica, const char *path, ProcessGroup *pg, const Sampler *sampler, long next_step,
                  OnFailure on_failure)
{
    (void)replica, (void)path, (void)pg, (void)sampler, (void)next_step, (void)on_failure;
    refuse("--save and --save-best");
    return false;
}

void generate_text(Replica *replica, long bytes, uint64_t seed)
{
    (void)replica, (void)bytes, (void)seed;
    advise("--generate: this directory leaves it out; the whole project has it"); /* the run itself is complete */
}

/* ---- 16 bits: --precision and --grad-dtype begin in stage 4 ---- */

const void *rounded_operand(Tape *tape, const Tensor *x)
{
    (void)tape;
    return x->data;
}

const void *rounded_gradient(Tape *tape, Tensor *out)
{
    (void)tape;
    return out->grad;
}

const Parameter *parameters_find_stale(const ParameterList *list)
{
    (void)list;
    return NULL;
}

size_t parameters_operand_bytes(const ParameterList *list)
{
    (void)list;
    return 0;
}

static const GradientCodec as_they_are = {.name = "fp32", .dtype = DTYPE_F32};

const GradientCodec *codec_find(const char *name)
{
    return strcmp(name, as_they_are.name) == 0 ? &as_they_are : NULL;
}

PowerSgd *power_sgd_create(ParameterList *model, int rank, int first_rank, int ranks, int world_size)
{
    (void)model, (void)rank, (void)first_rank, (void)ranks, (void)world_size;
    return NULL;
}

const GradientCodec *power_sgd_codec(const PowerSgd *power)
{
    (void)power;
    return NULL;
}

void power_sgd_set_samples(PowerSgd *power, int64_t samples)
{
    (void)power, (void)samples;
}

ParameterList *power_sgd_state(PowerSgd *power)
{
    (void)power;
    return NULL;
}

void power_sgd_free(PowerSgd *power)
{
    (void)power;
}

/* ---- what is seen of a run ---- */

void timeline_observe(ProcessGroup *pg)
{
    (void)pg;
}

void step_log_open(StepLog *log, const char *path, long first_step, const char *unit)
{
    (void)log, (void)path, (void)first_step, (void)unit;
    refuse("--log");
}

void step_log_add(StepLog *log, const StepRow *row)
{
    (void)log, (void)row;
}

bool step_log_close(StepLog *log)
{
    (void)log;
    return true;
}

void trace_start(ProcessGroup *pg)
{
    (void)pg;
    refuse("--trace");
}

void trace_write(ProcessGroup *pg, const char *path)
{
    (void)pg, (void)path;
}

void guard_record_flight(ProcessGroup *pg, const char *path)
{
    (void)pg, (void)path;
    refuse("--flight-recorder");
}

void flight_write(void)
{
}

/* Without a parent process, the launcher reports a rank that dies without a message. */
void supervise_rank(void)
{
}

/* SIGTERM and SIGUSR1 end the program. */
void stop_on_signals(long first_step, double timeout)
{
    (void)first_step, (void)timeout;
}

int stop_is_due(long step)
{
    (void)step;
    return 0;
}

void stop_restore_signals(void)
{
}

void stop_answer(void)
{
}

void launcher_send(const char *words)
{
    (void)words;
}

void supervise_last_call(const char *group, long sequence)
{
    (void)group, (void)sequence;
}

/* ---- algorithms ---- */

void all_reduce_root(ProcessGroup *pg, const Collective *collective)
{
    (void)pg, (void)collective;
    refuse("--allreduce root");
}

void run_ring(ProcessGroup *pg, const Collective *collective)
{
    (void)pg, (void)collective;
    refuse("--allreduce ring");
}

void all_reduce_recursive_doubling(ProcessGroup *pg, const Collective *collective)
{
    (void)pg, (void)collective;
    refuse("--allreduce recursive-doubling");
}

void all_reduce_hierarchical(ProcessGroup *pg, const Collective *collective)
{
    (void)pg, (void)collective;
    FAULT("the group was not made for it");
}

void all_reduce_hierarchical_small(ProcessGroup *pg, const Collective *collective)
{
    all_reduce_hierarchical(pg, collective);
}

void reduce_scatter_hierarchical(ProcessGroup *pg, const Collective *collective)
{
    all_reduce_hierarchical(pg, collective);
}

void all_gather_hierarchical(ProcessGroup *pg, const Collective *collective)
{
    all_reduce_hierarchical(pg, collective);
}

void hierarchy_open(ProcessGroup *pg)
{
    (void)pg;
    refuse("--allreduce hierarchical");
}

void hierarchy_close(ProcessGroup *pg)
{
    (void)pg;
}

int pg_hosts(const ProcessGroup *pg)
{
    (void)pg;
    return 1;
}

void all_reduce_halving_doubling(ProcessGroup *pg, const Collective *collective)
{
    all_reduce_recursive_doubling(pg, collective);
}

/* ---- files ---- */

/* --json writes its file directly. */
void atomic_check_writable(const char *flag, const char *path)
{
    (void)flag, (void)path;
}

bool atomic_same_file(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

void atomic_open(AtomicFile *file, const char *path)
{
    *file = (AtomicFile){.path = path, .stream = fopen(path, "w")};
    CHECK(file->stream != NULL, "%s: cannot be written", path);
}

void atomic_write(AtomicFile *file, const void *bytes, size_t count)
{
    fwrite(bytes, 1, count, file->stream);
}

void atomic_commit(AtomicFile *file)
{
    CHECK(!ferror(file->stream) && fclose(file->stream) == 0, "%s: cannot be written", file->path);
}

const char *file_kind(const unsigned char *bytes, int64_t size)
{
    (void)bytes, (void)size;
    return NULL;
}

int utf8_length(const unsigned char *bytes, int64_t count)
{
    (void)bytes, (void)count;
    return 1;
}
