/* modes.c: the table. */
#include "modes.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/rng.h"
#include "given.h"

/* ---- the table ---- */

enum { TYPE, MICRO_BATCHES, LEVEL, BUCKETS, UNUSED, REBUILT, FROZEN, TIED, SHUFFLED, ALGORITHM, FACTORS, MOST_VALUES = 6 };

/* A row of the table has a value of each factor. */
typedef struct Row {
    int value[FACTORS];
} Row;

/* BUCKETS: all in one, several parameters in each, two large ones, one each: 33, 65, more than a thousand, 40
 * of large ones. */
enum { SEVERAL = 1, SMALL_KINDS = 3, LARGE_PARAMETERS = 6 };
enum { LARGEST_WIDTH = 1500 }; /* more than 2^21 elements, and 8 MiB */
/* The width of a mode whose parameters lie side by side: so the length of a bucket tells what is in it. */
enum { WITHOUT_GAPS = 64 };
enum { IN_MEMORY = 1, OF_ANY_KIND = 2 }; /* ALGORITHM */
enum { ROWS_OF_THREE_RANKS = 3, ROWS_OF_MANY_RANKS = 1 };
static const int branches_of[] = {8, 14, 1, 32, 64, 1024, 39};

/* How many values each factor has for this stage and choice. */
static void count_values(int count[FACTORS], ModeChoice choice, int ranks)
{
    const int stage = LOCKSTEP_STAGE;
    const bool listens = stage >= 3, rebuilds = stage == 3 || stage == 4;
    count[TYPE] = choice.types && stage >= 4 ? 3 : 1;
    count[MICRO_BATCHES] = choice.micro_batches && stage >= 4 ? 2 : 1;
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

/* Micro-batches, types, unused parameters, and levels or rebuilt buckets meet in the same few lines of a stage: here
 * also three of them may only together be wrong. */
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
    const char *const buckets[] =
        {"all parameters in one bucket", "several parameters in a bucket", "2 large buckets",
         "33 buckets", "65 buckets", "1025 buckets", "40 buckets"};
    char level[24] = "";
    if (LOCKSTEP_STAGE == 5)
        snprintf(level, sizeof level, "--zero %d, ", mode->sharding.level);
    const char *groups = mode->sharding.shard_ranks == 2 ? "--shard-ranks 2, "
                         : mode->sharding.shard_ranks == 1 ? "--shard-ranks 1, " : "";
    snprintf(mode->title, sizeof mode->title, "%s%s%s%sgradients sent in %s, %d micro-batch(es)%s%s%s%s%s%s, %s", level,
             groups, LOCKSTEP_STAGE == 1 ? "" : buckets[row->value[BUCKETS]], LOCKSTEP_STAGE == 1 ? "" : ", ",
             mode->options.codec->name, mode->micro_batches, mode->unused ? ", unused parameters" : "",
             mode->options.static_graph ? ", a static graph" : "",
             mode->options.rebuild_buckets ? ", rebuilt buckets" : "",
             mode->frozen >= 0 ? ", a frozen parameter" : "", mode->tied ? ", a tied weight" : "",
             mode->shuffled ? ", another order on each rank" : "", all_reduce_name(mode->algorithm));
}

static bool is_large_and_plain(const Row *row)
{
    return branches_of[row->value[BUCKETS]] == 1 &&
           row->value[MICRO_BATCHES] + row->value[TYPE] + row->value[UNUSED] + row->value[ALGORITHM] == 0;
}

/* others_taken: how many rows of the table have had one of them; they are taken in turns. */
static AllReduceAlgorithm algorithm_of(const Row *row, int *others_taken)
{
    static const AllReduceAlgorithm others[] = {ALLREDUCE_MPI, ALLREDUCE_ROOT, ALLREDUCE_RING, ALLREDUCE_DOUBLING,
                                                ALLREDUCE_HIERARCHICAL};
    if (row->value[ALGORITHM] == OF_ANY_KIND)
        return others[LOCKSTEP_STAGE > 1 ? (*others_taken)++ % 5 : 0]; /* stage 1's starter has no more */
    return row->value[ALGORITHM] == IN_MEMORY ? ALLREDUCE_SHM : ALLREDUCE_ORDERED;
}

