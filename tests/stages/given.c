/* given.c: a right start, and a right factor. */
#include "given.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"

static char given[64]; /* LOCKSTEP_TEST_GIVEN */
static char graded[64]; /* "factor:zero_1:": what is not given to this case, and its level */
static int level, level_of_case;
static uint64_t seed;

void given_read(void)
{
    static bool done;
    const char *words = getenv("LOCKSTEP_TEST_GIVEN"), *zero = getenv("LOCKSTEP_TEST_ZERO");
    const char *number = getenv("LOCKSTEP_TEST_SEED");
    if (done)
        return;
    done = true;
    snprintf(given, sizeof given, "%s", words != NULL ? words : "");
    level = zero != NULL ? atoi(zero) : 0;
    seed = number != NULL ? strtoull(number, NULL, 10) : 1;
}

void given_all_but(const char *name)
{
    const char *end = strrchr(name, ':');
    snprintf(graded, sizeof graded, "%.*s", end != NULL ? (int)(end + 1 - name) : 0, name);
    const char *zero = strstr(graded, "zero_");
    level_of_case = zero != NULL ? atoi(zero + strlen("zero_")) : 0;
}

bool is_given(const char *what)
{
    char word[16];
    given_read();
    snprintf(word, sizeof word, "%s:", what);
    return strstr(given, what) != NULL && strstr(graded, word) == NULL;
}

int given_level(void)
{
    given_read();
    return level_of_case > 0 ? level_of_case : level;
}

uint64_t given_seed(void)
{
    given_read();
    return seed;
}

void give_start(ParameterList *ranks, const ParameterList *whole, const Partition *partition)
{
    for (int i = 0; i < ranks->count && is_given("start"); i++) {
        const float *right = whole->items[i]->tensor.data;
        size_t bytes = (size_t)tensor_count(&whole->items[i]->tensor) * sizeof *right;
        if (ranks->items[i]->tensor.data != NULL)
            memcpy(ranks->items[i]->tensor.data, right, bytes);
        parameter_changed(ranks->items[i]);
        const Slice *slice = partition != NULL ? &partition->slices[i] : NULL;
        if (slice != NULL && slice->weight != NULL)
            memcpy(slice->weight, right + slice->begin, (size_t)slice->count * sizeof *right);
    }
}

/* The c for which c * right is closest to the ranks' gradients: their scalar product over right's with itself. 1 if c *
 * right is not close to them, so that they are wrong in another way, which the test is to explain. */
static double factor_of(const ParameterList *ranks, const ParameterList *whole)
{
    double product = 0, square = 0, own_square = 0;
    for (int i = 0; i < ranks->count; i++) {
        const float *got = ranks->items[i]->tensor.grad, *right = whole->items[i]->tensor.grad;
        for (int64_t k = 0; k < tensor_count(&ranks->items[i]->tensor) && got != NULL && right != NULL; k++) {
            product += (double)got[k] * (double)right[k];
            square += (double)right[k] * (double)right[k];
            own_square += (double)got[k] * (double)got[k];
        }
    }
    const bool close = product * product > (1 - 1e-6) * square * own_square; /* the angle between them is small */
    return close ? product / square : 1;
}

void give_factor(ParameterList *ranks, const ParameterList *whole, const Partition *partition)
{
    double factor = is_given("factor") ? factor_of(ranks, whole) : 1;
    if (!isfinite(factor) || factor == 0 || fabs(factor - 1) < 1e-4)
        return; /* nothing to mend, or not by a factor */
    for (int i = 0; i < ranks->count; i++) {
        Tensor *tensor = &ranks->items[i]->tensor;
        if (tensor->requires_grad && tensor->grad != NULL)
            device_scale(tensor->grad, (float)(1 / factor), tensor_count(tensor));
        if (tensor->requires_grad && partition != NULL && partition->slices[i].grad != NULL)
            device_scale(partition->slices[i].grad, (float)(1 / factor), partition->slices[i].count);
    }
}
