/* options.c: reads the command line. The words of argv become a text per flag; defaults fill the gaps; texts become
 * values; options_check.c checks combinations of flags. */
#include "train/cli/options.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/check.h"
#include "base/hash.h"
#include "device/device.h"
#include "train/cli/options_flags.h"
#include "train/gpu.h"

/* Returns the flag that `word` names, up to a '='. die()s if there is none, and suggests a similar flag. */
static FlagId find_flag(const char *word)
{
    if (strncmp(word, "--", 2) != 0)
        die("'%s': not a flag; flags are whole words after two dashes, and --help lists them", word);
    const char *name = word + 2, *similar = NULL;
    const size_t length = strcspn(name, "=");
    for (int id = 0; id < FLAG_COUNT; id++) {
        if (strncmp(flags[id].name, name, length) != 0)
            continue;
        if (flags[id].name[length] == '\0')
            return (FlagId)id;
        similar = similar == NULL ? flags[id].name : similar;
    }
    if (length > 0 && similar != NULL)
        die("--%.*s: no such flag; flags cannot be shortened: is it --%s?", (int)length, name, similar);
    die("--%.*s: no such flag; --help lists all", (int)length, name);
}

/* Returns the value of a flag that was typed as `word`: the text behind its '=', or else `next`, the next word (NULL:
 * there is none). "": an optional value, such as "[exact]", is missing. */
static const char *value_of(const Flag *flag, const char *word, const char *next)
{
    const bool optional = flag->argument != NULL && flag->argument[0] == '[';
    const char *equals = strchr(word, '='), *value = equals != NULL ? equals + 1 : next;
    if (optional && equals == NULL && (next == NULL || next[0] == '-'))
        return "";
    if (value == NULL)
        die("--%s: needs a value", flag->name);
    if (value[0] == '\0')
        die("--%s: its value is empty", flag->name);
    if (equals == NULL && strncmp(value, "--", 2) == 0)
        die("--%s: needs a value, but %s follows", flag->name, value);
    return value;
}

static bool takes_value(const Flag *flag)
{
    return flag->argument != NULL || flag->choices != NULL;
}

/* Fills options->text and ->given. Returns false if --help was among the flags. */
static bool read_words(Options *options, int argc, char **argv, int stage)
{
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        const FlagId id = find_flag(word);
        const Flag *flag = &flags[id];
        if (!takes_value(flag) && strchr(word, '=') != NULL)
            die("--%s: takes no value", flag->name);
        if (stage < flag->stage)
            die("--%s: stage %d (%s) has no %s: take %s", flag->name, stage, stage_name(stage), flag->feature,
                stage_directory(flag->stage));
        if (id == FLAG_HELP)
            return false;
        options->text[id] = takes_value(flag) ? value_of(flag, word, next) : "";
        options->given[id] = true;
        if (options->text[id] == next)
            i++; /* the next word was the value */
    }
    return true;
}

/* ---- values ---- */

/* note: too-near-to-zero
 * 1e-400 would become 0, and 0 often has another meaning: --clip-grad-norm 0 never clips. Training uses float32, so
 * numbers that float32 cannot hold with all its digits are rejected. text: a number that strtod() has read. */
static void check_not_rounded_to_zero(const Flag *flag, const char *text, double number)
{
    const bool typed_as_zero = strcspn(text, "123456789") >= strcspn(text, "eE,");
    if (!typed_as_zero && fabs(number) < (double)FLT_MIN)
        die("--%s: '%s' is too near to 0 for float32, which would make it 0 or lose digits; give 0, or at least %g",
            flag->name, text, (double)FLT_MIN);
}

/* Reads at most `room` decimal numbers with commas between them. Returns their number; -1 if the text is invalid, or a
 * number is outside the flag's range. (strtod() would also skip spaces, and read "nan" and "0x10".) */
static int read_numbers(const Flag *flag, const char *text, bool whole, double *numbers, int room)
{
    char *end = NULL;
    for (int count = 0; count < room; text = end + 1) {
        const char *start = text + (*text == '-' || *text == '+');
        const double number = strtod(text, &end);
        if (end <= start || start + strspn(start, whole ? "0123456789" : "0123456789.eE+-") != end)
            return -1;
        if (!(number >= flag->low && number <= flag->high) || (*end != ',' && *end != '\0'))
            return -1;
        check_not_rounded_to_zero(flag, start, number);
        numbers[count++] = number;
        if (*end == '\0')
            return count;
    }
    return -1;
}

/* This function and the next ones die() if the text is not a valid value of the flag. They return 0 if it has none. */
static long whole_number(const Options *options, FlagId id)
{
    const Flag *flag = &flags[id];
    double number = 0;
    if (options->text[id] != NULL && read_numbers(flag, options->text[id], true, &number, 1) < 0)
        die("--%s: '%s' is not a whole number from %.0f to %.0f", flag->name, options->text[id], flag->low, flag->high);
    return (long)number;
}

