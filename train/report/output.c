/* output.c: see output.h. */
#include "train/report/output.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "train/files/atomic_file.h"

/* ---- progress ---- */

#define TERMINAL_SECONDS 0.1 /* between two updates of the line */
#define PLAIN_SECONDS 10.0
#define PLAIN_LINES 20 /* in a whole run: one per 5 % */

void progress_start(Progress *progress, long first_step, long steps, const char *unit)
{
    *progress = (Progress){.terminal = isatty(STDOUT_FILENO) == 1, .unit = unit, .first_step = first_step,
                           .steps = steps, .shown_at = now_seconds()};
}

static bool line_is_due(const Progress *progress, long step, double now)
{
    if (step == progress->first_step || step == progress->steps - 1 || progress->unseen_is_new)
        return true;
    double seconds = now - progress->shown_at;
    if (progress->terminal)
        return seconds >= TERMINAL_SECONDS;
    /* Does this step reach a multiple of 1/20 of the run? */
    long steps = progress->steps - progress->first_step, done = step - progress->first_step + 1;
    return done * PLAIN_LINES / steps > (done - 1) * PLAIN_LINES / steps || seconds >= PLAIN_SECONDS;
}

/* Writes "12 s", "3 min 20 s" or "1 h 05 min"; "" after the first step, when no time is known, and after the last. */
static void describe_time_left(const Progress *progress, long step, double now, char *text, size_t size)
{
    long timed_steps = step - progress->first_step;
    if (timed_steps == 0 || step == progress->steps - 1) {
        text[0] = '\0';
        return;
    }
    double left = (now - progress->timed_from) / (double)timed_steps * (double)(progress->steps - 1 - step);
    long seconds = lround(left);
    if (seconds < 60)
        snprintf(text, size, ", %ld s left", seconds);
    else if (seconds < 3600)
        snprintf(text, size, ", %ld min %02ld s left", seconds / 60, seconds % 60);
    else
        snprintf(text, size, ", %ld h %02ld min left", seconds / 3600, seconds / 60 % 60);
}

static void show(Progress *progress, long step, double loss, double now)
{
    double seconds = now - progress->shown_at;
    char time_left[64];
    describe_time_left(progress, step, now, time_left, sizeof time_left);
    /* \r returns to the start of the line, and ESC [K clears the rest of a longer line. */
    printf("%sstep %ld/%ld, loss %.4f, %.0f %s/s", progress->terminal ? "\r" : "", step + 1, progress->steps, loss,
           seconds > 0 ? progress->units / seconds : 0.0, progress->unit);
    if (job_world_size() > 1)
        printf(", %.0f %% waiting for other ranks", seconds > 0 ? 100 * progress->exposed / seconds : 0.0);
    printf("%s%s%s", progress->terminal || progress->unseen_is_new ? progress->unseen : "", time_left,
           progress->terminal ? "\033[K" : "\n");
    fflush(stdout);
    progress->unseen_is_new = false;
    progress->line_open = progress->terminal;
    progress->shown_at = now;
    progress->units = progress->exposed = 0;
}

void progress_step(Progress *progress, long step, double loss, double units, double exposed)
{
    if (job_rank() != 0)
        return;
    double now = now_seconds();
    if (step == progress->first_step)
        progress->timed_from = now;
    progress->units += units;
    progress->exposed += exposed;
    if (!line_is_due(progress, step, now))
        return;
    local_work_begin("prints", "a line about a step");
    show(progress, step, loss, now);
    local_work_end();
}

void progress_evaluated(Progress *progress, double loss, double accuracy, double seconds)
{
    int length = snprintf(progress->unseen, sizeof progress->unseen, ", on unseen data %.4f", loss);
    if (!isnan(accuracy))
        snprintf(progress->unseen + length, sizeof progress->unseen - (size_t)length, ", %.2f %% right",
                 100 * accuracy);
    progress->unseen_is_new = true;
    progress->shown_at += seconds;
}

void progress_end(Progress *progress)
{
    if (progress->line_open) {
        printf("\n");
        fflush(stdout);
        progress->line_open = false;
    }
}

/* ---- summary: values ---- */

void summary_add_number(cJSON *object, const char *key, double value)
{
    cJSON_AddItemToObject(object, key, isnan(value) ? cJSON_CreateNull() : cJSON_CreateNumber(value));
}

