/* gradient_suspects.c: the comparison, and the line-up. */
#include "training_pair.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "expect.h"
#include "given.h"

/* The contributions of every rank's micro-batches to one parameter's gradient. */
typedef struct Shares {
    int ranks, micro_batches, own_rank;
    int64_t elements;
    double gradient_scale; /* the factor in ddp.c: 1 / (terms of the whole batch * loss scale) */
    double *terms;    /* (ranks, micro_batches): samples or tokens in the share's summed loss; owned */
    float **gradient; /* (ranks, micro_batches): of that sum; owned */
} Shares;

static void shares_compute(Shares *shares, Pair *pair, long step, int parameter)
{
    const Tensor *tensor = &pair->whole.model.parameters.items[parameter]->tensor;
    *shares = (Shares){.ranks = pg_world_size(pair->pg), .micro_batches = pair->options.accumulate,
                       .own_rank = pg_rank(pair->pg), .elements = tensor_count(tensor),
                       .gradient_scale = 1 / ((double)pair_terms(pair, step) * (double)pair->whole.scaler.scale)};
    int count = shares->ranks * shares->micro_batches;
    shares->terms = alloc_or_fault((size_t)count * sizeof *shares->terms);
    shares->gradient = alloc_or_fault((size_t)count * sizeof *shares->gradient);
    size_t bytes = (size_t)shares->elements * sizeof(float);
    for (int i = 0; i < count; i++) {
        shares->terms[i] = (double)pair_share(pair, step, i / shares->micro_batches, i % shares->micro_batches);
        shares->gradient[i] = memcpy(alloc_or_fault(bytes), tensor->grad, bytes);
    }
}

static void shares_free(Shares *shares)
{
    for (int i = 0; i < shares->ranks * shares->micro_batches; i++)
        free(shares->gradient[i]);
    free(shares->gradient);
    free(shares->terms);
}

/* ---- suspects: the weight of a rank's micro-batch k ---- */

static double every_share(const Shares *shares, int rank, int k)
{
    return 1;
}

static double own_rank_only(const Shares *shares, int rank, int k)
{
    return rank == shares->own_rank;
}

static double rank_0_only(const Shares *shares, int rank, int k)
{
    return rank == 0;
}

static double mean_of_each_rank(const Shares *shares, int rank, int k)
{
    double terms = 0;
    for (int i = 0; i < shares->micro_batches; i++)
        terms += shares->terms[rank * shares->micro_batches + i];
    return terms > 0 ? 1 / terms : 0;
}

static double last_micro_batch_only(const Shares *shares, int rank, int k)
{
    return k + 1 == shares->micro_batches;
}

/* The sum is divided at once; later micro-batches are added unscaled. */
static double first_micro_batch_averaged(const Shares *shares, int rank, int k)
{
    return k == 0 ? shares->gradient_scale : rank == shares->own_rank;
}

/* The sums of earlier micro-batches go elsewhere, but what accumulates on the rank is multiplied each time. */
static double scaled_again_and_again(const Shares *shares, int rank, int k)
{
    return pow(shares->gradient_scale, shares->micro_batches - 1 - k);
}

/* In place, so that each later all-reduce multiplies the earlier sum by the number of ranks. */
static double summed_again_and_again(const Shares *shares, int rank, int k)
{
    return pow(shares->ranks, shares->micro_batches - 1 - k);
}

/* The same, and also divided each time. */
static double averaged_again_and_again(const Shares *shares, int rank, int k)
{
    return pow(shares->ranks * shares->gradient_scale, shares->micro_batches - 1 - k);
}

typedef struct Suspect {
    double (*weight)(const Shares *shares, int rank, int k); /* NULL: the largest share instead of a sum */
    const char *is; /* "the gradient is ..." */
} Suspect;

#if LOCKSTEP_STAGE == 5
#define SUM_OF_RANKS "reduce-scatter"
#else
#define SUM_OF_RANKS "all-reduce"
#endif
#if LOCKSTEP_STAGE == 1
#define FORGOTTEN ""
#elif LOCKSTEP_STAGE == 2
#define FORGOTTEN " (its bucket was forgotten, the last, partial one perhaps)"
#else
#define FORGOTTEN " (its bucket was forgotten, the last, partial one perhaps; or its work_wait() is missing)"
#endif
static const char left_out[] = "this rank's own gradient, as backward left it, never summed over the ranks: its "
                               SUM_OF_RANKS " is missing" FORGOTTEN;
