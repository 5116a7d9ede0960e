/* summary.c: the run's summary, for people and for programs. */
#include "train/report/summary.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/check.h"
#include "train/files/atomic_file.h"

/* The parts of a step, as the keys call them. */
static const char *const part_names[STEP_PARTS] = {"step", "forward", "backward", "optimizer",
                                                   "data", "comm",    "exposed_comm"};

void summary_init(Summary *summary)
{
    *summary = (Summary){0};
    summary->bucket_cap_mb = summary->first_bucket_mb = NAN;
    summary->first_loss = summary->final_loss = NAN;
    summary->eval_loss = summary->eval_bits_per_byte = summary->eval_accuracy = NAN;
    summary->step_ms = (Percentiles){NAN, NAN, NAN};
    summary->forward_ms = summary->backward_ms = summary->optimizer_ms = summary->data_ms = NAN;
    summary->comm_ms = summary->exposed_comm_ms = summary->hidden_fraction = summary->comm_share = NAN;
    for (int part = 0; part < STEP_PARTS; part++) {
        summary->first_step_ms[part] = NAN;
    }
    summary->samples_per_s = summary->tokens_per_s = summary->peak_rss_mb = NAN;
    summary->memory = (MemoryUse){NAN, NAN, NAN, NAN, NAN, NAN};
    summary->verify.max_abs_diff = NAN;
}

void summary_set_evaluation(Summary *summary, double loss, double accuracy, bool per_byte)
{
    summary->eval_loss = loss;
    summary->eval_bits_per_byte = per_byte ? loss / M_LN2 : NAN;
    summary->eval_accuracy = accuracy;
}

static double median_ms(const Stats *stats, StepPart part)
{
    return 1e3 * stats_percentile(stats, part, 50);
}

void summary_set_times(Summary *summary, const Stats *stats, int64_t tokens_per_sample)
{
    summary->step_ms.first = 1e3 * stats_first(stats, PART_STEP);
    summary->step_ms.p50 = median_ms(stats, PART_STEP);
    summary->step_ms.p95 = 1e3 * stats_percentile(stats, PART_STEP, 95);
    summary->forward_ms = median_ms(stats, PART_FORWARD);
    summary->backward_ms = median_ms(stats, PART_BACKWARD);
    summary->optimizer_ms = median_ms(stats, PART_OPTIMIZER);
    summary->data_ms = median_ms(stats, PART_DATA);
    summary->comm_ms = median_ms(stats, PART_COMM);
    summary->exposed_comm_ms = median_ms(stats, PART_EXPOSED);
    for (int part = 0; part < STEP_PARTS; part++) {
        summary->first_step_ms[part] = 1e3 * stats_first(stats, part);
    }
    /* Waiting can take a little longer than the collective itself: the thread has to wake up. That hides nothing. */
    summary->hidden_fraction =
        summary->comm_ms > 0 ? fmax(0, 1 - summary->exposed_comm_ms / summary->comm_ms) : NAN;
    summary->comm_share = summary->exposed_comm_ms / summary->step_ms.p50;
    summary->warmup_steps_excluded = stats_warmup_steps(stats);
    summary->samples_per_s = (double)summary->global_batch / stats_mean(stats, PART_STEP);
    summary->tokens_per_s =
        tokens_per_sample > 0 ? (double)tokens_per_sample * summary->samples_per_s : NAN;
}

double summary_peak_rss_mb(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_maxrss * 1024 / 1e6; /* Linux counts in KiB */
}

/* ---- JSON ---- */

static void add_number(cJSON *object, const char *key, double value)
{
    cJSON_AddItemToObject(object, key, isfinite(value) ? cJSON_CreateNumber(value) : cJSON_CreateNull());
}

static void add_text(cJSON *object, const char *key, const char *text)
{
    cJSON_AddItemToObject(object, key, text != NULL ? cJSON_CreateString(text) : cJSON_CreateNull());
}

static void add_rank_samples(cJSON *object, const Summary *summary)
{
    if (summary->rank_samples == NULL) {
        cJSON_AddNullToObject(object, "rank_samples");
        return;
    }
    cJSON *list = cJSON_AddArrayToObject(object, "rank_samples");
    for (int rank = 0; rank < summary->world_size; rank++) {
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)summary->rank_samples[rank]));
    }
}

