/* report.c: fills the summary from what the run has left behind. */
#include "train/report/report.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "autograd/rounding.h"
#include "base/check.h"
#include "device/device.h"
#include "train/report/summary.h"

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

double report_largest_peak_mb(ProcessGroup *pg)
{
    double peak = summary_peak_rss_mb();
    pg_all_reduce(pg, &peak, &peak, 1, DTYPE_F64, REDUCE_MAX, "peak memory");
    return peak;
}

/* One line on ranks that have data of their own. */
static void print_own_data(const Options *options, const Sampler *sampler)
{
    printf("own data: samples");
    for (int rank = 0; rank < options->rank_samples_count; rank++)
        printf("%s %lld", rank > 0 ? "," : "", (long long)options->rank_samples[rank]);
    printf(" on ranks 0 to %d; steps of an epoch", options->rank_samples_count - 1);
    for (int rank = 0; rank < options->rank_samples_count; rank++)
        printf("%s %lld", rank > 0 ? "," : "", (long long)sampler_rank_steps(sampler, rank));
    if (options->join != JOIN_NONE)
        printf("; who has run out shadows, sums are divided by the %s",
               options->join == JOIN_INITIAL ? "full batch" : "samples there are");
    printf("\n");
}

/* What adds the gradients up: over MPI not always what --allreduce says. */
static const char *gradients_algorithm(const Options *options)
{
    AllReduceAlgorithm wanted = options->group.algorithm;
    if (strcmp(options->backend, "nccl") == 0)
        return "nccl";
    return all_reduce_algorithm(wanted, options->ddp.grad_dtype) == wanted ? options->allreduce : "ordered";
}

/* One line on gradients that do not travel as they are. */
static void print_gradients(const Options *options)
{
    const char *algorithm = gradients_algorithm(options);
    printf("gradients: sent in %s, ", precision_name(options->ddp.grad_dtype));
    if (strcmp(algorithm, "nccl") == 0)
        printf("added by NCCL");
    else
        printf("added in float32 and in rank order by %s", algorithm);
    if (strcmp(algorithm, options->allreduce) != 0 && strcmp(algorithm, "nccl") != 0)
        printf(", as %s cannot", options->allreduce);
    printf("\n");
}

void report_start(const Options *options, ProcessGroup *pg, const Replica *replica, const Dataset *dataset,
                  const Sampler *sampler, long first_step)
{
    if (pg_rank(pg) != 0)
        return;
    printf("stage %d (%s): %s, %lld parameters, %d rank(s) over %s, %s\n", ddp_stage_number, ddp_stage_name,
           options->model.name, (long long)parameters_total(&replica->model.parameters), pg_world_size(pg),
           pg_backend(pg), device_description());
    printf("data: %s, %lld samples; steps %ld to %ld of %lld samples in %d micro-batch(es) per rank\n", dataset->source,
           (long long)dataset->size, first_step, replica->total_steps - 1, (long long)options->batch_size,
           options->accumulate);
    if (options->rank_samples_count > 0)
        print_own_data(options, sampler);
    if (options->precision != DTYPE_F32)
        printf("precision: operands of matrix products rounded to %s%s, sums in float32\n",
               dtype_name(options->precision), strcmp(device_name(), "cpu") == 0 ? " (emulated)" : "");
    if (options->tf32)
        printf("precision: matrix products may round their operands to TF32, sums and attention in float32\n");
    if (options->ddp.grad_dtype != DTYPE_F32)
        print_gradients(options);
    if (options->group.wire_gbps > 0)
        printf("link: emulated, %g Gbit/s and %g us\n", options->group.wire_gbps, options->group.wire_latency * 1e6);
    fflush(stdout);
}

/* The gradients themselves; a copy of them all in 16 bits, where they travel so; and where stages 1 to 3 put the sums
 * that they throw away. */
static double gradients_mb(const Options *options, const Replica *replica, const RunRecord *record)
{
    double gradients = (double)parameters_gradient_bytes(&replica->model.parameters);
    double copy = options->ddp.grad_dtype != DTYPE_F32 ? gradients / sizeof(float) * sizeof(uint16_t) : 0;
    return (gradients + copy + (double)record->out_of_place_bytes) / 1e6;
}

