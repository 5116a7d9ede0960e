/* options.c: reads the command line. Four steps, in the order of the functions: the words of argv become a text per
 * flag; defaults fill the gaps; texts become values; combinations of flags are checked (options_check.c). */
#include "train/cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "device/device.h"
#include "train/cli/options_flags.h"
#include "train/gpu.h"

/* ---- words ---- */

/* getopt_long() returns this plus the flag's number, so that it cannot be confused with the signs '?' and ':'. */
#define FLAG_BASE 256

/* In "[exact]", the brackets say that the word is optional. */
static bool value_is_optional(FlagId id)
{
    return flags[id].argument != NULL && flags[id].argument[0] == '[';
}

static void describe_for_getopt(struct option *list)
{
    for (int id = 0; id < FLAG_COUNT; id++) {
        bool has_value = flags[id].argument != NULL || flags[id].choices != NULL;
        int has_arg = value_is_optional((FlagId)id) ? optional_argument : has_value ? required_argument : no_argument;
        list[id] = (struct option){.name = flags[id].name, .has_arg = has_arg, .val = FLAG_BASE + id};
    }
    list[FLAG_COUNT] = (struct option){0};
}

/* `word` is not a flag: die()s, with a guess at what was meant. */
static _Noreturn void refuse_word(const char *word)
{
    int length = (int)strcspn(word, "=");
    if (strncmp(word, "--", 2) != 0)
        die("'%s': not a flag; flags are whole words after two dashes, and --help lists them", word);
    for (int id = 0; id < FLAG_COUNT && length > 2; id++)
        if (strncmp(flags[id].name, word + 2, (size_t)length - 2) == 0)
            die("%.*s: no such flag; flags cannot be shortened: is it --%s?", length, word, flags[id].name);
    die("%.*s: no such flag; --help lists all", length, word);
}

/* False if `word` abbreviates the flag `name`: getopt_long() accepts "--mod" for "--model". */
static bool is_spelled_out(const char *word, const char *name)
{
    size_t length = strcspn(word, "=");
    return length == strlen(name) + 2 && strncmp(word + 2, name, strlen(name)) == 0;
}

/* The value of the flag that was just read; "" if it has none. `word`: the flag as typed. */
static const char *value_of(FlagId id, const char *word, int argc, char **argv)
{
    bool next_is_a_word = optind < argc && argv[optind][0] != '-';
    if (value_is_optional(id) && optarg == NULL && next_is_a_word)
        return argv[optind++]; /* getopt_long() reads optional values only after '=' */
    if (optarg == NULL)
        return "";
    if (optarg[0] == '\0')
        die("--%s: its value is empty", flags[id].name);
    if (strchr(word, '=') == NULL && strncmp(optarg, "--", 2) == 0)
        die("--%s: needs a value, but %s follows", flags[id].name, optarg);
    return optarg;
}

/* Fills values->text and ->given. Returns false if --help was among the flags. */
static bool read_words(FlagValues *values, int argc, char **argv, int stage)
{
    struct option list[FLAG_COUNT + 1];
    describe_for_getopt(list);
    opterr = 0;
    optind = 1;
    while (optind < argc) {
        const char *word = argv[optind];
        int found = getopt_long(argc, argv, "+:", list, NULL);
        if (found == -1)
            refuse_word(optind < argc ? argv[optind] : word);
        bool failed = found == '?' || found == ':';
        int number = (failed ? optopt : found) - FLAG_BASE;
        if (number < 0 || !is_spelled_out(word, flags[number].name))
            refuse_word(word);
        const Flag *flag = &flags[number];
        if (found == '?')
            die("--%s: takes no value", flag->name);
        if (stage < flag->stage)
            die("--%s: stage %d (%s) has no %s: take %s", flag->name, stage, stage_name(stage), flag->feature,
                stage_directory(flag->stage));
        if (found == ':')
            die("--%s: needs a value", flag->name);
        if (number == FLAG_HELP)
            return false;
        values->text[number] = value_of((FlagId)number, word, argc, argv);
        values->given[number] = true;
    }
    return true;
}

/* ---- the text of a flag as a number, or as one of its choices ---- */

/* strtol() and strtod() would skip spaces, and strtod() reads "nan" and "0x10" as well: a decimal number begins with a
 * digit, sign or point, and has no x. */
static bool looks_like_number(const char *text)
{
    const char *start = text + (*text == '-' || *text == '+');
    const char *digit = start + (*start == '.');
    return isdigit((unsigned char)*digit) && start[1] != 'x' && start[1] != 'X';
}