static void add_setup(cJSON *object, const Summary *summary)
{
    add_number(object, "stage", summary->stage);
    add_text(object, "stage_name", summary->stage_name);
    add_text(object, "model", summary->model);
    add_text(object, "backend", summary->backend);
    add_text(object, "device", summary->device);
    add_number(object, "world_size", summary->world_size);
    add_number(object, "threads", summary->threads);
    add_number(object, "steps", (double)summary->steps);
    add_number(object, "steps_skipped", (double)summary->steps_skipped);
    add_number(object, "global_batch", (double)summary->global_batch);
    add_number(object, "accumulate", summary->accumulate);
    add_text(object, "join", summary->join);
    add_rank_samples(object, summary);
    add_number(object, "micro_batches", (double)summary->micro_batches);
    add_text(object, "precision", summary->precision);
    cJSON_AddBoolToObject(object, "tf32", summary->tf32);
    add_number(object, "loss_scale", summary->loss_scale);
    add_text(object, "allreduce", summary->allreduce);
    add_text(object, "grad_dtype", summary->grad_dtype);
    add_number(object, "bucket_cap_mb", summary->bucket_cap_mb);
    add_number(object, "first_bucket_mb", summary->first_bucket_mb);
    if (summary->wire_gbps > 0) {
        cJSON *wire = cJSON_AddObjectToObject(object, "wire");
        add_number(wire, "gbps", summary->wire_gbps);
        add_number(wire, "latency_us", summary->wire_latency_us);
        cJSON_AddBoolToObject(wire, "emulated", true);
    } else {
        cJSON_AddNullToObject(object, "wire");
    }
    add_number(object, "parameters", (double)summary->parameters);
    add_number(object, "buckets", summary->buckets);
}

static void add_times(cJSON *object, const Summary *summary)
{
    cJSON *step = cJSON_AddObjectToObject(object, "step_ms");
    add_number(step, "first", summary->step_ms.first);
    add_number(step, "p50", summary->step_ms.p50);
    add_number(step, "p95", summary->step_ms.p95);
    add_number(object, "forward_ms", summary->forward_ms);
    add_number(object, "backward_ms", summary->backward_ms);
    add_number(object, "optimizer_ms", summary->optimizer_ms);
    add_number(object, "data_ms", summary->data_ms);
    add_number(object, "comm_ms", summary->comm_ms);
    add_number(object, "exposed_comm_ms", summary->exposed_comm_ms);
    add_number(object, "hidden_fraction", summary->hidden_fraction);
    add_number(object, "comm_share", summary->comm_share);
    cJSON *first = cJSON_AddObjectToObject(object, "first_step_ms");
    for (int part = 0; part < STEP_PARTS; part++) {
        add_number(first, part_names[part], summary->first_step_ms[part]);
    }
    add_number(object, "warmup_steps_excluded", (double)summary->warmup_steps_excluded);
    add_number(object, "samples_per_s", summary->samples_per_s);
    add_number(object, "tokens_per_s", summary->tokens_per_s);
}

static void add_memory(cJSON *object, const Summary *summary)
{
    add_number(object, "peak_rss_mb", summary->peak_rss_mb);
    cJSON *memory = cJSON_AddObjectToObject(object, "memory");
    add_number(memory, "weights_mb", summary->memory.weights_mb);
    add_number(memory, "operands_mb", summary->memory.operands_mb);
    add_number(memory, "gradients_mb", summary->memory.gradients_mb);
    add_number(memory, "optimizer_mb", summary->memory.optimizer_mb);
    add_number(memory, "activations_mb", summary->memory.activations_mb);
    add_number(memory, "base_mb", summary->memory.base_mb);
}

/* null where --verify was not given. */
static void add_verify(cJSON *object, const VerifyResult *verify)
{
    if (verify->mode == NULL) {
        cJSON_AddNullToObject(object, "verify");
        return;
    }
    cJSON *result = cJSON_AddObjectToObject(object, "verify");
    add_text(result, "mode", verify->mode);
    add_number(result, "max_abs_diff", verify->max_abs_diff);
    add_text(result, "worst_parameter", verify->worst_parameter);
    cJSON_AddBoolToObject(result, "passed", verify->passed);
}

/* A JSON number is a double, too small for 64 bits: the hash is text. */
static void add_hash(cJSON *object, uint64_t hash)
{
    char text[24];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    add_text(object, "weights_hash", text);
}

void summary_write_json(const Summary *summary, const char *path)
{
    if (path == NULL || job_rank() != 0) {
        return;
    }
    cJSON *object = cJSON_CreateObject();
    add_setup(object, summary);
    add_number(object, "collectives_per_step", summary->collectives_per_step);
    add_number(object, "bytes_per_step", summary->bytes_per_step);
    add_number(object, "first_loss", summary->first_loss);
    add_number(object, "final_loss", summary->final_loss);
    add_number(object, "eval_loss", summary->eval_loss);
    add_number(object, "eval_bits_per_byte", summary->eval_bits_per_byte);
    add_number(object, "eval_accuracy", summary->eval_accuracy);
    add_times(object, summary);
    add_memory(object, summary);
    add_hash(object, summary->weights_hash);
    add_verify(object, &summary->verify);
    char *text = cJSON_Print(object);
    CHECK(text != NULL, "out of memory for %s", path);
    AtomicFile file;
    atomic_open(&file, path);
    atomic_write(&file, text, strlen(text));
    atomic_write(&file, "\n", 1);
    atomic_commit(&file);
    cJSON_free(text);
    cJSON_Delete(object);
}

