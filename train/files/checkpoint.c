/* checkpoint.c: what a checkpoint holds, listed once, and written or read by that list. */
#include "train/files/checkpoint.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "device/device.h"
#include "train/files/safetensors.h"

_Static_assert(sizeof(long) == 8, "the optimizer's step counts are stored as int64");

#define OPTIMIZER_PREFIX "optimizer."
#define LARGEST_COUNT 1000000000000 /* of steps and the like: more than any run takes */

/* ---- the tensors of a checkpoint, in the order of the file ---- */

typedef struct TensorTable {
    SafetensorsEntry *entries; /* names are owned */
    void **memory;             /* per entry: device memory if float32, host memory if int64; not owned */
    int count;
} TensorTable;

static void table_add(TensorTable *table, const char *prefix, const Parameter *parameter, DType dtype, void *memory)
{
    SafetensorsEntry *entry = &table->entries[table->count];
    entry->name = alloc_or_fault(strlen(prefix) + strlen(parameter->name) + 1);
    stpcpy(stpcpy(entry->name, prefix), parameter->name);
    entry->dtype = dtype;
    if (dtype == DTYPE_F32) { /* else a single number, of shape [] */
        entry->ndim = parameter->tensor.ndim;
        memcpy(entry->shape, parameter->tensor.shape, sizeof entry->shape);
    }
    int64_t elements = dtype == DTYPE_F32 ? tensor_count(&parameter->tensor) : 1;
    entry->begin = table->count > 0 ? entry[-1].end : 0;
    entry->end = entry->begin + elements * (int64_t)dtype_size(dtype);
    table->memory[table->count++] = memory;
}

/* One kind of optimizer state for all parameters; states or a single entry may be NULL: not needed. */
static void table_add_states(TensorTable *table, const char *prefix, const ParameterList *parameters, float **states)
{
    for (int i = 0; states != NULL && i < parameters->count; i++) {
        if (states[i] != NULL) {
            table_add(table, prefix, parameters->items[i], DTYPE_F32, states[i]);
        }
    }
}

/* The 8-byte step counts come first: so every tensor lies at a multiple of its element's size. */
static TensorTable table_create(const ParameterList *parameters, const Optimizer *optimizer)
{
    size_t most = 4 * (size_t)parameters->count;
    TensorTable table = {.entries = alloc_or_fault(most * sizeof *table.entries),
                         .memory = alloc_or_fault(most * sizeof *table.memory)};
    for (int i = 0; i < parameters->count; i++) {
        table_add(&table, OPTIMIZER_PREFIX "step.", parameters->items[i], DTYPE_I64, &optimizer->steps[i]);
    }
    for (int i = 0; i < parameters->count; i++) {
        table_add(&table, "", parameters->items[i], DTYPE_F32, parameters->items[i]->tensor.data);
    }
    bool adamw = optimizer->options.kind == OPTIMIZER_ADAMW;
    table_add_states(&table, adamw ? OPTIMIZER_PREFIX "m." : OPTIMIZER_PREFIX "momentum.", parameters,
                     optimizer->state1);
    table_add_states(&table, OPTIMIZER_PREFIX "v.", parameters, optimizer->state2);
    return table;
}

static void table_free(TensorTable *table)
{
    for (int i = 0; i < table->count; i++) {
        free(table->entries[i].name);
    }
    free(table->entries);
    free(table->memory);
}

/* Host memory for the largest tensor of the table. */
static void *table_buffer(const TensorTable *table)
{
    int64_t largest = 0;
    for (int i = 0; i < table->count; i++) {
        int64_t bytes = table->entries[i].end - table->entries[i].begin;
        largest = bytes > largest ? bytes : largest;
    }
    return alloc_or_fault((size_t)largest);
}

static const char *kind_name(OptimizerKind kind)
{
    return kind == OPTIMIZER_ADAMW ? "adamw" : "sgd";
}

/* ---- saving ---- */

