/* left_out.c: takes the place of parts of the whole project that stage 1 can do without: checkpoints, traces, the
 * flight recorder, two algorithms, and the choice of bucket caps. Who asks for one of the first four is told so. */
#include "base/check.h"
#include "comm/allreduce.h"
#include "ddp/bucket_plan.h"
#include "train/files/checkpoint.h"
#include "train/guard/guard.h"
#include "train/guard/parts.h"
#include "train/report/trace.h"

static void refuse(const char *flag)
{
    die("%s: this directory leaves it out; the whole project has it", flag);
}

void checkpoint_add_setting(CheckpointState *state, const char *key, const char *format, ...)
{
    (void)state, (void)key, (void)format;
}

void checkpoint_save(const char *path, Optimizer *optimizer, const CheckpointState *state)
{
    (void)path, (void)optimizer, (void)state;
    refuse("--save");
}

bool checkpoint_load(const char *path, Optimizer *optimizer, CheckpointState *state)
{
    (void)path, (void)optimizer, (void)state;
    refuse("--resume");
    return false;
}

CheckpointSetting *checkpoint_setting(CheckpointState *state, const char *key)
{
    (void)key;
    return &state->settings[0];
}

void checkpoint_compare(const char *path, const CheckpointState *saved, const CheckpointState *ours)
{
    (void)path, (void)saved, (void)ours;
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

void launcher_tell(const char *words)
{
    (void)words;
}

void supervise_last_call(const char *group, long sequence)
{
    (void)group, (void)sequence;
}

void all_reduce_root(ProcessGroup *pg, const Collective *collective)
{
    (void)pg, (void)collective;
    refuse("--allreduce root");
}

void all_reduce_recursive_doubling(ProcessGroup *pg, const Collective *collective)
{
    (void)pg, (void)collective;
    refuse("--allreduce recursive-doubling");
}

void all_reduce_halving_doubling(ProcessGroup *pg, const Collective *collective)
{
    all_reduce_recursive_doubling(pg, collective);
}

/* Stage 1 has no buckets, so nothing reads their caps. */
BucketCaps bucket_caps_choose(ProcessGroup *pg, const ParameterList *parameters, Tape *tape, Tensor *loss, float seed,
                              bool overlap)
{
    (void)pg, (void)parameters, (void)tape, (void)loss, (void)seed, (void)overlap;
    return (BucketCaps){0};
}