static const char not_scaled[] = "summed over the ranks, but not multiplied by gradient_scale, as others were: its "
                                 "parameter or bucket was left out there, the last, partial one perhaps";
/* On one rank the sum over all ranks is this rank's own gradient. */
static const char untouched_alone[] = "what backward left: its all-reduce is missing, or it is not multiplied by "
                                      "gradient_scale, as others were: its parameter or bucket was forgotten, the "
                                      "last, partial one perhaps (a run on two ranks shows which)";

/* The first one is correct, up to a factor. */
static const Suspect suspects[] = {
    {every_share, "the sum over all ranks"},
    {own_rank_only, left_out},
    {rank_0_only, "rank 0's gradient alone: it was broadcast, not reduced"},
    {mean_of_each_rank, "a mean of per-rank means: each rank divided by its OWN number of samples. The batch is uneven "
                        "here; divide the sum by the GLOBAL number"},
    {last_micro_batch_only, "that of the last micro-batch alone: what had accumulated before it is lost"},
    {scaled_again_and_again, "multiplied by gradient_scale after EVERY micro-batch: gradients are sums until the end "
                             "of the step (stage 4: no_sync is for all micro-batches but the LAST)"},
    {first_micro_batch_averaged, "summed over the ranks after the FIRST micro-batch only; the later ones stayed local: "
                                 "no_sync is for all micro-batches but the LAST"},
    {summed_again_and_again, "a sum over the ranks that was summed again: the sum of a micro-batch was left in the "
                             "gradient, and the next micro-batch's all-reduce counted it once per rank. Sum only after "
                             "the LAST micro-batch, or put the earlier sums elsewhere"},
    {averaged_again_and_again, "a mean over the ranks that was summed and divided again with the next micro-batch: "
                               "put the sums of all micro-batches but the LAST elsewhere (stage 3), or make none "
                               "(stage 4: no_sync is for all micro-batches but the LAST)"},
    {NULL, "the LARGEST of the ranks' gradients, not their sum: REDUCE_MAX instead of REDUCE_SUM"},
};
enum { SUSPECTS = sizeof suspects / sizeof *suspects };

static void weighted_sum(const Shares *shares, const Suspect *suspect, double *sum)
{
    memset(sum, 0, (size_t)shares->elements * sizeof *sum);
    for (int rank = 0; rank < shares->ranks; rank++)
        for (int k = 0; k < shares->micro_batches; k++) {
            double weight = suspect->weight(shares, rank, k);
            const float *gradient = shares->gradient[rank * shares->micro_batches + k];
            for (int64_t i = 0; i < shares->elements; i++)
                sum[i] += weight * (double)gradient[i];
        }
}

static void largest(const Shares *shares, double *result)
{
    for (int64_t i = 0; i < shares->elements; i++) {
        result[i] = -INFINITY;
        for (int rank = 0; rank < shares->ranks; rank++) {
            double sum = 0;
            for (int k = 0; k < shares->micro_batches; k++)
                sum += (double)shares->gradient[rank * shares->micro_batches + k][i];
            result[i] = fmax(result[i], sum);
        }
    }
}

/* Writes to *factor the f for which f * candidate is nearest to got; returns whether they are close enough to be no
 * coincidence. */
static bool fits(const float *got, const double *candidate, int64_t count, double *factor)
{
    double product = 0, square = 0, got_square = 0, error = 0;
    for (int64_t i = 0; i < count; i++) {
        product += (double)got[i] * candidate[i];
        square += candidate[i] * candidate[i];
        got_square += (double)got[i] * (double)got[i];
    }
    *factor = product / square;
    for (int64_t i = 0; i < count; i++)
        error += pow((double)got[i] - *factor * candidate[i], 2);
    return isfinite(*factor) && *factor > 0 && error < 1e-6 * got_square; /* 1e-3 of the norm */
}

/* ---- the factor ---- */