static void add_text(cJSON *metadata, const char *key, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add_text(cJSON *metadata, const char *key, const char *format, ...)
{
    char text[128];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cJSON_AddStringToObject(metadata, key, text);
}

/* The format allows nothing but strings. Nine digits give a float32 back exactly. */
static cJSON *state_to_metadata(const CheckpointState *state, OptimizerKind kind)
{
    cJSON *metadata = cJSON_CreateObject();
    add_text(metadata, "writer", "lockstep");
    add_text(metadata, "model", "%s", state->model);
    add_text(metadata, "beyond_shapes", "%s", state->beyond_shapes);
    add_text(metadata, "optimizer", "%s", kind_name(kind));
    add_text(metadata, "step", "%ld", state->step);
    add_text(metadata, "loss_scale", "%.9g", (double)state->loss_scale);
    add_text(metadata, "good_steps", "%ld", state->good_steps);
    add_text(metadata, "seed", "%llu", (unsigned long long)state->seed);
    add_text(metadata, "batch_size", "%ld", state->batch_size);
    add_text(metadata, "accumulate", "%ld", state->accumulate);
    add_text(metadata, "world_size", "%ld", state->world_size);
    add_text(metadata, "drop_last", "%ld", state->drop_last);
    add_text(metadata, "rank_samples", "%ld", state->rank_samples);
    add_text(metadata, "join", "%ld", state->join);
    add_text(metadata, "precision", "%s", state->precision);
    add_text(metadata, "schedule", "%s", state->schedule);
    add_text(metadata, "update", "%s", state->update);
    return metadata;
}

/* Copies tensor i of the table to `buffer`; returns its bytes. */
static size_t tensor_to_host(const TensorTable *table, int i, void *buffer)
{
    const SafetensorsEntry *entry = &table->entries[i];
    size_t bytes = (size_t)(entry->end - entry->begin);
    if (entry->dtype == DTYPE_I64) {
        memcpy(buffer, table->memory[i], bytes);
    } else {
        device_to_host(buffer, table->memory[i], bytes);
    }
    return bytes;
}

void checkpoint_save(const char *path, const ParameterList *parameters, const Optimizer *optimizer,
                     const CheckpointState *state)
{
    TensorTable table = table_create(parameters, optimizer);
    void *buffer = table_buffer(&table);
    uint64_t hash = FNV1A_START;
    for (int i = 0; i < table.count; i++) {
        hash = fnv1a(hash, buffer, tensor_to_host(&table, i, buffer));
    }
    AtomicFile file;
    atomic_open(&file, path);
    cJSON *metadata = state_to_metadata(state, optimizer->options.kind);
    safetensors_write_header(&file, table.entries, table.count, metadata, hash);
    for (int i = 0; i < table.count; i++) {
        atomic_write(&file, buffer, tensor_to_host(&table, i, buffer));
    }
    atomic_commit(&file);
    free(buffer);
    table_free(&table);
}

/* ---- loading: metadata ---- */

static const char *metadata_text(const SafetensorsFile *file, const char *key)
{
    const char *text = safetensors_metadata(file, key);
    if (text == NULL) {
        die("%s: holds an optimizer's state, but its __metadata__ has no \"%s\"", file->path, key);
    }
    return text;
}

static long metadata_count(const SafetensorsFile *file, const char *key)
{
    const char *text = metadata_text(file, key);
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < 0 || value > LARGEST_COUNT) {
        die("%s: \"%s\" is \"%s\" in its __metadata__; a number from 0 to %ld is right", file->path, key,
            safetensors_printable(text), (long)LARGEST_COUNT);
    }
    return value;
}

static uint64_t metadata_seed(const SafetensorsFile *file)
{
    const char *text = metadata_text(file, "seed");
    char *end = NULL;
    errno = 0;
    uint64_t seed = strtoull(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || strchr(text, '-') != NULL) {
        die("%s: \"seed\" is \"%s\" in its __metadata__; a number of 64 bits is right", file->path,
            safetensors_printable(text));
    }
    return seed;
}

