/* fused_on_cpu.c: gpu/device_fused.h on the CPU: each fused kernel calls the two plain ones. With them tests compare
 * gpu/fused_ops.c with the plain operations, to the bit. */
#include "gpu/device_fused.h"

/* Room for a result that is rounded afterwards; rounded() frees it. */
static float *room(int64_t n)
{
    return device_alloc((size_t)n * sizeof(float));
}

static void rounded(void *out, float *x, DType precision, int64_t n)
{
    device_store_rounded(out, x, precision, n);
    device_free(x);
}

void device_linear_gelu_forward(void *out, float *saved, const void *x, const void *weight, const float *bias,
                                int64_t rows, int64_t n_in, int64_t n_out, DType precision)
{
    device_linear_forward(saved, x, weight, bias, rows, n_in, n_out, precision);
    float *gelu = room(rows * n_out);
    device_gelu_forward(gelu, saved, rows * n_out);
    rounded(out, gelu, precision, rows * n_out);
}

void device_linear_gelu_backward(void *dlinear, const float *dout, const float *saved, const float *bias, int64_t rows,
                                 int64_t n_out, DType precision)
{
    (void)bias; /* already added in `saved` */
    float *gradient = room(rows * n_out);
    device_gelu_backward((Gradient){gradient, .add = false}, saved, dout, rows * n_out);
    rounded(dlinear, gradient, precision, rows * n_out);
}

void device_add_layernorm_forward(void *out, float *sum, float *mean, float *rstd, const float *a, const float *b,
                                  const float *weight, const float *bias, int64_t rows, int64_t n, DType precision)
{
    device_add(sum, a, b, rows * n);
    float *norm = room(rows * n);
    device_layernorm_forward(norm, mean, rstd, sum, weight, bias, rows, n);
    rounded(out, norm, precision, rows * n);
}