/* ---- for people ---- */

static void print_speed(const Summary *summary)
{
    printf("  step        %.2f ms (median), %.2f ms (95 %%), %.2f ms (first); %ld warm-up steps left out\n",
           summary->step_ms.p50, summary->step_ms.p95, summary->step_ms.first, summary->warmup_steps_excluded);
    printf("  of it       forward %.2f, backward %.2f, optimizer %.2f, data %.2f ms\n", summary->forward_ms,
           summary->backward_ms, summary->optimizer_ms, summary->data_ms);
    printf("  speed       %.0f samples/s", summary->samples_per_s);
    if (!isnan(summary->tokens_per_s)) {
        printf(", %.0f tokens/s", summary->tokens_per_s);
    }
    printf("\n");
}

static void print_communication(const Summary *summary)
{
    if (summary->world_size == 1) {
        return;
    }
    printf("  all-reduce  %g per step, %.3f MB", summary->collectives_per_step, summary->bytes_per_step / 1e6);
    if (summary->grad_dtype != NULL && strcmp(summary->grad_dtype, "fp32") != 0) {
        printf(" in %s", summary->grad_dtype);
    }
    printf(", %.2f ms in flight, %.2f ms exposed", summary->comm_ms, summary->exposed_comm_ms);
    printf(" (%.1f %% of the step)", 100 * summary->comm_share);
    if (!isnan(summary->hidden_fraction)) {
        printf(": %.0f %% hidden", 100 * summary->hidden_fraction);
    }
    printf("\n");
    if (summary->wire_gbps > 0) {
        printf("  link        emulated: %g Gbit/s, %g us\n", summary->wire_gbps, summary->wire_latency_us);
    }
}

static void print_memory(const Summary *summary)
{
    const MemoryUse *memory = &summary->memory;
    printf("  memory      peak %.1f MB per rank", summary->peak_rss_mb);
    if (!isnan(memory->weights_mb)) {
        printf(": weights %.1f, ", memory->weights_mb);
        if (memory->operands_mb > 0) {
            printf("rounded weights %.1f, ", memory->operands_mb);
        }
        printf("gradients %.1f, optimizer %.1f, activations %.1f, before the model %.1f",
               memory->gradients_mb, memory->optimizer_mb, memory->activations_mb, memory->base_mb);
    }
    printf("\n");
}

static void print_result(const Summary *summary)
{
    printf("  loss        %.4f -> %.4f", summary->first_loss, summary->final_loss);
    if (!isnan(summary->eval_loss)) {
        printf("; on unseen data %.4f", summary->eval_loss);
    }
    if (!isnan(summary->eval_bits_per_byte)) {
        printf(" nats, %.4f bits per byte", summary->eval_bits_per_byte);
    }
    if (!isnan(summary->eval_accuracy)) {
        printf(", %.2f %% right", 100 * summary->eval_accuracy);
    }
    printf("\n");
    if (summary->steps_skipped > 0) {
        printf("  skipped     %ld of %ld steps, as ", summary->steps_skipped, summary->steps);
        if (summary->loss_scale != 1) {
            printf("gradients overflowed; loss scale is %g now\n", summary->loss_scale);
        } else {
            printf("a gradient was not finite\n");
        }
    }
}

void summary_print(const Summary *summary)
{
    if (job_rank() != 0) {
        return;
    }
    printf("stage %d (%s): %s, %lld parameters, %ld steps of %lld samples, %d rank%s, %s, %s%s\n", summary->stage,
           summary->stage_name, summary->model, (long long)summary->parameters, summary->steps,
           (long long)summary->global_batch, summary->world_size, summary->world_size == 1 ? "" : "s",
           summary->device, summary->precision, summary->tf32 ? " (TF32)" : "");
    print_result(summary);
    print_speed(summary);
    print_communication(summary);
    print_memory(summary);
    printf("  weights     %016llx (hash)\n", (unsigned long long)summary->weights_hash);
    const VerifyResult *verify = &summary->verify;
    if (verify->mode != NULL) {
        printf("  verify      %s: largest difference %.3g in %s: %s\n", verify->mode, verify->max_abs_diff,
               verify->worst_parameter != NULL ? verify->worst_parameter : "no parameter",
               verify->passed ? "passed" : "FAILED");
    }
    fflush(stdout);
}