static float metadata_loss_scale(const SafetensorsFile *file)
{
    const char *text = metadata_text(file, "loss_scale");
    char *end = NULL;
    float scale = strtof(text, &end);
    if (end == text || *end != '\0' || !isfinite(scale) || scale <= 0) {
        die("%s: \"loss_scale\" is \"%s\" in its __metadata__; a number above 0 is right", file->path,
            safetensors_printable(text));
    }
    return scale;
}

static void advise_if_other(const SafetensorsFile *file, const char *flag, unsigned long long theirs,
                            unsigned long long ours)
{
    if (theirs != ours) {
        advise("%s: was saved from a run with %s %llu, this one has %llu: it will not go on bit for bit", file->path,
               flag, theirs, ours);
    }
}

static void advise_if_other_words(const SafetensorsFile *file, const char *key, const char *ours)
{
    const char *theirs = metadata_text(file, key);
    if (strcmp(theirs, ours) != 0) {
        advise("%s: was saved from a run with %s; this one has %s: it will not go on bit for bit", file->path,
               safetensors_printable(theirs), ours);
    }
}

static void check_same_run(const SafetensorsFile *file, const Optimizer *optimizer, const CheckpointState *state)
{
    metadata_text(file, "checksum"); /* is there, and will be verified */
    const char *model = metadata_text(file, "model");
    if (strcmp(model, state->model) != 0) {
        die("%s: was saved from --model %s, this run has --model %s", file->path, safetensors_printable(model),
            state->model);
    }
    const char *beyond_shapes = metadata_text(file, "beyond_shapes");
    if (strcmp(beyond_shapes, state->beyond_shapes) != 0) {
        die("%s: was saved from a model with %s, this run has %s: the same weights would mean something else",
            file->path, safetensors_printable(beyond_shapes), state->beyond_shapes);
    }
    const char *kind = metadata_text(file, "optimizer");
    if (strcmp(kind, kind_name(optimizer->options.kind)) != 0) {
        die("%s: was saved from --optimizer %s, this run has --optimizer %s", file->path, safetensors_printable(kind),
            kind_name(optimizer->options.kind));
    }
}

/* Said only when the whole file has passed its checks: one who sees an error should not have to read notes as well. */
static void advise_on_other_run(const SafetensorsFile *file, const CheckpointState *state)
{
    advise_if_other(file, "--seed", metadata_seed(file), state->seed);
    advise_if_other(file, "--batch-size", metadata_count(file, "batch_size"), state->batch_size);
    advise_if_other(file, "--accumulate", metadata_count(file, "accumulate"), state->accumulate);
    advise_if_other(file, "--drop-last", metadata_count(file, "drop_last"), state->drop_last);
    advise_if_other(file, "--rank-samples (a fingerprint)", metadata_count(file, "rank_samples"), state->rank_samples);
    advise_if_other(file, "--join (its number)", metadata_count(file, "join"), state->join);
    advise_if_other(file, "ranks:", metadata_count(file, "world_size"), state->world_size);
    advise_if_other_words(file, "schedule", state->schedule);
    advise_if_other_words(file, "update", state->update);
}

static void metadata_to_state(const SafetensorsFile *file, CheckpointState *state)
{
    float loss_scale = metadata_loss_scale(file);
    long good_steps = metadata_count(file, "good_steps");
    const char *precision = metadata_text(file, "precision");
    state->step = metadata_count(file, "step");
    if (strcmp(precision, state->precision) == 0) {
        state->loss_scale = loss_scale;
        state->good_steps = good_steps;
    } else if (!state->read_before) {
        advise("%s: was saved from a run with --precision %s, this one has %s: it will not go on bit for bit",
               file->path, safetensors_printable(precision), state->precision);
    }
}

/* ---- loading: tensors ---- */

static bool is_optimizer_state(const char *name)
{
    return strncmp(name, OPTIMIZER_PREFIX, strlen(OPTIMIZER_PREFIX)) == 0;
}