/* The mistake that makes every element `factor` times too large. */
static const char *name_factor(double factor, double terms, double wrong_divisor, double ranks, double micro_batches,
                               double loss_scale)
{
    const struct {
        double factor;
        const char *cause;
    } causes[] = {
        {terms, "the sum was not divided: times 1 / (number of samples in the global batch) is missing"},
        {1 / terms, "it was divided by the number of samples in the global batch twice"},
        {terms / wrong_divisor, "it was divided by the full batch, or by the samples that took part, but the other one "
                                "is right: --join divides by what took part, --join initial by the full batch"},
        {loss_scale, "the loss scale is still in it: gradients are unscaled before they are clipped and used"},
        {micro_batches, "one time per micro-batch: divide by the samples of ALL micro-batches of the step, not of one"},
        {1 / micro_batches, "it was divided by the number of micro-batches as well"},
        {ranks, "one time per rank: averaged over each rank's samples instead of the global batch, or summed twice"},
        {1 / ranks, "it was averaged over the ranks as well: sum / (global number of samples) IS the mean"},
    };
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
        if (fabs(factor / causes[i].factor - 1) < 1e-3 && fabs(causes[i].factor - 1) > 1e-3)
            return causes[i].cause;
    double times = -log(factor) / log(terms);
    if (times > 1.5 && fabs(times - round(times)) < 1e-3)
        return "it was multiplied by gradient_scale several times: once for each bucket or parameter, perhaps";
    return "a constant factor: look for a wrong divisor";
}

/* The part of a gradient that this rank has summed. In stage 5 other parts come from other ranks, which may have made
 * the same mistake: then each part is that rank's own gradient, for example. */
static Slice own_part(const Pair *pair, int parameter)
{
    const Partition *partition = ddp_partition(pair->ddp);
    const Tensor *tensor = &pair->whole.model.parameters.items[parameter]->tensor;
    return partition != NULL ? partition->slices[parameter] : (Slice){.count = tensor_count(tensor)};
}

/* Writes to text what is wrong with pair->ranks' gradient of the parameter; false if no suspect explains it. Overwrites
 * the gradients of pair->whole. all_are_wrong: all other gradients are wrong, too, so this parameter was not left out
 * alone. */
static bool suspects_explain(Pair *pair, long step, int parameter, bool all_are_wrong, char *text, size_t size)
{
    Shares shares;
    const Slice part = own_part(pair, parameter);
    const float *got = (const float *)pair->ranks->model.parameters.items[parameter]->tensor.grad + part.begin;
    double terms = (double)pair_terms(pair, step), factor = 0;
    shares_compute(&shares, pair, step, parameter);
    double *candidate = alloc_or_fault((size_t)shares.elements * sizeof *candidate);
    int found = -1;
    for (int s = 0; s < SUSPECTS && found < 0; s++) {
        if (suspects[s].weight == NULL)
            largest(&shares, candidate);
        else
            weighted_sum(&shares, &suspects[s], candidate);
        if (fits(got, candidate + part.begin, part.count, &factor))
            found = s;
    }
    bool divided = fabs(factor - 1) > 1e-3;
    factor /= shares.gradient_scale; /* relative to the correct gradient */
    if (found == 0 && !divided && !all_are_wrong)
        snprintf(text, size, "it is %s", shares.ranks == 1 ? untouched_alone : not_scaled);
    else if (found == 0)
        snprintf(text, size, "every element is %.5g times what it should be: %s", factor,
                 name_factor(factor, terms, pair_wrong_divisor(pair, step), shares.ranks, shares.micro_batches,
                             (double)pair->whole.scaler.scale));
    else if (found > 0)
        snprintf(text, size, "it is %s", suspects[found].is);
    free(candidate);
    shares_free(&shares);
    return found >= 0;
}

/* ---- the comparison ---- */

static bool is_close(const float *a, const float *b, int64_t count, double tolerance)
{
    CHECK(a != b, "a gradient is the memory with which the test compares it");
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= tolerance)) /* NaN is not close */
            return false;
    return true;
}

/* Recognises a count or an offset that is wrong: some elements at the beginning or the end are right, and at least a fifth
 * of the rest is wrong. */
