/* modes.c: the table, and the model. */
#include "modes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/ops.h"
#include "base/check.h"
#include "base/rng.h"
#include "device/device.h"
#include "given.h"

/* ---- the table ---- */

enum { TYPE, MICRO_BATCHES, LEVEL, BUCKETS, UNUSED, REBUILT, FROZEN, TIED, SHUFFLED, ALGORITHM, FACTORS, MOST_VALUES = 6 };

/* A row of the table has a value of each factor. */
typedef struct Row {
    int value[FACTORS];
} Row;

/* BUCKETS: all in one, several parameters in each, two large ones, one each: 33, 65, 130, 24 of large ones. */
enum { SEVERAL = 1, SMALL_KINDS = 3, MANY = 3, LARGE_PARAMETERS = 6 };
enum { IN_MEMORY = 1 }; /* ALGORITHM */
enum { ROWS_OF_THREE_RANKS = 3, ROWS_OF_MANY_RANKS = 1 };
static const int branches_of[] = {8, 14, 1, 32, 64, 129, 23};

/* How many values each factor has for this stage and choice. */
static void count_values(int count[FACTORS], ModeChoice choice, int ranks)
{
    const int stage = LOCKSTEP_STAGE;
    const bool listens = stage >= 3, rebuilds = stage == 3 || stage == 4;
    count[TYPE] = choice.types && stage >= 4 ? 3 : 1;
    count[MICRO_BATCHES] = choice.micro_batches && listens ? 2 : 1;
    count[LEVEL] = stage == 5 && given_level() == 0 ? 3 : 1;
    count[BUCKETS] = choice.width > 0 || choice.several ? 1 : SMALL_KINDS;
    count[UNUSED] = choice.unused && listens ? 2 : 1;
    count[REBUILT] = choice.rebuilt && rebuilds ? 2 : 1;
    count[FROZEN] = count[TIED] = choice.width > 0 ? 1 : 2;
    count[SHUFFLED] = listens && ranks > 1 && choice.width == 0 ? 2 : 1;
    count[ALGORITHM] = choice.width > 0 ? 1 : choice.ordered ? 2 : 3;
}

static int level_of(const Row *row)
{
    return given_level() > 0 ? given_level() : row->value[LEVEL] + 1;
}

static Row draw(Rng *rng, const int count[FACTORS])
{
    Row row;
    for (int f = 0; f < FACTORS; f++)
        row.value[f] = (int)rng_below(rng, (uint64_t)count[f]);
    if (LOCKSTEP_STAGE == 5 && level_of(&row) == 3)
        row.value[UNUSED] = row.value[SHUFFLED] = 0; /* level 3 refuses both */
    return row;
}

static bool covered[FACTORS][MOST_VALUES][FACTORS][MOST_VALUES];

/* Micro-batches, types, unused parameters, and levels or rebuilt buckets meet in the same few lines of a stage: here also
 * three of them may only together be wrong. */
static const int close_factors[] = {TYPE, MICRO_BATCHES, UNUSED, LOCKSTEP_STAGE == 5 ? LEVEL : REBUILT};
static bool covered_triples[4][MOST_VALUES][MOST_VALUES][MOST_VALUES]; /* by the one of the four that is left out */

static int new_triples(const Row *row, bool take)
{
    int found = 0;
    for (int out = 0; out < 4; out++) {
        int v[3], count = 0;
        for (int i = 0; i < 4; i++)
            if (i != out)
                v[count++] = row->value[close_factors[i]];
        bool *known = &covered_triples[out][v[0]][v[1]][v[2]];
        found += !*known;
        *known = *known || take;
    }
    return found;
}

/* How many pairs of values (and triples of some) this row has that no earlier row has; `take`: from now on it is an
 * earlier row. */
static int new_pairs(const Row *row, bool take)
{
    int found = new_triples(row, take);
    for (int f = 0; f < FACTORS; f++)
        for (int g = 0; g < f; g++) {
            bool *known = &covered[f][row->value[f]][g][row->value[g]];
            found += !*known;
            *known = *known || take;
        }
    return found;
}

/* Rows are drawn, and the one of 50 with the most new pairs is taken, until no new pair is found.
 * Source: Cohen et al., 1997 (AETG). */
static int cover_pairs(Row rows[MOST_MODES], const int count[FACTORS], int most)
{
    Rng rng;
    int rows_taken = 0;
    rng_seed(&rng, 1);
    memset(covered, 0, sizeof covered);
    memset(covered_triples, 0, sizeof covered_triples);
    while (rows_taken < most) {
        Row best = draw(&rng, count);
        for (int i = 0; i < 50; i++) {
            const Row other = draw(&rng, count);
            if (new_pairs(&other, false) > new_pairs(&best, false))
                best = other;
        }
        if (new_pairs(&best, true) == 0)
            break;
        rows[rows_taken++] = best;
    }
    return rows_taken;
}

