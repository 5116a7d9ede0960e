/* power_sgd.c: see power_sgd.h. Matrices lie in memory row by row; Q is kept as its transpose (R, m), so that the three
 * products are those of a linear layer with M as its input: P = M Q is its forward pass, Q = M^T P the gradient of its
 * weight, and P Q^T the gradient of its input. */
#include "ddp/power_sgd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/rng.h"
#include "device/device.h"

/* Of one parameter. */
typedef struct Matrix {
    int64_t n, m;      /* 0: it is sent whole */
    Parameter *q;      /* (R, m): of the last step, with which the next one starts; in state */
    Parameter **error; /* by rank of the instance: (n, m); in state. Between start and finish: the sum of M and error */
} Matrix;

struct PowerSgd {
    GradientCodec codec; /* first, so that a codec's functions find the rest */
    ParameterList *model; /* not owned */
    ParameterList state;
    Matrix *matrices; /* by the parameter's index; owned */
    int rank;         /* R */
    int first_rank, ranks, world_size;
    float samples; /* of this step's global batch: an error is that of one sample */
};

/* ---- one matrix ---- */

/* Makes the R vectors orthogonal, of length 1, in place (Gram-Schmidt). What is left of a vector that depends on those
 * before it is rounding, and becomes 0. Element i of vector k is at values[k * step + i * stride]. */
static void orthogonalize(float *values, int64_t length, int64_t stride, int R, int64_t step)
{
    for (int k = 0; k < R; k++) {
        float *v = values + k * step;
        double before = 0, after = 0;
        for (int64_t i = 0; i < length; i++)
            before += (double)v[i * stride] * (double)v[i * stride];
        for (int j = 0; j < k; j++) {
            const float *u = values + j * step;
            double dot = 0;
            for (int64_t i = 0; i < length; i++)
                dot += (double)v[i * stride] * (double)u[i * stride];
            for (int64_t i = 0; i < length; i++)
                v[i * stride] = (float)((double)v[i * stride] - dot * (double)u[i * stride]);
        }
        for (int64_t i = 0; i < length; i++)
            after += (double)v[i * stride] * (double)v[i * stride];
        const double factor = after <= 1e-10 * before ? 0 : 1 / sqrt(after); /* NaN stays NaN */
        for (int64_t i = 0; i < length; i++)
            v[i * stride] = (float)((double)v[i * stride] * factor);
    }
}

/* note: error-per-sample
 * P = M Q, where M is the gradient and what was lost before. A gradient is a sum over a step's samples, and is divided
 * by their number later. Not all steps have as many, so what was lost is kept for one sample. */
static void multiply_q(const PowerSgd *power, const Matrix *matrix, int k, const float *gradient, float *p)
{
    float *whole = matrix->error[k]->tensor.data;
    device_scale(whole, power->samples, matrix->n * matrix->m);
    device_accumulate(whole, gradient, matrix->n * matrix->m);
    device_linear_forward(p, whole, matrix->q->tensor.data, NULL, matrix->n, matrix->m, power->rank, DTYPE_F32);
}

/* Q = M^T P, with the orthogonal P that all ranks have. */
static void multiply_p(const PowerSgd *power, const Matrix *matrix, int k, const float *p, float *q)
{
    device_linear_backward((Gradient){0}, (Gradient){.values = q}, (Gradient){0}, p, matrix->error[k]->tensor.data, NULL,
                           matrix->n, matrix->m, power->rank, DTYPE_F32);
}

/* Gives row k of Q noise, the same on all ranks. */
static void start_row(const PowerSgd *power, const Matrix *matrix, int k)
{
    float *row = (float *)matrix->q->tensor.data + k * matrix->m;
    Rng rng;
    rng_seed(&rng, (uint64_t)(matrix - power->matrices) << 16 | (uint64_t)k);
    for (int64_t i = 0; i < matrix->m; i++)
        row[i] = rng_normal(&rng);
}

