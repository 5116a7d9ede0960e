/* device_cpu_rounded.c: rounded numbers and their products on the CPU, emulated: a float holds the rounded value, and
 * OpenBLAS multiplies floats. The product of two bf16 or f16 numbers is exact in float32, so these are the products
 * that 16-bit instructions would compute. backends/onednn/rounded_onednn.c uses such instructions. */
#include "device/device_cpu_math.h"

size_t device_rounded_bytes(DType precision, int64_t n)
{
    (void)precision; /* a float for every precision */
    return (size_t)n * sizeof(float);
}

void device_store_rounded(void *rounded, const float *x, DType precision, int64_t n)
{
    device_round(rounded, x, precision, n);
}

void rounded_product(float *c, const void *a, bool a_transposed, const void *b, bool b_transposed, bool add, int64_t m,
                     int64_t n, int64_t k, DType precision)
{
    (void)precision; /* a and b are rounded already */
    matmul(c, n, 1, a, a_transposed ? m : k, a_transposed ? CblasTrans : CblasNoTrans, b, b_transposed ? k : n,
           b_transposed ? CblasTrans : CblasNoTrans, add ? 1 : 0, m, n, k);
}

void rounded_accumulate(float *sum, const void *rounded, int64_t first, DType precision, int64_t n)
{
    (void)precision;
    device_accumulate(sum, (const float *)rounded + first, n);
}

const char *rounded_products_by(void)
{
    return "";
}