static double real_number(const Options *options, FlagId id)
{
    const Flag *flag = &flags[id];
    double number = 0;
    if (options->text[id] != NULL && read_numbers(flag, options->text[id], false, &number, 1) < 0)
        die("--%s: '%s' is not a number from %g to %g", flag->name, options->text[id], flag->low, flag->high);
    return number;
}

/* room: at most OPTIONS_MAX_RANKS. Returns the number of numbers. */
static int whole_number_list(const Options *options, FlagId id, int64_t *numbers, int room)
{
    const Flag *flag = &flags[id];
    double list[OPTIONS_MAX_RANKS];
    const int count = options->text[id] != NULL ? read_numbers(flag, options->text[id], true, list, room) : 0;
    if (count < 0)
        die("--%s: '%s' is not %s: up to %d whole numbers from %.0f to %.0f with commas between them", flag->name,
            options->text[id], flag->argument, room, flag->low, flag->high);
    for (int i = 0; i < count; i++)
        numbers[i] = (int64_t)list[i];
    return count;
}

static const Choice *choice(const Options *options, FlagId id)
{
    char list[128] = "";
    for (const Choice *one = flags[id].choices; one->name != NULL; one++) {
        if (strcmp(one->name, options->text[id]) == 0)
            return one;
        strncat(list, list[0] != '\0' ? ", " : "", sizeof list - strlen(list) - 1);
        strncat(list, one->name, sizeof list - strlen(list) - 1);
    }
    die("--%s: '%s' is unknown; the choices are: %s", flags[id].name, options->text[id], list);
}

static void fill_defaults(Options *options)
{
    for (int id = 0; id < FLAG_COUNT; id++)
        if (!options->given[id])
            options->text[id] = flags[id].default_value;
    if (!options->given[FLAG_LOSS_SCALE] && codec_find(choice(options, FLAG_GRAD_DTYPE)->name)->dtype == DTYPE_F16)
        options->text[FLAG_LOSS_SCALE] = LOSS_SCALE_FP16_ON_THE_WIRE;
    if (!options->given[FLAG_BACKEND])
        options->text[FLAG_BACKEND] = gpu_has_nccl() && !options->given[FLAG_SHARE_GPU] ? "nccl" : "mpi";
    const int model = choice(options, FLAG_MODEL)->value;
    const bool length_given = options->given[FLAG_STEPS] || options->given[FLAG_EPOCHS];
    for (int i = 0; i < MODEL_DEFAULT_COUNT; i++) {
        const ModelDefault *row = &model_defaults[i];
        const bool is_length = row->flag == FLAG_STEPS || row->flag == FLAG_EPOCHS;
        if (options->given[row->flag] || (is_length && length_given))
            continue;
        if (row->optimizer == NULL || strcmp(row->optimizer, choice(options, FLAG_OPTIMIZER)->name) == 0)
            options->text[row->flag] = row->by_model[model];
    }
}

static void fill_model(Options *options)
{
    static const DatasetKind datasets[MODEL_COUNT] = {DATASET_IMAGES, DATASET_RANDOM, DATASET_TEXT, DATASET_TEXT};
    const Choice *model = choice(options, FLAG_MODEL);
    CHECK(model_spec_by_name(model->name, &options->model), "nn/ has no model named %s", model->name);
    options->dataset = datasets[model->value];
    options->data = options->text[FLAG_DATA];
    options->binary_data = options->given[FLAG_BINARY_DATA];
    options->dropout = (float)real_number(options, FLAG_DROPOUT);
    options->recompute = options->given[FLAG_RECOMPUTE];
    options->model.skip_layer = (int)whole_number(options, FLAG_SKIP_LAYER);
    options->mask_tokens = (float)real_number(options, FLAG_MASK_TOKENS);
    if (options->given[FLAG_HIDDEN]) {
        int64_t hidden[2];
        if (whole_number_list(options, FLAG_HIDDEN, hidden, 2) < 2)
            die("--hidden: '%s' is one number; give two, with a comma between them", options->text[FLAG_HIDDEN]);
        options->model.mlp.hidden1 = (int)hidden[0];
        options->model.mlp.hidden2 = (int)hidden[1];
    }
    options->model.mlp.activation = (Activation)choice(options, FLAG_ACTIVATION)->value;
    options->model.norm = (Norm)choice(options, FLAG_NORM)->value;
    if (options->given[FLAG_LAYERS])
        options->model.gpt.layers = (int)whole_number(options, FLAG_LAYERS);
    if (options->given[FLAG_HEADS])
        options->model.gpt.heads = (int)whole_number(options, FLAG_HEADS);
    if (options->given[FLAG_WIDTH])
        options->model.gpt.width = (int)whole_number(options, FLAG_WIDTH);
    if (options->given[FLAG_CONTEXT])
        options->model.gpt.context = (int)whole_number(options, FLAG_CONTEXT);
}

