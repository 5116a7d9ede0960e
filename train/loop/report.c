/* report.c: prints a run's settings and results; lists all keys of the summary. Declared in trainer.h. */
#include "train/loop/trainer.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "autograd/rounding.h"
#include "base/check.h"
#include "base/clock.h"
#include "device/device.h"
#include "train/guard/guard.h"

double report_resident_mb(void)
{
    long pages_total = 0, pages_resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (file == NULL)
        return NAN;
    int fields = fscanf(file, "%ld %ld", &pages_total, &pages_resident);
    fclose(file);
    return fields == 2 ? (double)pages_resident * (double)sysconf(_SC_PAGESIZE) / 1e6 : (double)NAN;
}

double report_peak_rss_mb(ProcessGroup *pg)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double peak = (double)usage.ru_maxrss * 1024 / 1e6; /* Linux counts in KiB */
    pg_all_reduce(pg, &peak, &peak, 1, DTYPE_F64, REDUCE_MAX, "peak memory");
    return peak;
}

static void print_own_data(const Options *options, const Sampler *sampler)
{
    printf("own data: samples");
    for (int rank = 0; rank < options->rank_samples_count; rank++)
        printf("%s %lld", rank > 0 ? "," : "", (long long)options->rank_samples[rank]);
    printf(" on ranks 0 to %d; steps per epoch", options->rank_samples_count - 1);
    for (int rank = 0; rank < options->rank_samples_count; rank++)
        printf("%s %lld", rank > 0 ? "," : "", (long long)sampler_rank_steps(sampler, rank));
    if (options->join != JOIN_NONE)
        printf("; a rank without data continues with empty batches; sums are divided by the %s",
               options->join == JOIN_INITIAL ? "full batch" : "step's samples");
    printf("\n");
}

static const char *gradients_algorithm(const Resolved *resolved)
{
    return resolved->backend == BACKEND_NCCL ? "nccl" : all_reduce_name(resolved->algorithm);
}

/* For each matrix that is not sent whole, the codec's state has a factor and an error. */
static void print_matrices(const Replica *replica)
{
    const int R = replica->options->power_sgd_rank, matrices = power_sgd_state(replica->power_sgd)->count / 2;
    printf("gradients: %d matrices sent as two of %d columns (powersgd), all else whole\n", matrices, R);
    if (matrices == 0)
        advise("--powersgd-rank: with %d columns no matrix of this model becomes less than half as large, so all are "
               "sent whole: give fewer", R);
}

/* One line about gradients that are rounded when they are sent. wanted: of --allreduce, which may lack 16 bits. */
static void print_gradients(const Replica *replica, const Resolved *resolved, AllReduceAlgorithm wanted)
{
    const Options *options = replica->options;
    if (options->ddp.codec->sends_nothing) {
        printf("gradients: NOT sent, so each rank trains by itself; the results are those of rank 0\n");
        return;
    }
    if (options->ddp.codec->keeps_state) {
        print_matrices(replica);
        return;
    }
    printf("gradients: sent in %s, ", options->ddp.codec->name);
    if (resolved->backend == BACKEND_NCCL)
        printf("added by NCCL");
    else
        printf("added in float32 and in rank order by %s", all_reduce_name(resolved->algorithm));
    if (resolved->backend == BACKEND_MPI && resolved->algorithm != wanted)
        printf(", because %s cannot", all_reduce_name(wanted));
    printf("\n");
}