static MemoryUse memory_use(const Options *options, const Replica *replica, const RunRecord *record)
{
    double weights = (double)parameters_total(&replica->model.parameters) * sizeof(float) / 1e6;
    const Optimizer *optimizer = &replica->optimizer;
    double states = (optimizer->state1[0] != NULL) + (optimizer->state2[0] != NULL);
    return (MemoryUse){.weights_mb = weights,
                       .operands_mb = (double)parameters_operand_bytes(&replica->model.parameters) / 1e6,
                       .gradients_mb = gradients_mb(options, replica, record),
                       .optimizer_mb = states * weights,
                       .activations_mb = (double)replica->tape.arena.most_held / 1e6,
                       .base_mb = record->base_rss_mb};
}

static void fill_settings(Summary *summary, const Options *options, ProcessGroup *pg, const Replica *replica,
                          const Ddp *ddp)
{
    summary->stage = ddp_stage_number;
    summary->stage_name = ddp_stage_name;
    summary->model = options->model.name;
    summary->backend = pg_backend(pg);
    summary->device = device_name();
    summary->world_size = pg_world_size(pg);
    summary->threads = options->threads;
    summary->global_batch = options->batch_size;
    summary->accumulate = options->accumulate;
    summary->join = options->join == JOIN_NONE ? NULL : options->join == JOIN_INITIAL ? "initial" : "actual";
    summary->rank_samples = options_rank_samples(options);
    summary->precision = precision_name(options->precision);
    summary->tf32 = options->tf32;
    summary->loss_scale = (double)replica->scaler.scale;
    summary->allreduce = gradients_algorithm(options);
    summary->grad_dtype = precision_name(options->ddp.grad_dtype);
    if (ddp_stage_number >= 2) {
        summary->bucket_cap_mb = (double)options->ddp.bucket_cap_bytes / (1 << 20);
        summary->first_bucket_mb = (double)options->ddp.first_bucket_cap_bytes / (1 << 20);
    }
    summary->wire_gbps = options->group.wire_gbps;
    summary->wire_latency_us = options->group.wire_latency * 1e6;
    summary->parameters = parameters_total(&replica->model.parameters);
    summary->buckets = ddp_bucket_count(ddp);
}

static void fill_results(Summary *summary, const Options *options, const Replica *replica, const Stats *stats,
                         const RunRecord *record)
{
    double steps = (double)stats->count;
    summary->steps = stats->count;
    summary->steps_skipped = record->steps_skipped;
    summary->micro_batches = stats->count * options->accumulate;
    summary->collectives_per_step = (double)record->collectives / steps;
    summary->bytes_per_step = (double)record->bytes / steps;
    summary->first_loss = record->first_loss;
    summary->final_loss = record->final_loss;
    bool gpt = options->model.kind == MODEL_GPT; /* its tokens are bytes */
    summary_set_evaluation(summary, record->evaluation.loss, gpt ? (double)NAN : record->evaluation.accuracy, gpt);
    summary_set_times(summary, stats, gpt ? replica->time : 0);
    double filled = (double)record->all_samples / (steps * (double)options->batch_size); /* below 1: batches fell short */
    summary->samples_per_s *= filled;
    summary->tokens_per_s *= filled;
    summary->peak_rss_mb = record->peak_rss_mb;
    summary->memory = memory_use(options, replica, record);
    summary->weights_hash = parameters_hash(&replica->model.parameters);
    if (options->verify != VERIFY_NONE)
        summary->verify = (VerifyResult){.mode = options->verify == VERIFY_EXACT ? "exact" : "whole-batch",
                                         .max_abs_diff = record->verification.max_abs_diff,
                                         .worst_parameter = record->verification.worst_parameter,
                                         .passed = record->verification.passed};
}

void report_end(const Options *options, ProcessGroup *pg, const Replica *replica, const Ddp *ddp, const Stats *stats,
                const RunRecord *record)
{
    if (pg_rank(pg) != 0)
        return;
    Summary summary;
    summary_init(&summary);
    fill_settings(&summary, options, pg, replica, ddp);
    fill_results(&summary, options, replica, stats, record);
    summary_print(&summary);
    summary_write_json(&summary, options->json);
}

/* printf() only collects: that a disk is full shows when the bytes are to leave, and the stream remembers it. A reader
 * who has had enough (`| head -1`) is no failure. */
void report_check_stdout(void)
{
    struct pollfd stream = {.fd = STDOUT_FILENO, .events = POLLOUT};
    fflush(stdout);
    bool failed = ferror(stdout) != 0;
    bool reader_gone = poll(&stream, 1, 0) == 1 && (stream.revents & (POLLERR | POLLHUP)) != 0;
    CHECK(!failed || reader_gone, "stdout could not be written, and what the run printed is lost, or a part of it: is "
          "the disk full? Files that the run has written (--save, --json, --trace) are whole");
}