static void fill_training(Options *options)
{
    options->steps = whole_number(options, FLAG_STEPS);
    options->epochs = whole_number(options, FLAG_EPOCHS);
    options->batch_size = whole_number(options, FLAG_BATCH_SIZE);
    options->accumulate = (int)whole_number(options, FLAG_ACCUMULATE);
    options->seed = (uint64_t)whole_number(options, FLAG_SEED);
    options->drop_last = options->given[FLAG_DROP_LAST];
    options->rank_samples_count = whole_number_list(options, FLAG_RANK_SAMPLES, options->rank_samples,
                                                    OPTIONS_MAX_RANKS);
    if (options->given[FLAG_JOIN])
        options->join = (JoinMode)choice(options, FLAG_JOIN)->value;
    options->same_seed = options->given[FLAG_SAME_INIT];
    options->lr = (float)real_number(options, FLAG_LR);
    options->lr_schedule = (LrSchedule)choice(options, FLAG_LR_SCHEDULE)->value;
    options->warmup_steps = whole_number(options, FLAG_WARMUP_STEPS);
    options->warmup_given = options->given[FLAG_WARMUP_STEPS];
    options->optimizer = (OptimizerOptions){.kind = (OptimizerKind)choice(options, FLAG_OPTIMIZER)->value,
                                            .momentum = (float)real_number(options, FLAG_MOMENTUM),
                                            .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                                            .weight_decay = (float)real_number(options, FLAG_WEIGHT_DECAY)};
    options->clip_grad_norm = real_number(options, FLAG_CLIP_GRAD_NORM);
    options->precision = (DType)choice(options, FLAG_PRECISION)->value;
    options->tf32 = options->given[FLAG_TF32];
    options->initial_loss_scale = (float)real_number(options, FLAG_LOSS_SCALE);
}

static void fill_communication(Options *options, int stage)
{
    const double mebibyte = 1024 * 1024;
    options->share_gpu = options->given[FLAG_SHARE_GPU];
    options->threads = (int)whole_number(options, FLAG_THREADS);
    options->group.algorithm = (AllReduceAlgorithm)choice(options, FLAG_ALLREDUCE)->value;
    if (options->group.algorithm == ALLREDUCE_AUTO && device_kind() != DEVICE_CPU)
        options->group.algorithm = ALLREDUCE_MPI; /* ranks cannot share a GPU's memory */
    options->group.ranks_per_host = (int)whole_number(options, FLAG_RANKS_PER_HOST);
    options->group.timeout = real_number(options, FLAG_TIMEOUT);
    options->group.debug_collectives = options->given[FLAG_DEBUG_COLLECTIVES];
    options->on_nan = (OnNan)choice(options, FLAG_ON_NAN)->value;
    if (options->given[FLAG_WIRE]) {
        const Flag *wire = &flags[FLAG_WIRE];
        double numbers[2]; /* gigabit per second, microseconds */
        if (read_numbers(wire, options->text[FLAG_WIRE], false, numbers, 2) != 2)
            die("--wire: '%s' is not %s: two numbers from %g to %g with a comma between them",
                options->text[FLAG_WIRE], wire->argument, wire->low, wire->high);
        options->group.wire_gbps = numbers[0];
        options->group.wire_latency = numbers[1] * 1e-6;
    }
    options->ddp.bucket_cap_bytes = (size_t)(real_number(options, FLAG_BUCKET_CAP_MB) * mebibyte);
    options->ddp.first_bucket_cap_bytes = (size_t)(real_number(options, FLAG_FIRST_BUCKET_MB) * mebibyte);
    options->ddp.rebuild_buckets = options->given[FLAG_REBUILD_BUCKETS];
    options->ddp.static_graph = options->given[FLAG_STATIC_GRAPH];
    options->ddp.find_unused_parameters = options->given[FLAG_FIND_UNUSED_PARAMETERS] || options->ddp.static_graph;
    options->ddp.codec = codec_find(choice(options, FLAG_GRAD_DTYPE)->name);
    options->power_sgd_rank = (int)whole_number(options, FLAG_POWERSGD_RANK);
    options->sharding.level = choice(options, FLAG_ZERO)->value;
    options->sharding.shard_ranks = (int)whole_number(options, FLAG_SHARD_RANKS);
    options->sharding.bucket_per_layer = stage == 5 && !options->given[FLAG_BUCKET_CAP_MB] &&
                                         !options->given[FLAG_FIRST_BUCKET_MB];
    if (options->sharding.bucket_per_layer)
        options->text[FLAG_BUCKET_CAP_MB] = options->text[FLAG_FIRST_BUCKET_MB] = NULL; /* there are no caps */
}