/* Reads a whole number that ends at `terminator`; returns false if there is none within the range. */
static bool read_whole(const Flag *flag, const char *text, char terminator, long *number, const char **rest)
{
    char *end = NULL;
    errno = 0;
    *number = strtol(text, &end, 10);
    *rest = end;
    return looks_like_number(text) && errno == 0 && *end == terminator && (double)*number >= flag->low &&
           (double)*number <= flag->high;
}

static bool read_real(const Flag *flag, const char *text, char terminator, double *number, const char **rest)
{
    char *end = NULL;
    *number = strtod(text, &end);
    *rest = end;
    return looks_like_number(text) && isfinite(*number) && *end == terminator && *number >= flag->low &&
           *number <= flag->high;
}

/* This function and the next ones die() if the text is not a value in the flag's range, and say what would be right.
 * 0 if the flag has no value. */
static long whole_number(const FlagValues *values, FlagId id)
{
    const Flag *flag = &flags[id];
    const char *text = values->text[id], *rest = NULL;
    long number = 0;
    if (text != NULL && !read_whole(flag, text, '\0', &number, &rest))
        die("--%s: '%s' is not a whole number from %.0f to %.0f", flag->name, text, flag->low, flag->high);
    return number;
}

static double real_number(const FlagValues *values, FlagId id)
{
    const Flag *flag = &flags[id];
    const char *text = values->text[id], *rest = NULL;
    double number = 0;
    if (text != NULL && !read_real(flag, text, '\0', &number, &rest))
        die("--%s: '%s' is not a number from %g to %g", flag->name, text, flag->low, flag->high);
    return number;
}

/* Numbers with commas between them, at most `room`. Returns how many there are: 0 if the flag has no value. */
static int whole_number_list(const FlagValues *values, FlagId id, int64_t *numbers, int room)
{
    const Flag *flag = &flags[id];
    const char *text = values->text[id], *rest = NULL;
    int count = 0;
    while (text != NULL) {
        long number = 0;
        bool more = read_whole(flag, text, ',', &number, &rest);
        if (count == room || (!more && !read_whole(flag, text, '\0', &number, &rest)))
            die("--%s: '%s' is not %s: up to %d whole numbers from %.0f to %.0f with commas between them", flag->name,
                values->text[id], flag->argument, room, flag->low, flag->high);
        numbers[count++] = number;
        text = more ? rest + 1 : NULL;
    }
    return count;
}

static void real_number_pair(const FlagValues *values, FlagId id, double *first, double *second)
{
    const Flag *flag = &flags[id];
    const char *text = values->text[id], *rest = NULL;
    if (!read_real(flag, text, ',', first, &rest) || !read_real(flag, rest + 1, '\0', second, &rest))
        die("--%s: '%s' is not %s: two numbers from %g to %g with a comma between them", flag->name, text,
            flag->argument, flag->low, flag->high);
}

/* True: the flag's value is the word "auto". False: it is a number. */
static bool number_is_auto(const FlagValues *values, FlagId id, double *number)
{
    const Flag *flag = &flags[id];
    const char *text = values->text[id], *rest = NULL;
    bool is_auto = strcmp(text, "auto") == 0;
    if (!is_auto && !read_real(flag, text, '\0', number, &rest))
        die("--%s: '%s' is not a number from %g to %g, nor auto", flag->name, text, flag->low, flag->high);
    return is_auto;
}

static const Choice *choice(const FlagValues *values, FlagId id)
{
    char list[128] = "";
    for (const Choice *one = flags[id].choices; one->name != NULL; one++) {
        if (strcmp(one->name, values->text[id]) == 0)
            return one;
        strncat(list, list[0] != '\0' ? ", " : "", sizeof list - strlen(list) - 1);
        strncat(list, one->name, sizeof list - strlen(list) - 1);
    }
    die("--%s: '%s' is unknown; the choices are: %s", flags[id].name, values->text[id], list);
}

/* ---- defaults, and all values ---- */

