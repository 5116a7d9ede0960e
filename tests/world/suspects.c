/* suspects.c: compares a wrong number with what the common mistakes would make of it. */
#include "world/suspects.h"

#include <math.h>
#include <stdlib.h>

#include "world/world.h"

static const char *name_gradient(const Toy *toy, int p, int64_t i, float is)
{
    const Mode *mode = toy->mode;
    const float sum = toy_sum(mode, toy->step, p, i);
    const float own = toy_share(mode, toy->rank, toy->step, mode->micro_batches, p, i);
    const float last = own - toy_share(mode, toy->rank, toy->step, mode->micro_batches - 1, p, i);
    const float before = toy->step > 0 ? toy_sum(mode, toy->step - 1, p, i) : NAN;
    const struct { float value; const char *mistake; } suspects[] = {
        {TOY_SCALE * own, "this is the rank's own share, scaled: was it summed over the ranks?"},
        {own, "this is the rank's own share, and not scaled: is its all-reduce missing?"},
        {sum, "this is the sum over the ranks, but not multiplied by gradient_scale"},
        {TOY_SCALE * TOY_SCALE * sum, "this was multiplied by gradient_scale twice"},
        {TOY_SCALE * sum / (float)mode->ranks, "this was divided by the number of ranks as well as by gradient_scale"},
        {TOY_SCALE * sum * (float)mode->ranks, "this is the right sum times the number of ranks: is it summed twice?"},
        {TOY_SCALE * (sum + before), "the step before is still in it: was this gradient not zeroed?"},
        {TOY_SCALE * before, "this is the gradient of the step before"},
        {TOY_SCALE * last, "this is the last micro-batch of this rank alone"},
        {0, "it is zero: was it sent before backward had written it?"},
    };
    for (size_t s = 0; s < sizeof suspects / sizeof suspects[0]; s++)
        if (is == suspects[s].value)
            return suspects[s].mistake;
    if (!isfinite(is) || fabsf(is) > 1e30f)
        return "this is the pattern that a buffer holds in flight: is work_wait() missing, or too late?";
    return "none of the common mistakes makes this number: is the gradient complete when it is sent?";
}

void suspects_of_gradient(const Toy *toy, const Parameter *parameter, int64_t element, float is)
{
    const float sum = toy_sum(toy->mode, toy->step, parameter->index, element);
    world_fault("element %lld of the gradient of %s is %g, but (the sum of all ranks) * gradient_scale = %g * %g = %g: "
                "%s", (long long)element, parameter->name, (double)is, (double)sum, (double)TOY_SCALE,
                (double)(TOY_SCALE * sum), name_gradient(toy, parameter->index, element, is));
}

void suspects_of_weight(const Toy *toy, const Parameter *parameter, int64_t element, int step, const char *when)
{
    const float *values = parameter->tensor.data;
    if (values == NULL)
        world_fault("%s has no weights %s: its data is NULL", parameter->name, when);
    const char *mistake = step > 0 && values[element] == toy_weight(toy->mode, step - 1, parameter->index, element)
                              ? "this is the weight of the step before"
                          : step == 0 ? "are rank 0's weights copied to all ranks, those of frozen parameters, too?"
                                      : "the update went wrong, or the weights that arrived are others";
    world_fault("element %lld of %s is %g %s, but must be %g: %s", (long long)element, parameter->name,
                (double)values[element], when, (double)toy_weight(toy->mode, step, parameter->index, element), mistake);
}