static void fill_checks_and_files(Options *options)
{
    if (options->given[FLAG_VERIFY])
        options->verify = (VerifyMode)choice(options, FLAG_VERIFY)->value;
    options->check_every = whole_number(options, FLAG_CHECK_EVERY);
    options->eval_samples = whole_number(options, FLAG_EVAL_SAMPLES);
    options->save = options->text[FLAG_SAVE];
    options->save_every = whole_number(options, FLAG_SAVE_EVERY);
    options->resume = options->text[FLAG_RESUME];
    options->eval_every = whole_number(options, FLAG_EVAL_EVERY);
    options->save_best = options->text[FLAG_SAVE_BEST];
    options->log = options->text[FLAG_LOG];
    options->log_every = whole_number(options, FLAG_LOG_EVERY);
    options->generate = whole_number(options, FLAG_GENERATE);
    options->trace = options->text[FLAG_TRACE];
    options->json = options->text[FLAG_JSON];
    options->flight_recorder = options->text[FLAG_FLIGHT_RECORDER];
}

BackendKind options_backend(const Options *options)
{
    return (BackendKind)choice(options, FLAG_BACKEND)->value;
}

Resolved options_resolve(const Options *options, AllReduceAlgorithm algorithm, int world_size)
{
    const DType sent = options->ddp.codec->dtype;
    const BackendKind backend = options_backend(options);
    return (Resolved){.backend = backend, .algorithm = all_reduce_algorithm(algorithm, sent),
                      .rank_order = world_size <= 2 ||
                                    (backend == BACKEND_MPI && (all_reduce_in_rank_order(algorithm, sent) ||
                                                                algorithm == ALLREDUCE_HIERARCHICAL))};
}

bool options_parse(Options *options, int argc, char **argv, int stage)
{
    memset(options, 0, sizeof *options);
    if (!read_words(options, argc, argv, stage)) {
        if (job_rank() == 0)
            options_print_help(stage);
        return false;
    }
    fill_defaults(options);
    fill_model(options);
    fill_training(options);
    fill_communication(options, stage);
    fill_checks_and_files(options);
    options_check_flags(options, stage);
    options_check_files(options);
    return true;
}

/* ---- values as text, for the summary and for checkpoints ---- */

static bool is_list(const Flag *flag)
{
    return strchr(flag->argument, ',') != NULL;
}

static cJSON *value_to_json(const Flag *flag, const char *text)
{
    double numbers[OPTIONS_MAX_RANKS];
    if (text == NULL)
        return takes_value(flag) ? cJSON_CreateNull() : cJSON_CreateFalse();
    if (text[0] == '\0')
        return cJSON_CreateTrue();
    if (flag->low >= flag->high)
        return cJSON_CreateString(text);
    const int count = read_numbers(flag, text, false, numbers, OPTIONS_MAX_RANKS);
    return is_list(flag) ? cJSON_CreateDoubleArray(numbers, count) : cJSON_CreateNumber(numbers[0]);
}

cJSON *options_to_json(const Options *options, int stage)
{
    cJSON *object = cJSON_CreateObject();
    for (int id = 0; id < FLAG_HELP; id++) {
        char key[32];
        snprintf(key, sizeof key, "%s", flags[id].name);
        for (char *dash = key; (dash = strchr(dash, '-')) != NULL;)
            *dash = '_';
        cJSON_AddItemToObject(object, key, stage >= flags[id].stage ? value_to_json(&flags[id], options->text[id])
                                                                    : cJSON_CreateNull());
    }
    return object;
}

const char *options_setting(const Options *options, int i, char *words, size_t size)
{
    int id = 0;
    while (id < FLAG_COUNT && !(flags[id].bits && i-- == 0))
        id++;
    if (id == FLAG_COUNT)
        return NULL;
    const char *name = flags[id].name, *text = options->text[id];
    if (text == NULL)
        snprintf(words, size, "no --%s", name);
    else if (flags[id].low < flags[id].high && !is_list(&flags[id])) /* 0.9 and 0.90 are the same */
        snprintf(words, size, "--%s %.15g", name, strtod(text, NULL));
    else if (strlen(text) > size / 2)
        snprintf(words, size, "--%s of fingerprint %016llx", name,
                 (unsigned long long)fnv1a(FNV1A_START, text, strlen(text)));
    else
        snprintf(words, size, "--%s%s%s", name, text[0] != '\0' ? " " : "", text);
    return name;
}