static void set_title(Mode *mode, const Row *row)
{
    const char *const types[] = {"float32", "bf16", "fp16"}, *const buckets[] =
        {"all parameters in one bucket", "several parameters in a bucket", "2 large buckets",
         "33 buckets", "65 buckets", "130 buckets", "24 buckets"};
    char level[24] = "";
    if (LOCKSTEP_STAGE == 5)
        snprintf(level, sizeof level, "--zero %d, ", mode->options.zero);
    snprintf(mode->title, sizeof mode->title, "%s%s%sgradients sent in %s, %d micro-batch(es)%s%s%s%s%s, %s", level,
             LOCKSTEP_STAGE == 1 ? "" : buckets[row->value[BUCKETS]], LOCKSTEP_STAGE == 1 ? "" : ", ",
             types[row->value[TYPE]], mode->micro_batches,
             mode->unused ? ", unused parameters" : "", mode->options.rebuild_buckets ? ", rebuilt buckets" : "",
             mode->frozen >= 0 ? ", a frozen parameter" : "", mode->tied ? ", a tied weight" : "",
             mode->shuffled ? ", another order on each rank" : "", all_reduce_name(mode->algorithm));
}

static Mode mode_of(const Row *row, int width, uint64_t seed)
{
    const char *const types[] = {"fp32", "bf16", "fp16"};
    const AllReduceAlgorithm algorithms[] = {ALLREDUCE_ORDERED, [IN_MEMORY] = ALLREDUCE_SHM, ALLREDUCE_MPI};
    const int buckets = row->value[BUCKETS];
    const bool large = branches_of[buckets] == 1; /* two buckets, each of more elements than 16 bits can count */
    const bool plain = row->value[MICRO_BATCHES] + row->value[TYPE] + row->value[UNUSED] == 0; /* with 2^20 elements */
    Mode mode = {.width = width > 0 ? width : !large ? 6 : plain ? 1040 : 300, .seed = seed,
                 .branches = branches_of[buckets],
                 .micro_batches = row->value[MICRO_BATCHES] == 0 ? 1 : large ? 7 : 3,
                 .algorithm = algorithms[row->value[ALGORITHM]]};
    const size_t bytes = (size_t)(mode.width * mode.width) * sizeof(float);
    const size_t all = (size_t)1 << 40; /* no int holds it */
    const bool long_first = seed % 2 == 0; /* the first bucket's cap may also be larger than the others' */
    const size_t first_cap[] = {all, long_first ? 5 * bytes : 2 * bytes, 0};
    const size_t cap[] = {all, 7 * bytes / 2 + 12, 0}; /* some end between a branch's bias and its weight */
    const int caps = buckets < 2 ? buckets : 2;
    const bool several = mode.branches >= 8;
    mode.options = (DdpOptions){.first_bucket_cap_bytes = first_cap[caps], .bucket_cap_bytes = cap[caps],
                                .codec = codec_find(types[row->value[TYPE]]), .zero = level_of(row),
                                .find_unused_parameters = row->value[UNUSED] == 1,
                                .rebuild_buckets = row->value[REBUILT] == 1};
    mode.not_finite = seed % 2 == 1 && mode.options.codec->dtype != DTYPE_F16;
    mode.biases = buckets == SEVERAL;
    mode.overflows = mode.options.codec->dtype == DTYPE_F16;
    mode.unused = row->value[UNUSED] == 1 && several;
    mode.tied = row->value[TIED] == 1 && several;
    mode.shuffled = row->value[SHUFFLED] == 1 && several;
    mode.frozen = row->value[FROZEN] == 1 && several ? fan_weight(&mode, (int)(seed % (uint64_t)mode.branches)) : -1;
    if (mode.frozen >= 0 && !mode.biases)
        mode.branches++; /* as many are trained */
    set_title(&mode, row);
    return mode;
}

/* What is no number would hide what comes after it. */
static void give_later_steps(Mode *mode)
{
    mode->later = 30;
    mode->not_finite = mode->overflows = false;
}

/* To the first and the last mode of several buckets. */
static void choose_later_steps(Mode *modes, int count)
{
    int first = 0, last = count - 1;
    while (first < last && (modes[first].branches < 8 || modes[first].algorithm == ALLREDUCE_MPI))
        first++;
    while (last > first && (modes[last].branches < 8 || modes[last].branches > 32 ||
                            modes[last].algorithm == ALLREDUCE_MPI))
        last--;
    give_later_steps(&modes[first]);
    give_later_steps(&modes[last]);
}

