/* batch_norm.c: see batch_norm.h. All sums are float64, so that rounding does not depend on how rows are divided. */
#include "autograd/batch_norm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"

#define EPS 1e-5
#define MOMENTUM 0.1 /* the weight of the newest statistics in the running ones */

static Parameter *add(ParameterList *parameters, const char *name, const char *part, int64_t C, float value)
{
    char whole[64];
    snprintf(whole, sizeof whole, "%s.%s", name, part);
    Parameter *parameter = parameters_add(parameters, whole, 1, &C);
    init_constant(parameter, value);
    return parameter;
}

BatchNorm batch_norm_create(ParameterList *parameters, const char *name, int64_t C)
{
    BatchNorm norm = {.weight = add(parameters, name, "weight", C, 1), .bias = add(parameters, name, "bias", C, 0),
                      .running = {.mean = add(parameters, name, "running_mean", C, 0),
                                  .var = add(parameters, name, "running_var", C, 1)}};
    parameter_make_buffer(norm.running.mean);
    parameter_make_buffer(norm.running.var);
    return norm;
}

/* ---- statistics: an array of doubles: the number of rows; C means; C sums of squared deviations from the mean ---- */

static double *new_statistics(int64_t C, int ranks)
{
    return alloc_or_fault((size_t)ranks * (size_t)(1 + 2 * C) * sizeof(double));
}

static void own_statistics(double *own, const float *x, int64_t rows, int64_t C)
{
    double *mean = own + 1, *deviation = own + 1 + C;
    own[0] = (double)rows;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < C; c++)
            mean[c] += (double)x[row * C + c];
    for (int64_t c = 0; c < C && rows > 0; c++)
        mean[c] /= (double)rows;
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < C; c++) {
            const double apart = (double)x[row * C + c] - mean[c];
            deviation[c] += apart * apart;
        }
}

/* note: combined-statistics
 * Adds the statistics of more rows. The mean of the ranks' variances would be wrong: it ignores the distance between
 * the ranks' means, so it is too small, and it ignores how many rows each rank has. Source: Chan, Golub and LeVeque,
 * 1979. */
static void add_statistics(double *total, const double *part, int64_t C)
{
    const double before = total[0], more = part[0], all = before + more;
    for (int64_t c = 1; c <= C && more > 0; c++) {
        const double apart = part[c] - total[c];
        total[c] += apart * more / all;
        total[c + C] += part[c + C] + apart * apart * before * more / all;
    }
    total[0] = all;
}

/* Of all ranks' rows, added in rank order, so that every rank has the same bits. The caller frees them. */
static double *statistics(const float *x, int64_t rows, int64_t C, const RankGather *ranks)
{
    double *own = new_statistics(C, 1);
    own_statistics(own, x, rows, C);
    if (ranks == NULL)
        return own;
    double *all = new_statistics(C, ranks->ranks), *total = new_statistics(C, 1);
    ranks->gather(ranks->owner, own, all, (size_t)(1 + 2 * C));
    for (int rank = 0; rank < ranks->ranks; rank++)
        add_statistics(total, all + rank * (1 + 2 * C), C);
    free(own);
    free(all);
    return total;
}

/* The running variance is computed from unbiased ones, divided by rows - 1, as in PyTorch. */
static void move_running(const RunningStatistics *running, const double *total, int64_t C)
{
    float *mean = running->mean->tensor.data, *var = running->var->tensor.data;
    for (int64_t c = 0; c < C; c++) {
        mean[c] = (float)((1 - MOMENTUM) * (double)mean[c] + MOMENTUM * total[1 + c]);
        var[c] = (float)((1 - MOMENTUM) * (double)var[c] + MOMENTUM * total[1 + C + c] / (total[0] - 1));
    }
    parameter_changed(running->mean);
    parameter_changed(running->var);
}

/* ---- the operation. saved[0]: C means, C times 1 / sqrt(variance + eps), and the number of rows; saved[1]: ranks ---- */

/* own (2 C) = sums over this rank's rows: C sums of dout, then C sums of dout * h, with h = (x - mean) * rstd. */
static void own_sums(double *own, const float *dout, const float *x, const double *mean, int64_t rows, int64_t C)
{
    const double *rstd = mean + C;
    for (int64_t row = 0; row < rows; row++, dout += C, x += C)
        for (int64_t c = 0; c < C; c++) {
            own[c] += (double)dout[c];
            own[C + c] += (double)dout[c] * ((double)x[c] - mean[c]) * rstd[c];
        }
}

/* The sum over ranks of `own` (count), added in rank order. The caller frees it. */
static double *sum_over_ranks(const double *own, int64_t count, const RankGather *ranks)
{
    const int parts = ranks != NULL ? ranks->ranks : 1;
    double *all = alloc_or_fault((size_t)parts * (size_t)count * sizeof *all);
    double *sums = alloc_or_fault((size_t)count * sizeof *sums);
    if (ranks != NULL)
        ranks->gather(ranks->owner, own, all, (size_t)count);
    else
        memcpy(all, own, (size_t)count * sizeof *own);
    for (int part = 0; part < parts; part++)
        for (int64_t i = 0; i < count; i++)
            sums[i] += all[part * count + i];
    free(all);
    return sums;
}

