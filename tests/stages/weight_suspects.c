/* weight_suspects.c: stage 5: which mistake makes the wrong weights that a test has seen. */
#include "training_pair.h"

#include <math.h>
#include <stdio.h>

/* Elements of a parameter that are wrong: in this rank's slice, and in those of others; and how many of each kind are
 * as they were before the update. */
typedef struct Wrong {
    int64_t own, own_old, others, others_old;
} Wrong;

static Wrong count_wrong(const Pair *pair, int parameter, const float *before, double tolerance)
{
    const Tensor *tensor = &pair->ranks->model.parameters.items[parameter]->tensor;
    const float *got = tensor->data, *want = pair->whole.model.parameters.items[parameter]->tensor.data;
    const Slice slice = ddp_partition(pair->ddp)->slices[parameter];
    Wrong wrong = {0};
    for (int64_t k = 0; k < tensor_count(tensor); k++) {
        if (fabs((double)got[k] - (double)want[k]) <= tolerance)
            continue;
        const bool own = k >= slice.begin && k < slice.begin + slice.count;
        const bool old = fabs((double)got[k] - (double)before[k]) <= tolerance;
        *(own ? &wrong.own : &wrong.others) += 1;
        *(own ? &wrong.own_old : &wrong.others_old) += old;
    }
    return wrong;
}

static void explain_slices(const Pair *pair, double tolerance, char *text, size_t size)
{
    const ParameterList *parameters = &pair->ranks->model.parameters;
    const float *before = pair->weights_before;
    Wrong sum = {0};
    for (int i = 0; i < parameters->count; i++) {
        const Wrong wrong = count_wrong(pair, i, before, tolerance);
        sum.own += wrong.own;
        sum.own_old += wrong.own_old;
        sum.others += wrong.others;
        sum.others_old += wrong.others_old;
        before += tensor_count(&parameters->items[i]->tensor);
    }
    if (sum.own == 0 && sum.others > 0 && sum.others == sum.others_old)
        snprintf(text, size, "this rank's own slices are right, and those of other ranks are the old weights of before "
                 "the update: their gathers are missing, or were started before the update (ddp_after_update())");
    else if (sum.own == 0 && sum.others > 0)
        snprintf(text, size, "this rank's own slices are right, and those of other ranks are not: was every bucket "
                 "gathered, and to the place where its shards were cut?");
    else if (sum.own > 0 && sum.own == sum.own_old)
        snprintf(text, size, "this rank's own slices are as they were before the update: it has not updated them, or "
                 "old weights were written over the new ones");
}

void explain_wrong_weights(const Pair *pair, double tolerance, char *text, size_t size)
{
    const double norm = pair->ranks->optimizer.norm, right = pair->whole.optimizer.norm;
    if (fabs(norm / right - 1) > 1e-2)
        snprintf(text, size, "the gradients were right, but their norm is %.4g here and %.4g in one process: a rank "
                 "knows the squares of its own slices only, so they must be added up over the ranks", norm, right);
    else
        explain_slices(pair, tolerance, text, size);
}
