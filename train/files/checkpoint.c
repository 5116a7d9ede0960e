/* checkpoint.c: lists a checkpoint's tensors in one table, for writing and for reading. */
#include "train/files/checkpoint.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "device/device.h"
#include "train/files/safetensors.h"

_Static_assert(sizeof(long) == 8, "the optimizer's step counts are stored as int64");

#define MAX_COUNT 1e12 /* more steps than any run takes, and more samples than any data set has */
#define MAX_EPOCH 1e9

/* ---- the tensors, in the order of the file ---- */

typedef struct TensorTable {
    SafetensorsEntry *entries; /* owned; `memory` is not: device memory if float32, else host memory */
    int count;
} TensorTable;

static void table_add(TensorTable *table, const char *prefix, const Parameter *parameter, DType dtype, void *memory)
{
    SafetensorsEntry *entry = &table->entries[table->count++];
    *entry = (SafetensorsEntry){.dtype = dtype, .bytes = (int64_t)dtype_size(dtype), .memory = memory};
    snprintf(entry->name, sizeof entry->name, "%s%s", prefix, parameter->name);
    if (dtype == DTYPE_F32) { /* else a single number, of shape [] */
        entry->ndim = parameter->tensor.ndim;
        memcpy(entry->shape, parameter->tensor.shape, sizeof entry->shape);
        entry->bytes *= tensor_count(&parameter->tensor);
    }
}

/* Adds one kind of optimizer state for all parameters. states, or its entries, may be NULL. */
static void table_add_states(TensorTable *table, const char *prefix, const ParameterList *parameters, float **states)
{
    for (int i = 0; states != NULL && i < parameters->count; i++)
        if (states[i] != NULL)
            table_add(table, prefix, parameters->items[i], DTYPE_F32, states[i]);
}

/* state1, state2: whole. more: may be NULL. The 8-byte step counts come first, to keep every tensor aligned. */
static TensorTable table_create(const Optimizer *optimizer, float **state1, float **state2, const ParameterList *more)
{
    const ParameterList *parameters = optimizer->parameters;
    const int others = more != NULL ? more->count : 0;
    TensorTable table = {.entries = alloc_or_fault((size_t)(4 * parameters->count + others) * sizeof *table.entries)};
    for (int i = 0; i < parameters->count; i++)
        table_add(&table, "optimizer.step.", parameters->items[i], DTYPE_I64, &optimizer->steps[i]);
    for (int i = 0; i < parameters->count; i++)
        table_add(&table, "", parameters->items[i], DTYPE_F32, parameters->items[i]->tensor.data);
    bool adamw = optimizer->options.kind == OPTIMIZER_ADAMW;
    table_add_states(&table, adamw ? "optimizer.m." : "optimizer.momentum.", parameters, state1);
    table_add_states(&table, "optimizer.v.", parameters, state2);
    for (int i = 0; i < others; i++)
        table_add(&table, "", more->items[i], DTYPE_F32, more->items[i]->tensor.data);
    return table;
}

static void *table_buffer(const TensorTable *table)
{
    int64_t largest = 0;
    for (int i = 0; i < table->count; i++)
        largest = table->entries[i].bytes > largest ? table->entries[i].bytes : largest;
    return alloc_or_fault((size_t)largest);
}

/* ---- saving ---- */

void checkpoint_add_setting(CheckpointState *state, const char *key, const char *format, ...)
{
    CHECK(state->setting_count < CHECKPOINT_MAX_SETTINGS, "no room for the setting \"%s\"", key);
    CheckpointSetting *setting = &state->settings[state->setting_count++];
    setting->key = key;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(setting->words, sizeof setting->words, format, arguments);
    va_end(arguments);
    snprintf(setting->effect, sizeof setting->effect, "the weights will not be the same to the bit");
}

__attribute__((format(printf, 3, 4))) static void add_text(cJSON *metadata, const char *key, const char *format, ...)
{
    char text[32];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cJSON_AddStringToObject(metadata, key, text);
}

/* The format allows only strings. Nine digits are enough to restore a float32 exactly. */
static cJSON *state_to_metadata(const CheckpointState *state)
{
    cJSON *metadata = cJSON_CreateObject();
    cJSON_AddStringToObject(metadata, "writer", "lockstep");
    add_text(metadata, "step", "%ld", state->step);
    add_text(metadata, "loss_scale", "%.9g", (double)state->loss_scale);
    add_text(metadata, "good_steps", "%ld", state->good_steps);
    add_text(metadata, "learning_rate", "%.9g", (double)state->learning_rate);
    if (isfinite(state->best_loss))
        add_text(metadata, "best_loss", "%.17g", state->best_loss);
    add_text(metadata, "best_loss_samples", "%ld", state->best_loss_samples);
    add_text(metadata, "epoch", "%ld", state->place.epoch);
    add_text(metadata, "epoch_samples", "%lld", (long long)state->place.samples);
    cJSON_AddStringToObject(metadata, "model", state->model);
    for (int i = 0; i < state->setting_count; i++)
        cJSON_AddStringToObject(metadata, state->settings[i].key, state->settings[i].words);
    return metadata;
}