static void restart(const PowerSgd *power, const Matrix *matrix)
{
    for (int k = 0; k < power->rank; k++)
        start_row(power, matrix, k);
    for (int k = 0; k < power->ranks; k++)
        device_zero(matrix->error[k]->tensor.data, (size_t)(matrix->n * matrix->m) * sizeof(float));
}

/* The next step starts with this one's Q. A row of zeros would stay one for ever: it starts again. */
static void keep_q(const PowerSgd *power, const Matrix *matrix, const float *q)
{
    float *kept = matrix->q->tensor.data;
    device_copy(kept, q, (size_t)(matrix->m * power->rank) * sizeof(float));
    orthogonalize(kept, matrix->m, 1, power->rank, matrix->m);
    for (int k = 0; k < power->rank; k++) {
        bool zero = true;
        for (int64_t i = 0; i < matrix->m; i++)
            zero = zero && kept[k * matrix->m + i] == 0;
        if (zero)
            start_row(power, matrix, k);
    }
}

/* note: error-feedback
 * Writes P Q^T to the gradient: nearly the sum of all ranks' M. Each rank takes an equal part of it as what it has sent,
 * and keeps the rest. (An overflow is seen in the gradient, and the step is skipped; nothing of it may be kept.) */
static void finish_matrix(const PowerSgd *power, const Matrix *matrix, const float *p, const float *q, float *gradient)
{
    const int64_t count = matrix->n * matrix->m;
    const float part = 1 / (float)power->world_size;
    bool finite = true;
    device_linear_backward((Gradient){.values = gradient}, (Gradient){0}, (Gradient){0}, p, NULL, q, matrix->n,
                           matrix->m, power->rank, DTYPE_F32);
    for (int64_t i = 0; i < count; i++)
        finite = finite && isfinite(gradient[i]);
    if (!finite) {
        restart(power, matrix);
        return;
    }
    for (int k = 0; k < power->ranks; k++) {
        float *error = matrix->error[k]->tensor.data;
        for (int64_t i = 0; i < count; i++)
            error[i] = (error[i] - part * gradient[i]) / power->samples;
    }
    keep_q(power, matrix, q);
}

/* ---- a bucket: its vectors and all P in one all-reduce, all Q in another ---- */

/* One parameter of a bucket, and where it is in what is sent: first vectors and all P, then all Q. */
typedef struct Part {
    int index; /* of the parameter */
    const Tensor *tensor;
    const Matrix *matrix;
    float *p, *q;
    int64_t p_count, q_count; /* a vector's are its elements, and 0 */
} Part;

/* Goes on to the bucket's next parameter; false if there is none: then p and q are behind the last one's. */
static bool next_part(const PowerSgd *power, const float *gradients, size_t elements, Part *part)
{
    part->p += part->p_count;
    part->q += part->q_count;
    for (part->index++; part->index < power->model->count; part->index++) {
        part->tensor = &power->model->items[part->index]->tensor;
        part->matrix = &power->matrices[part->index];
        const float *gradient = part->tensor->grad;
        if (!part->tensor->requires_grad || gradient < gradients || gradient >= gradients + elements)
            continue;
        part->p_count = part->matrix->n > 0 ? part->matrix->n * power->rank : tensor_count(part->tensor);
        part->q_count = part->matrix->m * power->rank;
        return true;
    }
    return false;
}

/* A matrix's P and Q are less than half as large as it. */
static size_t most_bytes(const GradientCodec *codec, size_t elements, int world_size)
{
    (void)codec, (void)world_size;
    return elements * sizeof(float);
}

static Work *start_power_sgd(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                             size_t elements, const char *carries)
{
    const PowerSgd *power = (const PowerSgd *)codec;
    Part part = {.index = -1, .p = buffer};
    while (next_part(power, gradients, elements, &part)) {
        if (part.matrix->n > 0)
            multiply_q(power, part.matrix, 0, part.tensor->grad, part.p);
        else
            device_copy(part.p, part.tensor->grad, (size_t)part.p_count * sizeof(float));
    }
    return pg_all_reduce_async(pg, buffer, buffer, (size_t)(part.p - (float *)buffer), codec->dtype, REDUCE_SUM, carries);
}