static void explain_some_elements(const float *got, const float *want, int64_t count, double tolerance, char *text,
                                  size_t size)
{
    int64_t first = 0, last = count - 1, wrong = 0;
    while (first < count && is_close(got + first, want + first, 1, tolerance))
        first++;
    while (last > first && is_close(got + last, want + last, 1, tolerance))
        last--;
    for (int64_t i = first; i <= last; i++)
        wrong += !is_close(got + i, want + i, 1, tolerance);
    if (wrong <= (last - first + 1) / 5 || wrong == count)
        return;
    if (first > 1000 && last == count - 1 && last > first)
        snprintf(text, size, "the first %lld elements are right, and what is behind them is not: a count that is cut "
                 "off, for example by a 16-bit type (counts are size_t or int64_t)", (long long)first);
    else if (wrong <= count / 2)
        snprintf(text, size, "only elements %lld to %lld of %lld are wrong: a loop, a copy or a sum that begins or ends "
                 "at the wrong element", (long long)first, (long long)last, (long long)count);
}

/* Recognises a part of the sum that no rank of stage 5 has. */
static void explain_zeros(const float *got, const float *want, int64_t count, double tolerance, char *text, size_t size)
{
    int64_t wrong = 0, zeros = 0;
    for (int64_t i = 0; i < count; i++)
        if (!is_close(got + i, want + i, 1, tolerance)) {
            wrong++;
            zeros += got[i] == 0;
        }
    if (zeros == wrong)
        snprintf(text, size, "what is wrong is zero: the reduce-scatter of its bucket is missing, or a part of the "
                 "bucket is in no rank's shard");
}

/* The first gradient of which this rank's own part is wrong; -1 if there is none. */
static int first_wrong_part(const Pair *pair, double tolerance)
{
    for (int i = 0; i < pair->ranks->model.parameters.count; i++) {
        const Tensor *got = &pair->ranks->model.parameters.items[i]->tensor;
        const Tensor *want = &pair->whole.model.parameters.items[i]->tensor;
        const Slice part = own_part(pair, i);
        if (got->requires_grad && !is_close((const float *)got->grad + part.begin,
                                            (const float *)want->grad + part.begin, part.count, tolerance))
            return i;
    }
    return -1;
}

void expect_right_gradients(Pair *pair, long step, const char *what, double tolerance)
{
    ParameterList *ranks = &pair->ranks->model.parameters, *whole = &pair->whole.model.parameters;
    char names[300] = "";
    char cause[500] = "it was added to another parameter's, perhaps, or is of an earlier step";
    int trained = 0, wrong = 0, first = -1;
    if (LOCKSTEP_STAGE >= 3) /* only there is anything sent during backward */
        strcat(cause, "; or it was changed while it was sent (scaled, for example), or sent before it was complete (a "
                      "tied weight has two contributions)");
    give_factor(ranks, whole, ddp_partition(pair->ddp));
    for (int i = 0; i < ranks->count; i++) {
        const Tensor *got = &ranks->items[i]->tensor, *want = &whole->items[i]->tensor;
        trained += got->requires_grad;
        if (!got->requires_grad || is_close(got->grad, want->grad, tensor_count(got), tolerance))
            continue;
        if (wrong++ == 0)
            first = i;
        if (strlen(names) + strlen(ranks->items[i]->name) + 3 < sizeof names)
            strcat(strcat(names, " "), ranks->items[i]->name);
    }
    if (wrong == 0)
        return;
    const int own = first_wrong_part(pair, tolerance);
    if (own >= 0)
        first = own;
    else
        sleep_seconds(0.5); /* the ranks whose parts are wrong know more: they fail first */
    int64_t count = tensor_count(&whole->items[first]->tensor);
    float *want = alloc_or_fault((size_t)count * sizeof *want);
    memcpy(want, whole->items[first]->tensor.grad, (size_t)count * sizeof *want);
    if (own >= 0 && !suspects_explain(pair, step, first, wrong == trained, cause, sizeof cause))
        explain_some_elements(ranks->items[first]->tensor.grad, want, count, tolerance, cause, sizeof cause);
    if (LOCKSTEP_STAGE == 5)
        explain_zeros(ranks->items[first]->tensor.grad, want, count, tolerance, cause, sizeof cause);
    char name[200], hint[1000];
    snprintf(name, sizeof name, "the gradient of %s in step %ld of %s on %d ranks", ranks->items[first]->name, step + 1,
             what, pg_world_size(pair->pg));
    snprintf(hint, sizeof hint, "%s. Wrong are %d of %d gradients:%s", cause, wrong, trained, names);
    expect_close(name, ranks->items[first]->tensor.grad, want, count, tolerance, 0, hint);
}