static void tensor_to_host(const SafetensorsEntry *entry, void *buffer)
{
    if (entry->dtype == DTYPE_I64)
        memcpy(buffer, entry->memory, (size_t)entry->bytes);
    else
        device_to_host(buffer, entry->memory, (size_t)entry->bytes);
}

/* note: finite-checkpoints
 * A run that has diverged must not replace a good checkpoint. */
static void check_finite(const char *path, const SafetensorsEntry *entry, const float *values)
{
    for (int64_t i = 0; entry->dtype == DTYPE_F32 && i < entry->bytes / (int64_t)sizeof *values; i++)
        CHECK(isfinite(values[i]), "%s is not written, because \"%s\" holds %f: training has diverged; a lower --lr or "
              "--clip-grad-norm may help", path, entry->name, (double)values[i]);
}

/* Returns false, and sets file->problem, if the file cannot be written. */
static bool try_write(AtomicFile *file, const char *path, const TensorTable *table, const CheckpointState *state)
{
    void *buffer = table_buffer(table);
    uint64_t hash = FNV1A_START;
    for (int i = 0; i < table->count; i++) {
        tensor_to_host(&table->entries[i], buffer);
        check_finite(path, &table->entries[i], buffer);
        hash = fnv1a(hash, buffer, (size_t)table->entries[i].bytes);
    }
    if (!atomic_try_open(file, path)) {
        free(buffer);
        return false;
    }
    safetensors_write_header(file, table->entries, table->count, state_to_metadata(state), hash);
    for (int i = 0; i < table->count; i++) {
        tensor_to_host(&table->entries[i], buffer);
        atomic_write(file, buffer, (size_t)table->entries[i].bytes);
    }
    free(buffer);
    return atomic_try_commit(file);
}

/* note: saved-elsewhere
 * The training is done, but the checkpoint cannot be written to its path. So it goes to a new file in the first of some
 * directories that can be written. The run still ends with a fault, because the file of --save is missing. (mkstemp()
 * makes an empty file with a unique name, which the checkpoint then replaces.) */
static _Noreturn void save_elsewhere(const AtomicFile *failed, const TensorTable *table, const CheckpointState *state)
{
    const char *const directories[] = {".", getenv("TMPDIR"), "/tmp"};
    const char *slash = strrchr(failed->path, '/'), *name = slash != NULL ? slash + 1 : failed->path;
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++) {
        AtomicFile file;
        char path[PATH_MAX];
        if (directories[i] == NULL)
            continue;
        snprintf(path, sizeof path, "%s/%.100s.rescued-XXXXXX", directories[i], name);
        int descriptor = mkstemp(path);
        if (descriptor < 0)
            continue;
        close(descriptor);
        if (try_write(&file, path, table, state))
            FAULT("%s: %s; the weights and the optimizer's state are in %s instead", failed->path, failed->problem,
                  file.place);
        unlink(path);
    }
    FAULT("%s: %s; nor could the current directory, $TMPDIR or /tmp take it: this state of the training is lost",
          failed->path, failed->problem);
}

bool checkpoint_save(const char *path, Optimizer *optimizer, const CheckpointState *state, OnFailure on_failure)
{
    bool written = true;
    optimizer_allocate_state(optimizer);
    float **state1 = optimizer_gather_state(optimizer, optimizer->state1, path != NULL);
    float **state2 = optimizer_gather_state(optimizer, optimizer->state2, path != NULL);
    if (path != NULL) {
        AtomicFile file;
        TensorTable table = table_create(optimizer, state1, state2, state->more);
        written = try_write(&file, path, &table, state);
        if (!written && on_failure == RESCUE)
            save_elsewhere(&file, &table, state);
        if (!written && on_failure == ADVISE)
            advise("%s: %s; the state after step %ld is not saved, and training goes on", path, file.problem,
                   state->step);
        free(table.entries);
    }
    optimizer_free_gathered(optimizer, state1);
    optimizer_free_gathered(optimizer, state2);
    return written;
}

/* ---- loading ---- */

static const char *metadata_text(const SafetensorsFile *file, const char *key)
{
    const char *text = safetensors_metadata(file, key);
    if (text == NULL)
        die("%s: holds an optimizer's state, but its __metadata__ has no \"%s\"", file->path, key);
    return text;
}

static double metadata_number(const SafetensorsFile *file, const char *key, double low, double high)
{
    const char *text = metadata_text(file, key);
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= low && value <= high))
        die("%s: \"%s\" is \"%.100s\" in its __metadata__; it must be a number from %g to %g", file->path, key, text,
            low, high);
    return value;
}

