/* operations_update.c: rows of the table: optimizers, in place. */
#include "operation_check.h"

typedef struct Rule {
    bool has_buffer, first_step; /* SGD's momentum */
    float lr, momentum, weight_decay;
    float beta1, beta2, eps, correction1, correction2; /* AdamW */
    float factor; /* of clipping: NaN if the step is left out, else the kernel does not read it */
} Rule;

/* Arrays: gradient, weight, then the optimizer's state; the last is the clip factor. */
static void describe_sgd(Case *c)
{
    const Rule *rule = c->operation->extra;
    add_array(c, "gradient", ARRAY_FIXED, c->dim[0], -1, -1);
    add_array(c, "weight", ARRAY_IN_PLACE, c->dim[0], -1, -1);
    add_array(c, "momentum_buffer", ARRAY_IN_PLACE, c->dim[0], -1, -1);
    *add_array(c, "factor", ARRAY_FIXED, 1, -1, -1) = rule->factor;
    for (int64_t i = 0; i < c->dim[0] && isnan(rule->factor); i += 4)
        c->array[0].start[i] = i % 8 ? NAN : INFINITY;
}

static void describe_adamw(Case *c)
{
    const Rule *rule = c->operation->extra;
    add_array(c, "gradient", ARRAY_FIXED, c->dim[0], -1, -1);
    add_array(c, "weight", ARRAY_IN_PLACE, c->dim[0], -1, -1);
    float *m = add_array(c, "m", ARRAY_IN_PLACE, c->dim[0], -1, -1);
    float *v = add_array(c, "v", ARRAY_IN_PLACE, c->dim[0], -1, -1);
    *add_array(c, "factor", ARRAY_FIXED, 1, -1, -1) = rule->factor;
    const float scale = c->operation->scale;
    for (int64_t i = 0; i < c->dim[0]; i++) {
        m[i] *= scale;
        v[i] = i % 3 == 0 ? 0 : v[i] * v[i] * scale * scale;
    }
    for (int64_t i = 0; i < c->dim[0] && isnan(rule->factor); i += 4)
        c->array[0].start[i] = i % 8 ? NAN : INFINITY;
}

static DeviceUpdate update_of(const Case *c, void **a, const float *factor)
{
    return (DeviceUpdate){a[1], a[0], factor, c->dim[0]};
}

static void sgd(const Case *c, void **a)
{
    const Rule *rule = c->operation->extra;
    const DeviceUpdate update = update_of(c, a, a[3]);
    device_sgd(&update, rule->has_buffer ? a[2] : NULL, rule->lr, rule->momentum, rule->weight_decay, rule->first_step);
}

static void sgd_reference(const Case *c, double **a)
{
    const Rule *rule = c->operation->extra;
    for (int64_t i = 0; i < c->dim[0] && !isnan(rule->factor); i++) {
        const double keep = rule->has_buffer && !rule->first_step ? (double)rule->momentum * a[2][i] : 0;
        const double step = keep + a[0][i] + (double)rule->weight_decay * a[1][i];
        a[1][i] -= (double)rule->lr * step;
        a[2][i] = rule->has_buffer ? step : a[2][i];
    }
}

static void adamw(const Case *c, void **a)
{
    const Rule *rule = c->operation->extra;
    const DeviceUpdate update = update_of(c, a, a[4]);
    device_adamw(&update, a[2], a[3], rule->lr, rule->beta1, rule->beta2, rule->eps, rule->weight_decay,
                 rule->correction1, rule->correction2);
}

static void adamw_reference(const Case *c, double **a)
{
    const Rule *rule = c->operation->extra;
    const double beta1 = (double)rule->beta1, beta2 = (double)rule->beta2;
    for (int64_t i = 0; i < c->dim[0] && !isnan(rule->factor); i++) {
        const double gradient = a[0][i];
        const double m = a[2][i] = beta1 * a[2][i] + (1 - beta1) * gradient;
        const double v = a[3][i] = beta2 * a[3][i] + (1 - beta2) * gradient * gradient;
        const double root = sqrt(v) / sqrt((double)rule->correction2) + (double)rule->eps;
        a[1][i] = (1 - (double)rule->lr * (double)rule->weight_decay) * a[1][i] -
                  (double)rule->lr / (double)rule->correction1 * m / root;
    }
}

static double few(const Case *c)
{
    return isnan(((const Rule *)c->operation->extra)->factor) ? 0 : 4;
}

static const int64_t many[][CHECKED_DIMS] = {{70001}, {-1}};
static const Rule momentum = {true, false, .lr = 0.05f, .momentum = 0.9f, .weight_decay = 0.01f, .factor = 1},
                  first = {true, true, .lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .factor = 0.25f},
                  plain = {false, true, .lr = 0.1f, .factor = 1},
                  left_out = {true, false, .lr = 0.1f, .momentum = 0.9f, .weight_decay = 0.01f, .factor = NAN};
static const Rule early = {.lr = 1e-3f, .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                           .correction1 = 0.1f, .correction2 = 0.05f, .factor = 1},
                  later = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-3f, .correction1 = 0.7f,
                           .correction2 = 0.3f, .factor = 0.3f},
                  adamw_left_out = {.lr = 1e-3f, .weight_decay = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f,
                                    .correction1 = 0.1f, .correction2 = 0.05f, .factor = NAN};

const Operation update_operations[] = {
    {.name = "sgd with momentum", .largest = {1025}, .scale = 1, .describe = describe_sgd, .forward = sgd,
     .reference = sgd_reference, .roundings = few, .shapes = many, .extra = &momentum,
     .hint = "weight decay is part of the gradient"},
    {.name = "sgd, first step", .largest = {1025}, .scale = 1, .describe = describe_sgd, .forward = sgd,
     .reference = sgd_reference, .roundings = few, .extra = &first,
     .hint = "the first step takes the gradient as it is, whatever the buffer holds"},
    {.name = "sgd without momentum", .largest = {1025}, .scale = 1, .describe = describe_sgd, .forward = sgd,
     .reference = sgd_reference, .roundings = few, .extra = &plain, .hint = "weight -= lr gradient"},
    {.name = "sgd, left out", .largest = {1025}, .scale = 1, .describe = describe_sgd, .forward = sgd,
     .reference = sgd_reference, .roundings = few, .extra = &left_out,
     .hint = "where the factor is NaN, the optimizer leaves weights and state alone"},
    {.name = "adamw", .largest = {1025}, .describe = describe_adamw, .forward = adamw,
     .reference = adamw_reference, .roundings = few, .scale = 1, .shapes = many, .extra = &early,
     .hint = "weight decay is apart from the gradient, and eps is added after the correction"},
    {.name = "adamw of small gradients", .largest = {1025}, .describe = describe_adamw, .forward = adamw,
     .reference = adamw_reference, .roundings = few, .scale = 1e-3f, .extra = &early,
     .hint = "m = beta1 m + (1 - beta1) gradient; v the same of its square"},
    {.name = "adamw, later", .largest = {1025}, .describe = describe_adamw, .forward = adamw,
     .reference = adamw_reference, .roundings = few, .scale = 1, .extra = &later,
     .hint = "eps is added after the correction"},
    {.name = "adamw, left out", .largest = {1025}, .describe = describe_adamw, .forward = adamw,
     .reference = adamw_reference, .roundings = few, .scale = 1, .extra = &adamw_left_out,
     .hint = "where the factor is NaN, the optimizer leaves weights and state alone"},
    {0},
};