/* Gives every flag that was not typed its default. Many depend on the model, some on the optimizer. */
static void fill_defaults(FlagValues *values)
{
    for (int id = 0; id < FLAG_COUNT; id++)
        if (!values->given[id])
            values->text[id] = flags[id].default_value;
    if (!values->given[FLAG_LOSS_SCALE] && choice(values, FLAG_GRAD_DTYPE)->value == DTYPE_F16)
        values->text[FLAG_LOSS_SCALE] = LOSS_SCALE_FP16_ON_THE_WIRE;
    if (!values->given[FLAG_BACKEND])
        values->text[FLAG_BACKEND] = gpu_has_nccl() && !values->given[FLAG_SHARE_GPU] ? "nccl" : "mpi";

    int model = choice(values, FLAG_MODEL)->value;
    if (!values->given[FLAG_OPTIMIZER])
        values->text[FLAG_OPTIMIZER] = flag_model_default(FLAG_OPTIMIZER, model, OPTIMIZER_SGD);
    OptimizerKind optimizer = (OptimizerKind)choice(values, FLAG_OPTIMIZER)->value;
    bool length_given = values->given[FLAG_STEPS] || values->given[FLAG_EPOCHS];
    for (int id = 0; id < FLAG_COUNT; id++) {
        if (values->text[id] == NULL && !(length_given && (id == FLAG_STEPS || id == FLAG_EPOCHS)))
            values->text[id] = flag_model_default((FlagId)id, model, optimizer);
    }
}

/* The model's default shape, changed by the sizes that were typed. */
static void fill_model(Options *options, const FlagValues *values)
{
    const Choice *model = choice(values, FLAG_MODEL);
    CHECK(model_spec_by_name(model->name, &options->model), "nn/ has no model named %s", model->name);
    options->dataset = model_defaults[model->value].dataset;
    options->data = values->text[FLAG_DATA];
    options->mask_tokens = (float)real_number(values, FLAG_MASK_TOKENS);

    if (values->given[FLAG_HIDDEN]) {
        int64_t hidden[2];
        if (whole_number_list(values, FLAG_HIDDEN, hidden, 2) < 2)
            die("--hidden: '%s' is one number; give two, with a comma between them", values->text[FLAG_HIDDEN]);
        options->model.mlp.hidden1 = (int)hidden[0];
        options->model.mlp.hidden2 = (int)hidden[1];
    }
    options->model.mlp.activation = (Activation)choice(values, FLAG_ACTIVATION)->value;
    if (values->given[FLAG_LAYERS])
        options->model.gpt.layers = (int)whole_number(values, FLAG_LAYERS);
    if (values->given[FLAG_HEADS])
        options->model.gpt.heads = (int)whole_number(values, FLAG_HEADS);
    if (values->given[FLAG_WIDTH])
        options->model.gpt.width = (int)whole_number(values, FLAG_WIDTH);
    if (values->given[FLAG_CONTEXT])
        options->model.gpt.context = (int)whole_number(values, FLAG_CONTEXT);
}

static void fill_training(Options *options, const FlagValues *values)
{
    options->steps = whole_number(values, FLAG_STEPS);
    options->epochs = whole_number(values, FLAG_EPOCHS);
    options->batch_size = whole_number(values, FLAG_BATCH_SIZE);
    options->accumulate = (int)whole_number(values, FLAG_ACCUMULATE);
    options->seed = (uint64_t)whole_number(values, FLAG_SEED);
    options->drop_last = values->given[FLAG_DROP_LAST];
    options->rank_samples_count = whole_number_list(values, FLAG_RANK_SAMPLES, options->rank_samples,
                                                    OPTIONS_MAX_RANKS);
    if (values->given[FLAG_JOIN]) {
        bool bare = values->text[FLAG_JOIN][0] == '\0';
        options->join = bare ? JOIN_ACTUAL : (JoinMode)choice(values, FLAG_JOIN)->value;
    }
    options->same_seed = values->given[FLAG_SAME_INIT];

    options->lr = (float)real_number(values, FLAG_LR);
    options->lr_schedule = (LrSchedule)choice(values, FLAG_LR_SCHEDULE)->value;
    options->warmup_steps = whole_number(values, FLAG_WARMUP_STEPS);
    options->warmup_given = values->given[FLAG_WARMUP_STEPS];
    options->optimizer.kind = (OptimizerKind)choice(values, FLAG_OPTIMIZER)->value;
    options->optimizer.momentum = (float)real_number(values, FLAG_MOMENTUM);
    options->optimizer.beta1 = 0.9f;
    options->optimizer.beta2 = 0.95f;
    options->optimizer.eps = 1e-8f;
    options->optimizer.weight_decay = (float)real_number(values, FLAG_WEIGHT_DECAY);
    options->clip_grad_norm = real_number(values, FLAG_CLIP_GRAD_NORM);
    options->precision = (DType)choice(values, FLAG_PRECISION)->value;
    options->tf32 = values->given[FLAG_TF32];
    options->initial_loss_scale = (float)real_number(values, FLAG_LOSS_SCALE);
}