/* width: 0, or that of all weights. */
static Mode mode_of(const Row *row, int *others_taken, int width, uint64_t seed)
{
    const char *const types[] = {"fp32", "bf16", "fp16"};
    const int buckets = row->value[BUCKETS];
    const bool large = branches_of[buckets] == 1; /* two buckets, each of more elements than 16 bits can count */
    Mode mode = {.width = width > 0 ? width : large ? 260 : 6, .seed = seed,
                 .branches = branches_of[buckets],
                 .micro_batches = row->value[MICRO_BATCHES] == 0 ? 1 : large ? 7 : 3,
                 .algorithm = algorithm_of(row, others_taken)};
    const size_t bytes = (size_t)(mode.width * mode.width) * sizeof(float);
    const size_t all = (size_t)1 << 40; /* no int holds it */
    const size_t first = seed % 3 == 0 ? 0 : seed % 3 == 1 ? 2 * bytes : 5 * bytes; /* the others' is between them */
    const size_t first_cap[] = {all, first, 0};
    const size_t cap[] = {all, 7 * bytes / 2 + 12, 0}; /* some end between a branch's bias and its weight */
    const int caps = buckets < 2 ? buckets : 2;
    const bool several = mode.branches >= 8;
    mode.options = (DdpOptions){.first_bucket_cap_bytes = first_cap[caps], .bucket_cap_bytes = cap[caps],
                                .codec = codec_find(types[row->value[TYPE]]),
                                .find_unused_parameters = row->value[UNUSED] == 1,
                                .rebuild_buckets = row->value[REBUILT] == 1};
    mode.sharding.level = level_of(row);
    mode.not_finite = seed % 2 == 1 && mode.options.codec->dtype != DTYPE_F16;
    mode.biases = buckets == SEVERAL;
    mode.large = !mode.not_finite;
    mode.unused = row->value[UNUSED] == 1 && several;
    mode.tied = row->value[TIED] == 1 && several;
    mode.shuffled = row->value[SHUFFLED] == 1 && several;
    mode.frozen = row->value[FROZEN] == 1 && several ? fan_weight(&mode, (int)(seed % (uint64_t)mode.branches)) : -1;
    if (mode.frozen >= 0 && !mode.biases)
        mode.branches++; /* as many are trained */
    return mode;
}

/* What is no factor of the table. (Groups of ranks round once more, so that what is too large comes from other
 * ranks.) */
static void add_to_mode(Mode *mode, int group, int *modes_with_unused)
{
    mode->options.static_graph = mode->unused && (*modes_with_unused)++ % 3 == 1;
    mode->sharding.shard_ranks = group;
    if (group > 0 && mode->algorithm == ALLREDUCE_HIERARCHICAL)
        mode->algorithm = ALLREDUCE_RING; /* a group's sums are of two levels anyhow */
    mode->large = mode->large && (group == 0 || mode->options.codec->dtype == DTYPE_F32);
}

/* What is no number would hide what comes after it. */
static void give_later_steps(Mode *mode, int steps)
{
    mode->later = steps;
    mode->not_finite = mode->large = false;
}

/* Whether later steps show something, and take little time. */
static bool suits_later_steps(const Mode *mode, bool unused)
{
    return mode->branches >= 8 && mode->branches <= 32 && (!unused || (mode->unused && !mode->options.static_graph));
}

/* To all that suit, or to the last mode of several buckets, with unused parameters if some have them. */
static void choose_later_steps(Mode *modes, int count, bool all, int steps)
{
    int chosen = -1;
    for (int i = 0; i < count && all; i++)
        if (suits_later_steps(&modes[i], false))
            give_later_steps(&modes[i], steps);
    if (all)
        return;
    for (int unused = 1; unused >= 0 && chosen < 0; unused--)
        for (int i = 0; i < count; i++)
            chosen = suits_later_steps(&modes[i], unused) ? i : chosen;
    if (chosen >= 0)
        give_later_steps(&modes[chosen], steps);
}

