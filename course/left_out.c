/* left_out.c: takes the place of parts of the whole project that stage 1 can do without: checkpoints, traces, the step
 * log, the flight recorder, signals that stop a run, three algorithms (who asks for one of these is told so), files
 * that appear whole or not at all, and what --data says of a file that is neither images nor text. */
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "comm/allreduce.h"
#include "data/file_kind.h"
#include "train/files/atomic_file.h"
#include "train/files/checkpoint.h"
#include "train/guard/guard.h"
#include "train/guard/parts.h"
#include "train/report/step_log.h"
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

bool checkpoint_try_save(const char *path, Optimizer *optimizer, const CheckpointState *state, bool quiet)
{
    (void)path, (void)optimizer, (void)state, (void)quiet;
    refuse("--save-best");
    return false;
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

void stop_no_more(void)
{
}

void stop_answer(void)
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

void all_reduce_halving_doubling(ProcessGroup *pg, const Collective *collective)
{
    all_reduce_recursive_doubling(pg, collective);
}

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