int modes_table(Mode modes[MOST_MODES], ModeChoice choice, int ranks, int drawn)
{
    const int many = !choice.many_buckets ? 0 : ranks > 2 ? 1 : MANY;
    int count[FACTORS], made = 0;
    Row rows[MOST_MODES];
    Rng rng;
    count_values(count, choice, ranks);
    int total = cover_pairs(rows, count, ranks > 3   ? ROWS_OF_MANY_RANKS
                                         : ranks > 2 ? ROWS_OF_THREE_RANKS
                                                     : MOST_MODES - many - drawn);
    rng_seed(&rng, given_seed());
    if (ranks > 2 && drawn > 1)
        drawn = 1;
    for (int i = 0; i < many + drawn; i++) {
        rows[total] = draw(&rng, count);
        if (i < many) /* all of them, or 33 alone */
            rows[total].value[BUCKETS] = SMALL_KINDS + i;
        if (i == 0 && many + choice.width > 0) { /* a copy in 16 bits may keep an old step's gradients */
            rows[total].value[TYPE] = count[TYPE] > 1;
            rows[total].value[LEVEL] = count[LEVEL] > 1;
            rows[total].value[UNUSED] = count[UNUSED] > 1 && level_of(&rows[total]) < 3;
        }
        total++;
    }
    for (int i = 0, windows = 0; i < total && ranks > 2; i++) /* a window takes 50 to 150 ms if cores are fewer than ranks */
        if (rows[i].value[ALGORITHM] == IN_MEMORY && windows++ >= (ranks == 3))
            rows[i].value[ALGORITHM] = 0;
    for (int in_memory = 0; in_memory <= 1; in_memory++) /* a group that has once shared memory makes windows, slowly */
        for (int i = 0; i < total; i++) {
            if (choice.accumulates)
                rows[i].value[MICRO_BATCHES] = 1;
            if (choice.width > 0)
                rows[i].value[BUCKETS] = LARGE_PARAMETERS;
            else if (choice.several && rows[i].value[BUCKETS] < SMALL_KINDS)
                rows[i].value[BUCKETS] = SEVERAL;
            if (in_memory == (rows[i].value[ALGORITHM] == IN_MEMORY))
                modes[made++] = mode_of(&rows[i], choice.width, rng_bits(&rng));
        }
    if (ranks <= 2)
        choose_later_steps(modes, total);
    return total;
}

/* ---- the model ---- */

int fan_weight(const Mode *mode, int branch)
{
    return 1 + branch * (mode->biases ? 2 : 1);
}

/* A bias has four dimensions, so that its size is not the product of the first ones. */
static void add_parameter(Fan *fan, const char *kind, int branch, const Mode *mode, Rng *rng)
{
    const bool is_bias = strcmp(kind, "bias") == 0;
    const int64_t shape[] = {is_bias ? 1 : mode->width, is_bias ? 1 : mode->width, is_bias ? 1 : mode->width, mode->width};
    char name[32] = "trunk.weight";
    if (branch >= 0)
        snprintf(name, sizeof name, "branch%d.%s", branch, kind);
    Parameter *parameter = parameters_add(&fan->parameters, name, is_bias ? 4 : 2, shape);
    parameter->tensor.requires_grad = parameter->index != mode->frozen;
    init_uniform(parameter, rng, sqrtf(3) / sqrtf((float)(mode->width * (branch >= 0 ? mode->branches : 1))));
}

void fan_create(Fan *fan, const Mode *mode, uint64_t seed)
{
    Rng rng;
    rng_seed(&rng, seed);
    *fan = (Fan){.tape = {.precision = DTYPE_F32}};
    add_parameter(fan, "weight", -1, mode, &rng);
    for (int k = 0; k < mode->branches; k++) {
        add_parameter(fan, "weight", k, mode, &rng);
        if (mode->biases)
            add_parameter(fan, "bias", k, mode, &rng);
    }
}

void fan_free(Fan *fan)
{
    tape_free(&fan->tape);
    parameters_free(&fan->parameters);
}

/* One branch in six is left out: by all ranks, by every other rank, or by every other rank in some micro-batches. */
static bool left_out(const Mode *mode, int branch, int rank, int step, int micro_batch)
{
    if (!mode->unused || (branch + step + (int)(mode->seed % 6)) % 6 != 0)
        return false;
    if (mode->options.rebuild_buckets && step == 0)
        return false; /* so that the order of readiness, by which buckets are rebuilt, is that of events */
    switch (branch / 6 % 3) {
    case 0: return true;
    case 1: return (rank + branch) % 2 == 0;
    default: return (rank + micro_batch) % 2 == 0;
    }
}