static bool holds_optimizer_state(const SafetensorsFile *file)
{
    for (int i = 0; i < file->count; i++) {
        if (is_optimizer_state(file->entries[i].name)) {
            return true;
        }
    }
    return false;
}

static void check_tensor(const SafetensorsFile *file, const SafetensorsEntry *expected)
{
    const SafetensorsEntry *entry = safetensors_find(file, expected->name);
    if (entry == NULL) {
        die("%s: has no tensor \"%s\", which this run needs%s", file->path, expected->name,
            is_optimizer_state(expected->name) ? ": was it saved with other settings of the optimizer?"
                                               : ": was it saved from another model?");
    }
    if (entry->dtype != expected->dtype || entry->ndim != expected->ndim ||
        memcmp(entry->shape, expected->shape, (size_t)expected->ndim * sizeof expected->shape[0]) != 0) {
        char theirs[128], ours[128];
        safetensors_describe(entry, theirs, sizeof theirs);
        safetensors_describe(expected, ours, sizeof ours);
        die("%s: tensor \"%s\" is %s, this run needs %s", file->path, expected->name, theirs, ours);
    }
}

/* The file holds exactly the tensors of the table; complete: with those of the optimizer. */
static void check_tensors(const SafetensorsFile *file, const TensorTable *table, bool complete)
{
    int needed = 0;
    for (int i = 0; i < table->count; i++) {
        if (complete || !is_optimizer_state(table->entries[i].name)) {
            check_tensor(file, &table->entries[i]);
            needed++;
        }
    }
    for (int i = 0; i < file->count && needed < file->count; i++) {
        const char *name = file->entries[i].name;
        bool known = false;
        for (int t = 0; t < table->count && !known; t++) {
            known = strcmp(name, table->entries[t].name) == 0;
        }
        if (!known) {
            die("%s: holds tensor \"%s\", which this run does not have%s", file->path, safetensors_printable(name),
                is_optimizer_state(name) ? ": was it saved with other settings of the optimizer?"
                                         : ": was it saved from another model?");
        }
    }
}

/* step: the checkpoint's; no parameter has been updated more often. */
static void load_tensor(const SafetensorsFile *file, const SafetensorsEntry *entry, void *buffer, void *memory,
                        long step)
{
    safetensors_read(file, entry, buffer);
    if (entry->dtype == DTYPE_F32) {
        device_from_host(memory, buffer, (size_t)(entry->end - entry->begin));
        return;
    }
    long count;
    memcpy(&count, buffer, sizeof count);
    if (count < 0 || count > step) {
        die("%s: tensor \"%s\" is %ld; a number from 0 to %ld is right", file->path, entry->name, count, step);
    }
    memcpy(memory, &count, sizeof count);
}

bool checkpoint_load(const char *path, ParameterList *parameters, Optimizer *optimizer, CheckpointState *state)
{
    SafetensorsFile file;
    safetensors_open(&file, path);
    bool complete = holds_optimizer_state(&file);
    TensorTable table = table_create(parameters, optimizer);
    if (complete) {
        check_same_run(&file, optimizer, state);
    }
    check_tensors(&file, &table, complete);
    safetensors_check_sum(&file);
    if (complete && !state->read_before) {
        advise_on_other_run(&file, state);
    }
    if (complete) {
        metadata_to_state(&file, state);
    } else if (!state->read_before) {
        advise("%s: holds parameters only; the optimizer and the count of steps start afresh", path);
    }
    void *buffer = table_buffer(&table);
    for (int i = 0; i < table.count; i++) {
        const SafetensorsEntry *entry = safetensors_find(&file, table.entries[i].name);
        if (entry != NULL) {
            load_tensor(&file, entry, buffer, table.memory[i], state->step);
            state->checksum = checksum(state->checksum, buffer, (size_t)(entry->end - entry->begin));
        }
    }
    parameters_changed(parameters);
    free(buffer);
    table_free(&table);
    safetensors_close(&file);
    return complete;
}