static void contribute_input(Gradient dx, const float *dout, const float *x, const double *mean, const float *weight,
                             const double *sums, int64_t rows, int64_t C)
{
    const double *rstd = mean + C, n = mean[2 * C];
    for (int64_t i = 0; dx.values != NULL && i < rows * C; i += C)
        for (int64_t c = 0; c < C; c++) {
            const double h = ((double)x[i + c] - mean[c]) * rstd[c];
            const double centred = (double)dout[i + c] - (sums[c] + h * sums[C + c]) / n;
            const float value = (float)(centred * rstd[c] * (double)weight[c]);
            dx.values[i + c] = dx.add ? dx.values[i + c] + value : value;
        }
}

/* note: sync-batch-norm
 * out = h * weight + bias, with h = (x - mean) * rstd, rstd = 1 / sqrt(variance + eps)
 * The loss of every rank depends on this rank's rows, because they are in the statistics:
 *   dx = weight * rstd * (dout - (sum of dout) / n - h * (sum of dout * h) / n)
 * n and both sums are over the rows of ALL ranks: the second collective. dweight = sum of dout * h and dbias = sum of
 * dout are over this rank's own rows, because DDP adds them up like all gradients. */
static void batch_norm_backward(Tape *tape, Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    const int64_t rows = tensor_rows(x), C = tensor_last(x);
    const double *mean = node->saved[0];
    const float *dout = node->output->grad;
    double *own = alloc_or_fault(2 * (size_t)C * sizeof *own);
    own_sums(own, dout, x->data, mean, rows, C);
    double *sums = sum_over_ranks(own, 2 * C, node->saved[1]);
    float *own_floats = tape_floats(tape, 2 * C);
    for (int64_t i = 0; i < 2 * C; i++)
        own_floats[i] = (float)own[i];
    tape_needs(tape, weight, NULL, NULL);
    contribute_input(tape_gradient(tape, x), dout, x->data, mean, weight->data, sums, rows, C);
    const Gradient dweight = tape_gradient(tape, weight), dbias = tape_gradient(tape, bias);
    if (dweight.values != NULL)
        device_contribute(dweight, own_floats + C, C);
    if (dbias.values != NULL)
        device_contribute(dbias, own_floats, C);
    free(own);
    free(sums);
}

static bool are_finite(const double *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return false;
    return true;
}

/* Writes C means and C times 1 / sqrt(variance + eps) to `saved`: of the rows of this pass or, in evaluation, the
 * running ones. */
static void choose_statistics(const Tape *tape, const Tensor *x, const RunningStatistics *running,
                              const RankGather *ranks, double *saved)
{
    const int64_t rows = tensor_rows(x), C = tensor_last(x);
    const float *running_mean = running->mean->tensor.data, *running_var = running->var->tensor.data;
    double *total = tape->recording ? statistics(x->data, rows, C, ranks) : NULL;
    CHECK(total == NULL || total[0] != 1, "batch normalization of a single sample, which has no variance: choose a "
          "--batch-size that leaves %s, also at the end of an epoch", ranks != NULL
          ? "all ranks together more than one" : "each rank more than one, or on several ranks --norm sync-batch");
    for (int64_t c = 0; c < C; c++) {
        const bool of_rows = total != NULL && total[0] > 0;
        const double var = of_rows ? total[1 + C + c] / total[0] : (double)running_var[c];
        saved[c] = of_rows ? total[1 + c] : (double)running_mean[c];
        saved[C + c] = 1 / sqrt(var + EPS);
    }
    saved[2 * C] = total != NULL ? total[0] : 0;
    if (total != NULL && total[0] > 0 && are_finite(total, 1 + 2 * C)) /* else --on-nan handles this step */
        move_running(running, total, C);
    free(total);
}

Tensor *op_batch_norm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, const RunningStatistics *running,
                      const RankGather *ranks)
{
    const int64_t rows = tensor_rows(x), C = tensor_last(x);
    CHECK(tensor_count(weight) == C && x->dtype == DTYPE_F32, "batch norm: x must be float32 of %lld columns",
          (long long)tensor_count(weight));
    Tensor *out = tape_tensor(tape, x->ndim, x->shape, x->requires_grad || weight->requires_grad || bias->requires_grad);
    double *saved = (double *)tape_floats(tape, 2 * (2 * C + 1)); /* the arena aligns for any type */
    const float *values = x->data;
    float *result = out->data;
    choose_statistics(tape, x, running, ranks, saved);
    tape_needs(tape, weight, bias, NULL);
    const float *w = weight->data, *b = bias->data;
    for (int64_t i = 0; i < rows * C; i += C)
        for (int64_t c = 0; c < C; c++)
            result[i + c] = (float)(((double)values[i + c] - saved[c]) * saved[C + c] * (double)w[c] + (double)b[c]);
    Node *node = tape_record(tape, "batch-norm", batch_norm_backward, out, x, weight, bias);
    if (node != NULL) {
        node->saved[0] = saved;
        node->saved[1] = ranks;
    }
    return out;
}