static void print_options(const Trainer *trainer)
{
    const Options *options = trainer->options;
    const Sampler *sampler = &trainer->sampler;
    if (sampler_steps_per_epoch(sampler) == 1 && sampler_global_count(sampler, 0) < options->batch_size)
        advise("--batch-size: %lld is more than the %lld samples of an epoch: each step trains on all of them",
               (long long)options->batch_size, (long long)sampler_global_count(sampler, 0));
    if (options->mask_tokens > 0)
        printf("mask: a target token is left out of the training loss with probability %g\n",
               (double)options->mask_tokens);
    if (options->rank_samples_count > 0)
        print_own_data(options, sampler);
    if (options->precision != DTYPE_F32)
        printf("precision: operands of matrix products rounded to %s%s, sums in float32\n",
               dtype_name(options->precision), device_rounded_bytes(options->precision, 1) > 2 ? " (emulated)" : "");
    if (options->tf32)
        printf("precision: matrix products may round their operands to TF32, sums and attention in float32\n");
    if (options->ddp.codec->rounds || options->ddp.codec->sends_nothing)
        print_gradients(&trainer->replica, trainer->resolved, pg_algorithm(trainer->pg));
    if (ddp_stage_number == 5)
        printf("sharding: level %d: each rank keeps 1/%d of the optimizer's state%s%s\n", options->sharding.level,
               options->sharding.shard_ranks > 0 ? options->sharding.shard_ranks : pg_world_size(trainer->pg),
               options->sharding.level >= 2 ? ", of the gradients" : "",
               options->sharding.level == 3 ? ", of the weights" : "");
    if (options->group.wire_gbps > 0)
        printf("link: emulated, %g Gbit/s and %g us\n", options->group.wire_gbps, options->group.wire_latency * 1e6);
}

void report_start(const Trainer *trainer)
{
    const Options *options = trainer->options;
    const Replica *replica = &trainer->replica;
    ProcessGroup *pg = trainer->pg;
    if (pg_rank(pg) != 0)
        return;
    local_work_begin("prints", "its settings");
    printf("stage %d (%s): %s, %lld parameters, %d rank(s) over %s, sums by %s, %s\n", ddp_stage_number, ddp_stage_name,
           options->model.name, (long long)parameters_total(&replica->model.parameters), pg_world_size(pg),
           pg_backend(pg), gradients_algorithm(trainer->resolved), device_description());
    printf("data: %s, %lld samples; steps %ld to %ld of %lld samples in %d micro-batch(es) per rank\n",
           trainer->train_set.source, (long long)trainer->train_set.size, trainer->record.first_step,
           replica->total_steps - 1, (long long)options->batch_size, options->accumulate);
    print_options(trainer);
    fflush(stdout);
    local_work_end();
}

/* The flags, and the settings that follow from them in this run. */
static void add_settings(cJSON *summary, const Trainer *trainer)
{
    const Replica *replica = &trainer->replica;
    const ProcessGroup *pg = trainer->pg;
    summary_add_number(summary, "stage", ddp_stage_number);
    summary_add_text(summary, "stage_name", ddp_stage_name);
    cJSON_AddItemToObject(summary, "flags", options_to_json(replica->options, ddp_stage_number));
    summary_add_text(summary, "backend", pg_backend(pg));
    summary_add_text(summary, "device", device_name());
    summary_add_number(summary, "world_size", pg_world_size(pg));
    summary_add_text(summary, "allreduce", gradients_algorithm(trainer->resolved));
    summary_add_number(summary, "loss_scale", (double)replica->scaler.scale); /* at the end */
    summary_add_number(summary, "parameters", (double)parameters_total(&replica->model.parameters));
    summary_add_number(summary, "buckets", (double)trainer->record.buckets);
}

/* Rank 0's memory, in MB. The rest of the peak is small, and mostly buffers of the MPI library. */
static void add_memory(cJSON *summary, const Trainer *trainer)
{
    const Replica *replica = &trainer->replica;
    const ParameterList *parameters = &replica->model.parameters;
    const ShardedMemory held = memory_in_use(&trainer->memory);
    summary_add_number(summary, "peak_rss_mb", trainer->record.peak_rss_mb); /* the largest rank's */
    cJSON *memory = cJSON_AddObjectToObject(summary, "memory");
    summary_add_number(memory, "weights_mb", (double)held.weights / 1e6);
    /* Stage 5: the peaks, besides this rank's shards. */
    summary_add_number(memory, "gathered_weights_mb", (double)held.peak_gathered_weights / 1e6);
    summary_add_number(memory, "whole_gradients_mb", (double)held.peak_whole_gradients / 1e6);
    /* The weights' 16-bit copies. */
    summary_add_number(memory, "operands_mb", (double)parameters_operand_bytes(parameters) / 1e6);
    summary_add_number(memory, "gradients_mb", (double)held.gradients / 1e6);
    summary_add_number(memory, "optimizer_mb", (double)optimizer_state_bytes(&replica->optimizer) / 1e6);
    const size_t activations = replica->tape.arena.peak_held + replica->tape.block_arena.peak_held;
    summary_add_number(memory, "activations_mb", (double)activations / 1e6);
    summary_add_number(memory, "base_mb", trainer->record.base_rss_mb); /* before the model was created */
}