/* Branches in the order in which this rank records them. */
static void record_order(const Mode *mode, int rank, int step, int *order)
{
    Rng rng;
    for (int i = 0; i < mode->branches; i++)
        order[i] = i;
    if (!mode->shuffled)
        return;
    rng_seed(&rng, mode->seed + 100 * (uint64_t)step + (uint64_t)rank);
    for (int i = mode->branches - 1; i > 0; i--) {
        const int other = (int)rng_below(&rng, (uint64_t)i + 1), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
}

static Tensor *random_rows(Tape *tape, const Mode *mode, Rng *rng)
{
    Tensor *rows = tape_tensor(tape, 2, (int64_t[]){MODE_SAMPLES, mode->width}, false);
    for (int i = 0; i < MODE_SAMPLES * mode->width; i++)
        ((float *)rows->data)[i] = rng_normal(rng);
    return rows;
}

Tensor *fan_loss(Fan *fan, const Mode *mode, int rank, int step, int micro_batch)
{
    Tape *tape = &fan->tape;
    Tensor **outputs = alloc_or_fault((size_t)mode->branches * sizeof *outputs), *prediction;
    Parameter **items = fan->parameters.items;
    int *order = alloc_or_fault((size_t)mode->branches * sizeof *order);
    Rng rng;
    rng_seed(&rng, mode->seed + 1000 * (uint64_t)step + 10 * (uint64_t)rank + (uint64_t)micro_batch);
    Tensor *inputs = random_rows(tape, mode, &rng), *targets = random_rows(tape, mode, &rng);
    for (int i = 0; i < MODE_SAMPLES * mode->width && mode->overflows && step == 2; i++)
        ((float *)targets->data)[i] *= 2e5f;
    if (mode->not_finite && rank == 0 && step == 2 && micro_batch + 1 == mode->micro_batches)
        ((float *)targets->data)[0] = mode->seed % 4 == 1 ? NAN : INFINITY;
    Tensor *h = op_linear(tape, inputs, &items[0]->tensor, NULL);
    record_order(mode, rank, step, order);
    for (int i = 0; i < mode->branches; i++) {
        const int k = order[i];
        Tensor *x = h;
        if (left_out(mode, k, rank, step, micro_batch))
            continue;
        if (mode->tied && k == mode->branches / 2)
            x = op_linear(tape, x, &items[fan_weight(mode, k + 1)]->tensor, NULL);
        const int weight = fan_weight(mode, k);
        outputs[k] = op_linear(tape, x, &items[weight]->tensor, mode->biases ? &items[weight + 1]->tensor : NULL);
    }
    prediction = h;
    for (int k = 0; k < mode->branches; k++) /* added in one order on all ranks, so that the rounding is the same */
        if (outputs[k] != NULL)
            prediction = op_add(tape, prediction, outputs[k]);
    free(outputs);
    free(order);
    return op_mse(tape, prediction, targets->data);
}

bool fan_uses(const Mode *mode, int ranks, int step, int parameter)
{
    const int branch = (parameter - 1) / (mode->biases ? 2 : 1);
    const bool is_weight = parameter == fan_weight(mode, branch);
    bool used = parameter == 0 || parameter == mode->frozen;
    for (int i = 0; i < ranks * mode->micro_batches && !used; i++) {
        const int rank = i / mode->micro_batches, k = i % mode->micro_batches;
        used = !left_out(mode, branch, rank, step, k) ||
               (mode->tied && is_weight && branch == mode->branches / 2 + 1 && !left_out(mode, branch - 1, rank, step, k));
    }
    return used;
}

/* ---- what is expected ---- */

void fan_own_sum(Fan *fan, const Mode *mode, int rank, int step, int last)
{
    parameters_zero_gradients(&fan->parameters);
    for (int k = 0; k <= last; k++) {
        tape_begin(&fan->tape, true);
        tape_backward(&fan->tape, fan_loss(fan, mode, rank, step, k), 1);
    }
}

static void round_to(DType dtype, float *values, int64_t count)
{
    if (dtype == DTYPE_F32)
        return;
    uint16_t *half = alloc_or_fault((size_t)count * sizeof *half);
    device_to_half(half, values, dtype, count);
    device_from_half(values, half, dtype, count);
    free(half);
}

void fan_expected(Fan *fan, const Mode *mode, int ranks, int step, float **sum, float **size)
{
    for (int rank = 0; rank < ranks; rank++) {
        fan_own_sum(fan, mode, rank, step, mode->micro_batches - 1);
        for (int i = 0; i < fan->parameters.count; i++) {
            const int64_t count = tensor_count(&fan->parameters.items[i]->tensor);
            float *own = fan->parameters.items[i]->tensor.grad;
            if (own == NULL)
                continue;
            for (int64_t k = 0; k < count; k++)
                size[i][k] += fabsf(own[k]);
            round_to(mode->options.codec->dtype, own, count);
            device_accumulate(sum[i], own, count);
        }
    }
    for (int i = 0; i < fan->parameters.count; i++)
        round_to(mode->options.codec->dtype, sum[i], tensor_count(&fan->parameters.items[i]->tensor));
}