/* Then it may have 2^20 elements. */
static void make_a_large_one_plain(Row *rows, int count)
{
    for (int i = 0; i < count; i++)
        if (branches_of[rows[i].value[BUCKETS]] == 1) {
            rows[i].value[TYPE] = rows[i].value[MICRO_BATCHES] = rows[i].value[UNUSED] = rows[i].value[ALGORITHM] = 0;
            return;
        }
}

int modes_table(Mode modes[MOST_MODES], ModeChoice choice, int ranks, int drawn)
{
    const int many = ranks > 2 && choice.many_buckets > 0 ? 1 : choice.many_buckets;
    int count[FACTORS], made = 0, modes_with_unused = 0, others_taken = 0;
    Row rows[MOST_MODES];
    Rng rng;
    count_values(count, choice, ranks);
    int total = cover_pairs(rows, count, ranks > 3   ? ROWS_OF_MANY_RANKS
                                         : ranks > 2 ? ROWS_OF_THREE_RANKS
                                                     : MOST_MODES - many - drawn);
    if (choice.large_one)
        make_a_large_one_plain(rows, total);
    rng_seed(&rng, given_seed());
    if (ranks > 2 && drawn > 1)
        drawn = 1;
    for (int i = 0; i < many + drawn; i++) {
        rows[total] = draw(&rng, count);
        if (i < many)
            rows[total].value[BUCKETS] = SMALL_KINDS + i;
        if (i == 0 && many + choice.width > 0) { /* a copy in 16 bits may keep an old step's gradients */
            rows[total].value[TYPE] = count[TYPE] > 1;
            rows[total].value[LEVEL] = count[LEVEL] > 1;
            rows[total].value[UNUSED] = count[UNUSED] > 1 && level_of(&rows[total]) < 3;
            rows[total].value[REBUILT] = count[REBUILT] > 1;
        }
        total++;
    }
    for (int i = 0, windows = 0; i < total && ranks > 2; i++) /* a window takes 50 to 150 ms if cores are fewer than ranks */
        if (rows[i].value[ALGORITHM] == IN_MEMORY && windows++ >= (ranks == 3))
            rows[i].value[ALGORITHM] = 0;
    bool has_without_gaps = choice.width > 0 || choice.events;
    bool has_largest = !choice.large_one || ranks > 2; /* one is enough: it takes as long as many others */
    for (int in_memory = 0; in_memory <= 1; in_memory++) /* a group that has once shared memory makes windows, slowly */
        for (int i = 0; i < total; i++) {
            if (choice.accumulates)
                rows[i].value[MICRO_BATCHES] = 1;
            if (choice.width > 0)
                rows[i].value[BUCKETS] = LARGE_PARAMETERS;
            else if (choice.several && rows[i].value[BUCKETS] < SMALL_KINDS)
                rows[i].value[BUCKETS] = SEVERAL;
            if (in_memory != (rows[i].value[ALGORITHM] == IN_MEMORY))
                continue;
            const bool largest = !has_largest && is_large_and_plain(&rows[i]);
            has_largest = has_largest || largest;
            const bool without_gaps = !has_without_gaps && rows[i].value[BUCKETS] == SEVERAL;
            has_without_gaps = has_without_gaps || without_gaps;
            const int width = largest ? LARGEST_WIDTH : without_gaps ? WITHOUT_GAPS : choice.width;
            modes[made] = mode_of(&rows[i], &others_taken, width, rng_bits(&rng));
            /* Ranks that divide the shards. A group of one divides nothing, but there are other groups. */
            const bool groups = choice.groups && i < total - drawn;
            add_to_mode(&modes[made], groups && ranks == 4 ? 2 : groups && ranks == 2 && i % 4 == 3 ? 1 : 0,
                        &modes_with_unused);
            set_title(&modes[made++], &rows[i]);
        }
    if (ranks <= 2)
        choose_later_steps(modes, total, choice.grows, choice.grows ? 24 : choice.events ? 30 : 110);
    return total;
}