void summary_add_text(cJSON *object, const char *key, const char *text)
{
    cJSON_AddItemToObject(object, key, text != NULL ? cJSON_CreateString(text) : cJSON_CreateNull());
}

static double median_ms(const Stats *stats, StepPart part)
{
    return 1e3 * stats_percentile(stats, part, 50);
}

void summary_add_times(cJSON *summary, const Stats *stats, double samples, double tokens)
{
    static const char *const names[STEP_PARTS] = {"step", "forward", "backward", "optimizer", "data", "comm",
                                                  "exposed_comm"};
    double step = median_ms(stats, PART_STEP), comm = median_ms(stats, PART_COMM);
    double exposed = median_ms(stats, PART_EXPOSED), per_second = samples / stats_mean(stats, PART_STEP);
    cJSON *steps = cJSON_AddObjectToObject(summary, "step_ms");
    summary_add_number(steps, "first", 1e3 * stats->first.seconds[PART_STEP]);
    summary_add_number(steps, "p50", step);
    summary_add_number(steps, "p95", 1e3 * stats_percentile(stats, PART_STEP, 95));
    summary_add_number(summary, "forward_ms", median_ms(stats, PART_FORWARD));
    summary_add_number(summary, "backward_ms", median_ms(stats, PART_BACKWARD));
    summary_add_number(summary, "optimizer_ms", median_ms(stats, PART_OPTIMIZER));
    summary_add_number(summary, "data_ms", median_ms(stats, PART_DATA));
    summary_add_number(summary, "comm_ms", comm);
    summary_add_number(summary, "exposed_comm_ms", exposed);
    /* The wait can be a little longer than the collective, because the thread must wake up: then nothing was hidden. */
    summary_add_number(summary, "hidden_fraction", comm > 0 ? fmax(0, 1 - exposed / comm) : NAN);
    summary_add_number(summary, "comm_share", exposed / step); /* the part of a step spent waiting for it */
    cJSON *first = cJSON_AddObjectToObject(summary, "first_step_ms");
    for (int part = 0; part < STEP_PARTS; part++)
        summary_add_number(first, names[part], 1e3 * stats->first.seconds[part]);
    summary_add_number(summary, "warmup_steps_excluded", (double)stats_warmup_steps(stats));
    summary_add_number(summary, "samples_per_s", per_second);
    summary_add_number(summary, "tokens_per_s", tokens > 0 ? tokens * per_second : NAN);
}

/* ---- summary: for people ---- */

/* NAN if the value is null. */
static double number(const cJSON *object, const char *key)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