/* Every rank makes the same P orthogonal in the same way. The second all-reduce hides behind nothing. */
static void finish_power_sgd(const GradientCodec *codec, ProcessGroup *pg, float *gradients, void *buffer,
                             size_t elements)
{
    const PowerSgd *power = (const PowerSgd *)codec;
    Part part = {.index = -1, .p = buffer};
    while (next_part(power, gradients, elements, &part))
        if (part.matrix->n > 0)
            orthogonalize(part.p, part.matrix->n, power->rank, power->rank, 1);
    float *const all_q = part.p;
    part = (Part){.index = -1, .p = buffer, .q = all_q};
    while (next_part(power, gradients, elements, &part))
        if (part.matrix->n > 0)
            multiply_p(power, part.matrix, 0, part.p, part.q);
    pg_all_reduce(pg, all_q, all_q, (size_t)(part.q - all_q), codec->dtype, REDUCE_SUM, "Q of a bucket (powersgd)");
    part = (Part){.index = -1, .p = buffer, .q = all_q};
    while (next_part(power, gradients, elements, &part)) {
        if (part.matrix->n > 0)
            finish_matrix(power, part.matrix, part.p, part.q, part.tensor->grad);
        else
            device_copy(part.tensor->grad, part.p, (size_t)part.p_count * sizeof(float));
    }
}

/* ---- what one process does that stands for all ranks ---- */

/* Each matrix's place in the gradients gets P, which the caller adds over the ranks. */
static void share_p(const GradientCodec *codec, int rank, float *gradients, int64_t elements)
{
    const PowerSgd *power = (const PowerSgd *)codec;
    (void)gradients, (void)elements; /* the model's */
    for (int i = 0; i < power->model->count; i++) {
        const Matrix *matrix = &power->matrices[i];
        float *gradient = power->model->items[i]->tensor.grad;
        if (matrix->n == 0)
            continue;
        float *p = device_alloc((size_t)(matrix->n * power->rank) * sizeof(float));
        multiply_q(power, matrix, rank - power->first_rank, gradient, p);
        device_copy(gradient, p, (size_t)(matrix->n * power->rank) * sizeof(float));
        device_free(p);
    }
}

static void sum_of_matrix(const PowerSgd *power, const Matrix *matrix, float *gradient)
{
    const int64_t q_count = matrix->m * power->rank;
    float *p = device_alloc((size_t)(matrix->n * power->rank) * sizeof(float));
    float *q = device_alloc((size_t)q_count * sizeof(float)), *part = device_alloc((size_t)q_count * sizeof(float));
    device_copy(p, gradient, (size_t)(matrix->n * power->rank) * sizeof(float));
    orthogonalize(p, matrix->n, power->rank, power->rank, 1);
    multiply_p(power, matrix, 0, p, q);
    for (int k = 1; k < power->ranks; k++) {
        multiply_p(power, matrix, k, p, part);
        device_accumulate(q, part, q_count);
    }
    finish_matrix(power, matrix, p, q, gradient);
    device_free(p);
    device_free(q);
    device_free(part);
}

static void sum_of_shares(const GradientCodec *codec, int rank, float *gradients, int64_t elements)
{
    const PowerSgd *power = (const PowerSgd *)codec;
    (void)rank, (void)gradients, (void)elements;
    for (int i = 0; i < power->model->count; i++)
        if (power->matrices[i].n > 0)
            sum_of_matrix(power, &power->matrices[i], power->model->items[i]->tensor.grad);
}

/* ---- the instance ---- */