/* A file of an older version lacks these. */
static void read_place(const SafetensorsFile *file, CheckpointState *state)
{
    if (safetensors_metadata(file, "epoch") == NULL) {
        state->place.epoch = -1;
        return;
    }
    state->place.epoch = (long)metadata_number(file, "epoch", 0, MAX_EPOCH);
    state->place.samples = (int64_t)metadata_number(file, "epoch_samples", 0, MAX_COUNT);
    state->learning_rate = (float)metadata_number(file, "learning_rate", 0, (double)FLT_MAX);
}

static void metadata_to_state(const SafetensorsFile *file, CheckpointState *state)
{
    state->loss_scale = (float)metadata_number(file, "loss_scale", (double)FLT_MIN, (double)FLT_MAX);
    state->good_steps = (long)metadata_number(file, "good_steps", 0, MAX_COUNT);
    state->step = (long)metadata_number(file, "step", 0, MAX_COUNT);
    state->best_loss = (double)INFINITY;
    if (safetensors_metadata(file, "best_loss") != NULL)
        state->best_loss = metadata_number(file, "best_loss", 0, DBL_MAX);
    state->best_loss_samples = -1;
    if (safetensors_metadata(file, "best_loss_samples") != NULL)
        state->best_loss_samples = (long)metadata_number(file, "best_loss_samples", 0, MAX_COUNT);
    read_place(file, state);
    for (int i = 0; i < state->setting_count; i++) {
        const char *words = safetensors_metadata(file, state->settings[i].key);
        snprintf(state->settings[i].words, sizeof state->settings[i].words, "%s", words != NULL ? words : "");
    }
}

static void check_origin(const SafetensorsFile *file, const CheckpointState *state)
{
    if (safetensors_metadata(file, "checksum") == NULL) /* it is compared after the header; it must not be left out */
        die("%s: holds an optimizer's state, but has no checksum: an older version of this program has written it, or "
            "another program has changed it; its weights can be used if the optimizer's state is left out", file->path);
    const char *model = metadata_text(file, "model");
    if (strcmp(model, state->model) != 0)
        die("%s: was saved from a run with %.191s, this one has %s: the same numbers would mean something else",
            file->path, model, state->model);
}

/* step: of the checkpoint; no step count may be larger. */
static void load_tensor(const SafetensorsFile *file, const SafetensorsEntry *entry, void *buffer, long step)
{
    safetensors_read(file, entry, buffer);
    if (entry->dtype == DTYPE_F32) {
        device_from_host(entry->memory, buffer, (size_t)entry->bytes);
        return;
    }
    long count;
    memcpy(&count, buffer, sizeof count);
    if (count < 0 || count > step)
        die("%s: tensor \"%s\" is %ld; it must be a number from 0 to %ld", file->path, entry->name, count, step);
    memcpy(entry->memory, &count, sizeof count);
}

bool checkpoint_load(const char *path, Optimizer *optimizer, CheckpointState *state)
{
    ParameterList *parameters = optimizer->parameters;
    SafetensorsFile file;
    safetensors_open(&file, path);
    optimizer_allocate_state(optimizer);
    TensorTable table = table_create(optimizer, optimizer->state1, optimizer->state2, state->more);
    bool complete = cJSON_GetObjectItemCaseSensitive(file.header, table.entries[0].name) != NULL;
    SafetensorsEntry *needed = complete ? table.entries : table.entries + parameters->count;
    int count = complete ? table.count : parameters->count;
    if (complete)
        check_origin(&file, state);
    safetensors_expect(&file, needed, count);
    if (complete)
        metadata_to_state(&file, state);
    void *buffer = table_buffer(&table);
    for (int i = 0; i < count; i++)
        load_tensor(&file, &needed[i], buffer, state->step);
    parameters_changed(parameters);
    state->hash = file.hash;
    free(buffer);
    free(table.entries);
    safetensors_close(&file);
    return complete;
}

/* ---- what differs ---- */

CheckpointSetting *checkpoint_setting(CheckpointState *state, const char *key)
{
    for (int i = 0; i < state->setting_count; i++)
        if (strcmp(state->settings[i].key, key) == 0)
            return &state->settings[i];
    FAULT("there is no setting \"%s\"", key);
}

void checkpoint_compare(const char *path, const CheckpointState *saved, const CheckpointState *ours)
{
    bool all_known = saved->place.epoch >= 0;
    for (int i = 0; i < ours->setting_count; i++) {
        const CheckpointSetting *theirs = &saved->settings[i], *setting = &ours->settings[i];
        if (theirs->words[0] == '\0')
            all_known = false;
        else if (strcmp(theirs->words, setting->words) != 0)
            advise("%s: was saved from a run with %s; this one has %s: %s", path, theirs->words, setting->words,
                   setting->effect);
    }
    if (!all_known)
        advise("%s: an older version of this program has written it, and it lacks some of its run's settings", path);
}