static const char *text(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

static const cJSON *flags_of(const cJSON *summary)
{
    return cJSON_GetObjectItemCaseSensitive(summary, "flags");
}

static void print_result(const cJSON *summary)
{
    printf("  loss        %.4f -> %.4f", number(summary, "first_loss"), number(summary, "final_loss"));
    if (!isnan(number(summary, "eval_loss")))
        printf("; on unseen data %.4f", number(summary, "eval_loss"));
    if (!isnan(number(summary, "eval_bits_per_byte")))
        printf(" nats, %.4f bits per byte", number(summary, "eval_bits_per_byte"));
    if (!isnan(number(summary, "eval_accuracy")))
        printf(", %.2f %% right", 100 * number(summary, "eval_accuracy"));
    printf("\n");
    if (number(summary, "steps_skipped") > 0) {
        printf("  skipped     %.0f of %.0f steps, because ", number(summary, "steps_skipped"),
               number(summary, "steps"));
        if (number(summary, "loss_scale") != 1)
            printf("gradients overflowed; loss scale is %g now\n", number(summary, "loss_scale"));
        else
            printf("a gradient was not finite\n");
    }
}

static void print_speed(const cJSON *summary)
{
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(summary, "step_ms");
    printf("  step        %.2f ms (median), %.2f ms (95 %%), %.2f ms (first); %.0f warm-up steps left out\n",
           number(step, "p50"), number(step, "p95"), number(step, "first"), number(summary, "warmup_steps_excluded"));
    printf("  parts       forward %.2f, backward %.2f, optimizer %.2f, data %.2f ms\n", number(summary, "forward_ms"),
           number(summary, "backward_ms"), number(summary, "optimizer_ms"), number(summary, "data_ms"));
    printf("  speed       %.0f samples/s", number(summary, "samples_per_s"));
    if (!isnan(number(summary, "tokens_per_s")))
        printf(", %.0f tokens/s", number(summary, "tokens_per_s"));
    printf("\n");
}

static void print_communication(const cJSON *summary)
{
    const cJSON *wire = cJSON_GetObjectItemCaseSensitive(flags_of(summary), "wire");
    const char *sent_as = text(flags_of(summary), "grad_dtype");
    if (number(summary, "world_size") == 1)
        return;
    printf("  %s %g per step, %.3f MB", number(summary, "stage") < 5 ? "all-reduce " : "collectives",
           number(summary, "collectives_per_step"), number(summary, "bytes_per_step") / 1e6);
    if (sent_as != NULL && strcmp(sent_as, "fp32") != 0)
        printf(" in %s", sent_as);
    printf(", %.2f ms in flight, %.2f ms exposed (%.1f %% of the step)", number(summary, "comm_ms"),
           number(summary, "exposed_comm_ms"), 100 * number(summary, "comm_share"));
    if (!isnan(number(summary, "hidden_fraction")))
        printf(": %.0f %% hidden", 100 * number(summary, "hidden_fraction"));
    printf("\n");
    if (cJSON_IsArray(wire))
        printf("  link        emulated: %g Gbit/s, %g us\n", cJSON_GetNumberValue(cJSON_GetArrayItem(wire, 0)),
               cJSON_GetNumberValue(cJSON_GetArrayItem(wire, 1)));
}

static void print_memory(const cJSON *summary)
{
    const cJSON *memory = cJSON_GetObjectItemCaseSensitive(summary, "memory");
    printf("  memory      peak %.1f MB per rank: weights %.1f, ", number(summary, "peak_rss_mb"),
           number(memory, "weights_mb"));
    if (number(memory, "gathered_weights_mb") > 0)
        printf("gathered weights %.1f, ", number(memory, "gathered_weights_mb"));
    if (number(memory, "operands_mb") > 0)
        printf("rounded weights %.1f, ", number(memory, "operands_mb"));
    if (number(memory, "whole_gradients_mb") > 0)
        printf("whole gradients %.1f, ", number(memory, "whole_gradients_mb"));
    printf("gradients %.1f, optimizer %.1f, activations %.1f, before the model %.1f\n", number(memory, "gradients_mb"),
           number(memory, "optimizer_mb"), number(memory, "activations_mb"), number(memory, "base_mb"));
}

void summary_print(const cJSON *summary)
{
    const cJSON *verify = cJSON_GetObjectItemCaseSensitive(summary, "verify"), *flags = flags_of(summary);
    printf("stage %.0f (%s): %s, %.0f parameters, %.0f steps of %.0f samples, %.0f rank%s, %s, %s%s\n",
           number(summary, "stage"), text(summary, "stage_name"), text(flags, "model"), number(summary, "parameters"),
           number(summary, "steps"), number(flags, "batch_size"), number(summary, "world_size"),
           number(summary, "world_size") == 1 ? "" : "s", text(summary, "device"), text(flags, "precision"),
           cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(flags, "tf32")) ? " (TF32)" : "");
    print_result(summary);
    print_speed(summary);
    print_communication(summary);
    print_memory(summary);
    printf("  weights     %s (hash)\n", text(summary, "weights_hash"));
    if (cJSON_IsObject(verify))
        printf("  verify      %s: largest difference %.3g in %s: %s\n", text(verify, "mode"),
               number(verify, "max_abs_diff"), text(verify, "worst_parameter"),
               cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(verify, "passed")) ? "passed" : "FAILED");
    fflush(stdout);
}

/* ---- summary: for programs ---- */

void summary_write(const cJSON *summary, const char *path)
{
    char *json = cJSON_Print(summary);
    CHECK(json != NULL, "out of memory for %s", path);
    AtomicFile file;
    atomic_open(&file, path);
    atomic_write(&file, json, strlen(json));
    atomic_write(&file, "\n", 1);
    atomic_commit(&file);
    cJSON_free(json);
}