static void fill_communication(Options *options, const FlagValues *values)
{
    const double mebibyte = 1024 * 1024;
    options->share_gpu = values->given[FLAG_SHARE_GPU];
    options->threads = (int)whole_number(values, FLAG_THREADS);
    options->backend = choice(values, FLAG_BACKEND)->name;
    options->group.algorithm = (AllReduceAlgorithm)choice(values, FLAG_ALLREDUCE)->value;
    if (options->group.algorithm == ALLREDUCE_AUTO && strcmp(device_name(), "cpu") != 0)
        options->group.algorithm = ALLREDUCE_MPI; /* ranks cannot share a GPU's memory */
    options->group.timeout = real_number(values, FLAG_TIMEOUT);
    options->group.debug_collectives = values->given[FLAG_DEBUG_COLLECTIVES];
    options->on_nan = (OnNan)choice(values, FLAG_ON_NAN)->value;
    if (values->given[FLAG_WIRE]) {
        double microseconds = 0;
        real_number_pair(values, FLAG_WIRE, &options->group.wire_gbps, &microseconds);
        options->group.wire_latency = microseconds * 1e-6;
    }
    double cap = 25, first_cap = 1; /* PyTorch's, in MiB */
    bool auto_cap = number_is_auto(values, FLAG_BUCKET_CAP_MB, &cap);
    bool auto_first = number_is_auto(values, FLAG_FIRST_BUCKET_MB, &first_cap);
    options->auto_bucket_caps = auto_cap && auto_first;
    options->ddp.bucket_cap_bytes = (size_t)(cap * mebibyte);
    options->ddp.first_bucket_cap_bytes = (size_t)(first_cap * mebibyte);
    options->ddp.rebuild_buckets = values->given[FLAG_REBUILD_BUCKETS];
    options->ddp.find_unused_parameters = values->given[FLAG_FIND_UNUSED_PARAMETERS];
    options->ddp.grad_dtype = (DType)choice(values, FLAG_GRAD_DTYPE)->value;
    options->ddp.zero = choice(values, FLAG_ZERO)->value;
    options->ddp.bucket_per_layer = options->auto_bucket_caps; /* what "auto" means in stage 5 */
}

static void fill_checks_and_files(Options *options, const FlagValues *values)
{
    if (values->given[FLAG_VERIFY]) {
        bool bare = values->text[FLAG_VERIFY][0] == '\0';
        options->verify = bare ? VERIFY_WHOLE_BATCH : (VerifyMode)choice(values, FLAG_VERIFY)->value;
    }
    options->check_every = whole_number(values, FLAG_CHECK_EVERY);
    options->eval_samples = whole_number(values, FLAG_EVAL_SAMPLES);
    options->save = values->text[FLAG_SAVE];
    options->save_every = whole_number(values, FLAG_SAVE_EVERY);
    options->resume = values->text[FLAG_RESUME];
    options->generate = whole_number(values, FLAG_GENERATE);
    options->trace = values->text[FLAG_TRACE];
    options->json = values->text[FLAG_JSON];
    options->flight_recorder = values->text[FLAG_FLIGHT_RECORDER];
}

const int64_t *options_rank_samples(const Options *options)
{
    return options->rank_samples_count > 0 ? options->rank_samples : NULL;
}

uint32_t options_rank_samples_fingerprint(const Options *options)
{
    size_t bytes = (size_t)options->rank_samples_count * sizeof options->rank_samples[0];
    return bytes > 0 ? (uint32_t)(fnv1a(FNV1A_START, options->rank_samples, bytes) >> 32) : 0;
}

bool options_parse(Options *options, int argc, char **argv, int stage)
{
    FlagValues values = {0};
    memset(options, 0, sizeof *options);
    if (!read_words(&values, argc, argv, stage)) {
        if (job_rank() == 0)
            options_print_help(stage);
        return false;
    }
    fill_defaults(&values);
    fill_model(options, &values);
    fill_training(options, &values);
    fill_communication(options, &values);
    fill_checks_and_files(options, &values);
    for (int id = 0; id < FLAG_COUNT; id++)
        options->typed[id] = values.given[id] ? values.text[id] : NULL;
    options_check_flags(options, &values, stage);
    options_check_files(options);
    return true;
}
