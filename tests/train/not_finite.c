/* not_finite.c: `train` (train/main.c), in which one batch of one rank is bad. Run by test_not_finite.sh.
 *
 * The variable PLANT says what happens in step 3. "loss": an input is NaN. "gradient": backward overflows, but not the
 * loss. "sum": the gradients of all ranks are so large that only their sum overflows. PLANT_RANK: on which rank. The
 * fault belongs to the samples, not to the call, so computing the step again gives the same fault. (The linker's --wrap
 * replaces the program's functions by those below.) */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "data/dataset.h"
#include "device/device.h"

static const float MARK = 3.25f; /* the first input of a bad batch, which the kernels below look for */

static bool plant_is(const char *what)
{
    const char *plant = getenv("PLANT");
    return plant != NULL && strcmp(plant, what) == 0;
}

static bool here(void)
{
    const char *rank = getenv("PLANT_RANK");
    return plant_is("sum") || (rank != NULL && atoi(rank) == job_rank());
}

void __real_dataset_get(const Dataset *dataset, long epoch, const int64_t *indices, int64_t count, void *inputs,
                        void *targets);
void __wrap_dataset_get(const Dataset *dataset, long epoch, const int64_t *indices, int64_t count, void *inputs,
                        void *targets);
void __wrap_dataset_get(const Dataset *dataset, long epoch, const int64_t *indices, int64_t count, void *inputs,
                        void *targets)
{
    static atomic_int calls; /* evaluation and the second loader also call this, but after call 3 */
    static int64_t bad_sample;
    static const Dataset *of;
    __real_dataset_get(dataset, epoch, indices, count, inputs, targets);
    if (atomic_fetch_add(&calls, 1) == 3) {
        bad_sample = indices[0];
        of = dataset;
    }
    if (here() && dataset == of && count > 0 && indices[0] == bad_sample)
        *(float *)inputs = plant_is("loss") ? NAN : MARK;
}

void __real_device_linear_backward(Gradient dx, Gradient dweight, Gradient dbias, const void *dout, const void *x,
                                   const void *weight, int64_t rows, int64_t n_in, int64_t n_out, DType precision);
void __wrap_device_linear_backward(Gradient dx, Gradient dweight, Gradient dbias, const void *dout, const void *x,
                                   const void *weight, int64_t rows, int64_t n_in, int64_t n_out, DType precision);
void __wrap_device_linear_backward(Gradient dx, Gradient dweight, Gradient dbias, const void *dout, const void *x,
                                   const void *weight, int64_t rows, int64_t n_in, int64_t n_out, DType precision)
{
    __real_device_linear_backward(dx, dweight, dbias, dout, x, weight, rows, n_in, n_out, precision);
    bool marked = x != NULL && *(const float *)x >= MARK && *(const float *)x <= MARK; /* NULL: powersgd wants no dweight */
    if (marked && (plant_is("gradient") || plant_is("sum")))
        dweight.values[0] = plant_is("sum") ? 3e38f : INFINITY;
}