static void add_matrix(PowerSgd *power, int i)
{
    const Parameter *parameter = power->model->items[i];
    Matrix *matrix = &power->matrices[i];
    const int64_t n = parameter->tensor.shape[0], m = tensor_count(&parameter->tensor) / n, R = power->rank;
    char name[sizeof parameter->name + 40];
    if (!parameter->tensor.requires_grad || 2 * (n + m) * R > n * m)
        return;
    *matrix = (Matrix){.n = n, .m = m, .error = alloc_or_fault((size_t)power->ranks * sizeof *matrix->error)};
    snprintf(name, sizeof name, "powersgd.q.%s", parameter->name);
    matrix->q = parameters_add(&power->state, name, 2, (int64_t[]){R, m});
    for (int k = 0; k < power->ranks; k++) {
        snprintf(name, sizeof name, "powersgd.error.%d.%s", power->first_rank + k, parameter->name);
        matrix->error[k] = parameters_add(&power->state, name, 2, (int64_t[]){n, m});
    }
    restart(power, matrix);
}

PowerSgd *power_sgd_create(ParameterList *model, int rank, int first_rank, int ranks, int world_size)
{
    PowerSgd *power = alloc_or_fault(sizeof *power);
    power->codec = *codec_find("powersgd");
    power->codec.buffer_bytes = most_bytes;
    power->codec.start_all_reduce = start_power_sgd;
    power->codec.finish_all_reduce = finish_power_sgd;
    power->codec.round_share = share_p;
    power->codec.round_sum = sum_of_shares;
    power->samples = 1;
    power->model = model;
    power->rank = rank;
    power->first_rank = first_rank;
    power->ranks = ranks;
    power->world_size = world_size;
    power->matrices = alloc_or_fault((size_t)model->count * sizeof *power->matrices);
    for (int i = 0; i < model->count; i++)
        add_matrix(power, i);
    power->codec.state_bytes = (size_t)parameters_total(&power->state) * sizeof(float);
    return power;
}

PowerSgd *power_sgd_for_all(const PowerSgd *power)
{
    return power_sgd_create(power->model, power->rank, 0, power->world_size, power->world_size);
}

void power_sgd_free(PowerSgd *power)
{
    if (power == NULL)
        return;
    for (int i = 0; i < power->model->count; i++)
        free(power->matrices[i].error);
    free(power->matrices);
    parameters_free(&power->state);
    free(power);
}

const GradientCodec *power_sgd_codec(const PowerSgd *power)
{
    return &power->codec;
}

void power_sgd_set_samples(PowerSgd *power, int64_t samples)
{
    power->samples = (float)samples;
}

ParameterList *power_sgd_state(PowerSgd *power)
{
    return &power->state;
}

static void copy(const Parameter *to, const Parameter *from)
{
    device_copy(to->tensor.data, from->tensor.data, (size_t)tensor_count(&to->tensor) * sizeof(float));
}

void power_sgd_take(PowerSgd *power, const PowerSgd *all)
{
    for (int i = 0; i < power->model->count; i++) {
        const Matrix *matrix = &power->matrices[i];
        if (matrix->n > 0)
            copy(matrix->q, all->matrices[i].q);
        for (int k = 0; k < power->ranks && matrix->n > 0; k++)
            copy(matrix->error[k], all->matrices[i].error[power->first_rank + k]);
    }
}

void power_sgd_gather(const PowerSgd *power, ProcessGroup *pg, PowerSgd *all)
{
    for (int i = 0; i < power->model->count; i++) {
        const Matrix *matrix = &power->matrices[i];
        const size_t count = (size_t)(matrix->n * matrix->m);
        float *sent = count > 0 ? device_alloc(count * sizeof(float)) : NULL;
        for (int rank = 0; rank < power->world_size && count > 0; rank++) {
            if (rank == power->first_rank)
                device_copy(sent, matrix->error[0]->tensor.data, count * sizeof(float));
            pg_broadcast(pg, sent, count, DTYPE_F32, rank, "what a rank has not sent yet (powersgd)");
            if (all != NULL)
                device_copy(all->matrices[i].error[rank]->tensor.data, sent, count * sizeof(float));
        }
        if (all != NULL && count > 0)
            copy(all->matrices[i].q, matrix->q);
        device_free(sent);
    }
}