static cJSON *evaluations_to_json(const RunRecord *record, const Options *options)
{
    if (options->eval_every == 0)
        return cJSON_CreateNull();
    cJSON *curve = cJSON_CreateArray();
    for (int i = 0; i < record->evaluation_count; i++) {
        const EvaluationPoint *at = &record->evaluations[i];
        cJSON *point = cJSON_CreateObject();
        summary_add_number(point, "step", (double)at->step);
        summary_add_number(point, "eval_loss", at->evaluation.loss);
        summary_add_number(point, "eval_accuracy",
                           options->model.kind == MODEL_GPT ? (double)NAN : at->evaluation.accuracy);
        cJSON_AddItemToArray(curve, point);
    }
    return curve;
}

static void add_results(cJSON *summary, const Trainer *trainer)
{
    const Replica *replica = &trainer->replica;
    const RunRecord *record = &trainer->record;
    bool gpt = replica->options->model.kind == MODEL_GPT; /* its tokens are bytes */
    const double steps = (double)record->stats.count;
    const CommCounters *sent = &record->communication;
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)parameters_hash(&replica->model.parameters));
    summary_add_number(summary, "steps", steps);
    summary_add_number(summary, "steps_skipped", (double)replica->scaler.skipped);
    summary_add_number(summary, "collectives_per_step", (double)sent->collectives / steps);
    summary_add_number(summary, "norm_collectives_per_step", (double)record->norm_collectives / steps); /* of --norm */
    summary_add_number(summary, "bytes_per_step", (double)sent->bytes / steps);
    summary_add_number(summary, "wire_bytes_per_step", (double)sent->wire_bytes / steps); /* by a rank, in a ring */
    summary_add_number(summary, "first_loss", record->first_loss);
    summary_add_number(summary, "final_loss", record->final_loss);
    summary_add_number(summary, "eval_loss", record->evaluation.loss); /* in nats */
    summary_add_number(summary, "eval_bits_per_byte", gpt ? record->evaluation.loss / M_LN2 : (double)NAN);
    summary_add_number(summary, "eval_accuracy", gpt ? (double)NAN : record->evaluation.accuracy);
    cJSON_AddItemToObject(summary, "evaluations", evaluations_to_json(record, replica->options));
    summary_add_times(summary, &record->stats, (double)record->all_samples / steps, gpt ? (double)replica->time : 0);
    add_memory(summary, trainer);
    summary_add_text(summary, "weights_hash", hash); /* as text: JSON's numbers are doubles */
}

static void add_verification(cJSON *summary, VerifyMode mode, const Verification *verification)
{
    if (mode == VERIFY_NONE) {
        cJSON_AddNullToObject(summary, "verify");
        return;
    }
    cJSON *verify = cJSON_AddObjectToObject(summary, "verify");
    summary_add_text(verify, "mode", mode == VERIFY_EXACT ? "exact" : "whole-batch");
    summary_add_number(verify, "max_abs_diff", verification->max_abs_diff);
    summary_add_text(verify, "worst_parameter", verification->worst_parameter);
    cJSON_AddBoolToObject(verify, "passed", verification->passed);
}

/* The parts of each rank's step: a slow rank computes while the others wait for it. Collective. Owned by the caller. */
static cJSON *gather_rank_times(ProcessGroup *pg, const Stats *stats)
{
    static const char *const keys[] = {"step_ms", "forward_ms", "data_ms", "exposed_comm_ms"};
    static const StepPart parts[] = {PART_STEP, PART_FORWARD, PART_DATA, PART_EXPOSED};
    enum { KEYS = sizeof keys / sizeof *keys };
    double own[KEYS];
    for (int key = 0; key < KEYS; key++)
        own[key] = 1e3 * stats_percentile(stats, parts[key], 50);
    double *all = alloc_or_fault((size_t)pg_world_size(pg) * sizeof own);
    pg_all_gather(pg, own, all, KEYS, DTYPE_F64, "times of each rank");
    cJSON *ranks = cJSON_CreateArray();
    for (int rank = 0; rank < pg_world_size(pg); rank++) {
        cJSON *times = cJSON_CreateObject();
        for (int key = 0; key < KEYS; key++)
            summary_add_number(times, keys[key], all[rank * KEYS + key]);
        cJSON_AddItemToArray(ranks, times);
    }
    free(all);
    return ranks;
}

void report_end(const Trainer *trainer)
{
    const Options *options = trainer->options;
    cJSON *ranks = gather_rank_times(trainer->pg, &trainer->record.stats);
    if (pg_rank(trainer->pg) != 0) {
        cJSON_Delete(ranks);
        return;
    }
    cJSON *summary = cJSON_CreateObject();
    add_settings(summary, trainer);
    add_results(summary, trainer);
    add_verification(summary, options->verify, &trainer->record.verification);
    cJSON_AddItemToObject(summary, "ranks", ranks);
    local_work_begin("prints", "the summary");
    summary_print(summary);
    local_work_end();
    if (options->json != NULL)
        summary_write(summary, options->json);
    cJSON_Delete(summary);
}

int report_stopped(const Replica *replica, long done, int signal)
{
    const char *save = replica->options->save;
    advise("stopped by signal %d (%s) after step %ld of %ld: %s%s", signal, strsignal(signal), done,
           replica->total_steps,
           save != NULL ? "continue with --resume " : "nothing is saved, because there is no --save",
           save != NULL ? save : "");
    return STOPPED_STATUS;
}

/* note: most-steps-skipped
 * Under fp16 a short run may skip most steps until its loss scale fits. If the last step was taken, it fits. */
bool report_success(const Replica *replica, const RunRecord *record)
{
    const LossScaler *scaler = &replica->scaler;
    const bool scale_found = scaler->enabled && scaler->not_finite == NULL;
    const bool most_skipped = 2 * scaler->skipped > record->stats.count && !scale_found;
    const bool finite = isfinite(record->evaluation.loss);
    if (most_skipped && job_rank() == 0)
        job_say_fault("%ld of %ld steps were skipped, because a gradient was not finite, so the model is hardly "
                      "trained: %s", scaler->skipped, record->stats.count, scaler->enabled
                      ? "a lower --loss-scale or more steps may help"
                      : "a lower --lr or --clip-grad-norm may help; --on-nan stop ends the run at the first such step "
                        "and names the cause");
    else if (!finite && job_rank() == 0)
        job_say_fault("the loss on held-out data is %f: training has diverged in its last steps, and the weights are "
                      "of no use; a lower --lr or --clip-grad-norm may help", record->evaluation.loss);
    return !most_skipped && finite && (replica->options->verify == VERIFY_NONE || record->verification.passed);
}

/* printf() only fills a buffer. Writing the buffer fails on a full disk, and the stream remembers the error. It is not
 * an error if the reader of a pipe ends early (`| head -1`). */
void report_check_stdout(void)
{
    struct pollfd stream = {.fd = STDOUT_FILENO, .events = POLLOUT};
    fflush(stdout);
    bool failed = ferror(stdout) != 0;
    bool reader_gone = poll(&stream, 1, 0) == 1 && (stream.revents & (POLLERR | POLLHUP)) != 0;
    CHECK(!failed || reader_gone, "stdout could not be written, so the run's output is lost, or a part of it: is the "
          "disk full? Files that the run has written (--save, --json, --trace) are complete");
}
