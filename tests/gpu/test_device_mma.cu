/* test_device_mma.cu: each function of device_cuda_mma.h alone, so that a wrong layout of squares is found here, by
 * name, and not as wrong attention. Small integers: all results are exact.
 */
#include "backends/gpu/device_cuda_mma.h"

#include <cuda_pipeline.h>

extern "C" {
#include "device_numbers.h"
}

enum { SIDE = 16, STRIDE = 24, NUMBERS = SIDE * SIDE }; /* rows of a tile begin at multiples of 16 bytes */

/* ---- kernels, of one warp ---- */

/* Writes a square (16, 16) to memory, by the lanes' places in it. */
template <typename Half> static __device__ void write_square(float *out, HalfSquare<Half> square)
{
    for (int i = 0; i < 4; i++) {
        Half pair[2];
        memcpy(pair, &square.quarter[i], sizeof pair);
        for (int c = 0; c < 2; c++)
            out[square_row(i) * SIDE + square_column(i) + c] = to_float(pair[c]);
    }
}

enum Load { LOAD_SQUARE, LOAD_TRANSPOSED, LOAD_DIRECTLY };

template <typename Half> static __global__ void load_kernel(float *out, Half *numbers, const float *x, Load load)
{
    __shared__ __align__(16) Half tile[SIDE][STRIDE];
    for (int i = threadIdx.x; i < NUMBERS; i += WARP) {
        from_float(&numbers[i], x[i]);
        from_float(&tile[i / SIDE][i % SIDE], x[i]);
    }
    __syncthreads();
    if (load == LOAD_SQUARE)
        write_square(out, load_square(&tile[0][0], STRIDE));
    else if (load == LOAD_TRANSPOSED)
        write_square(out, load_transposed(&tile[0][0], STRIDE));
    else
        write_square(out, load_square_directly(numbers, SIDE));
}

static __device__ FloatSquare square_of(const float *x)
{
    FloatSquare square;
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 2; c++)
            square.quarter[i][c] = x[square_row(i) * SIDE + square_column(i) + c];
    return square;
}

template <typename Half>
static __global__ void product_kernel(float *out, const float *a, const float *b, const float *start)
{
    FloatSquare sum = square_of(start);
    add_product(&sum, rounded<Half>(square_of(a)), rounded<Half>(square_of(b)));
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 2; c++)
            out[square_row(i) * SIDE + square_column(i) + c] = sum.quarter[i][c];
}

template <typename Half> static __global__ void round_kernel(float *out, const float *x)
{
    write_square(out, rounded<Half>(square_of(x)));
}

/* Two rounds of copies through shared memory; the second round runs while the first one's result is read. */
static __global__ void copy_kernel(float *out, const float *x)
{
    __shared__ __align__(16) float part[2][4 * WARP];
    __pipeline_memcpy_async(&part[0][4 * threadIdx.x], x + 4 * threadIdx.x, 16);
    __pipeline_commit();
    for (int round = 0; round < 2; round++) {
        __pipeline_wait_prior(0);
        __syncthreads();
        if (round == 0) {
            __pipeline_memcpy_async(&part[1][4 * threadIdx.x], x + 4 * (WARP + threadIdx.x), 16);
            __pipeline_commit();
        }
        for (int i = 0; i < 4; i++) /* what other threads have copied */
            out[round * 4 * WARP + i * WARP + threadIdx.x] = part[round][i * WARP + threadIdx.x];
    }
}

static __global__ void power_kernel(float *out, const float *x)
{
    for (int i = threadIdx.x; i < NUMBERS; i += WARP)
        out[i] = power_of_two(x[i]);
}

/* ---- their tests ---- */

static float *device_floats(const float *values, int count)
{
    return (float *)device_copy_of(values, (size_t)count * sizeof *values);
}

/* Copies back, and frees. */
static float *take(float *memory)
{
    float *values = room_for_floats(NUMBERS);
    device_to_host(values, memory, NUMBERS * sizeof *values);
    device_free(memory);
    return values;
}

template <typename Half> static void check_load(Load load, const char *name, const char *hint)
{
    float *x = room_for_floats(NUMBERS), *expected = room_for_floats(NUMBERS); /* no two numbers are equal */
    for (int i = 0; i < NUMBERS; i++)
        x[i] = (float)i;
    for (int i = 0; i < NUMBERS; i++)
        expected[i] = load == LOAD_TRANSPOSED ? x[i % SIDE * SIDE + i / SIDE] : x[i];
    float *out = device_floats(x, NUMBERS), *from = device_floats(x, NUMBERS);
    Half *numbers = (Half *)device_alloc(NUMBERS * sizeof *numbers);
    load_kernel<Half><<<1, WARP, 0, cudaStreamPerThread>>>(out, numbers, from, load);
    CHECK_CUDA(cudaGetLastError());
    expect_close(name, take(out), expected, NUMBERS, 0, 0, hint);
    device_free(from);
    device_free(numbers);
}

template <typename Half> static void check_loads(void)
{
    check_load<Half>(LOAD_DIRECTLY, "load_square_directly", "square_row() and square_column()");
    check_load<Half>(LOAD_SQUARE, "load_square", "ldmatrix: which lane brings which row, which quarter comes when");
    check_load<Half>(LOAD_TRANSPOSED, "load_transposed", "ldmatrix.trans: which quarter comes when");
}

static void test_loads(void **)
{
    check_loads<__nv_bfloat16>();
    check_loads<__half>();
}

template <typename Half> static void check_product(void)
{
    float *a = room_for_floats(NUMBERS), *b = room_for_floats(NUMBERS), *start = room_for_floats(NUMBERS);
    float *expected = room_for_floats(NUMBERS);
    for (int i = 0; i < NUMBERS; i++) { /* no two rows are equal, nor two columns, nor a and b */
        a[i] = (float)(i * i % 23 - 11);
        b[i] = (float)(i * 7 % 19 - 5);
        start[i] = (float)(1000 + i);
    }
    for (int row = 0; row < SIDE; row++)
        for (int column = 0; column < SIDE; column++) {
            expected[row * SIDE + column] = start[row * SIDE + column];
            for (int k = 0; k < SIDE; k++)
                expected[row * SIDE + column] += a[row * SIDE + k] * b[column * SIDE + k];
        }
    float *out = device_floats(start, NUMBERS), *da = device_floats(a, NUMBERS), *db = device_floats(b, NUMBERS);
    float *dstart = device_floats(start, NUMBERS);
    product_kernel<Half><<<1, WARP, 0, cudaStreamPerThread>>>(out, da, db, dstart);
    CHECK_CUDA(cudaGetLastError());
    expect_close("add_product", take(out), expected, NUMBERS, 0, 0,
                 "mma.m16n8k16: registers of a, b or the sum in another order than that of the quarters");
    for (float *memory : {da, db, dstart})
        device_free(memory);
}

static void test_product(void **)
{
    check_product<__nv_bfloat16>();
    check_product<__half>();
}

template <typename Half> static void check_rounding(DType precision)
{
    float *x = normals(NUMBERS), *from = device_floats(x, NUMBERS), *out = device_floats(x, NUMBERS);
    round_kernel<Half><<<1, WARP, 0, cudaStreamPerThread>>>(out, from);
    CHECK_CUDA(cudaGetLastError());
    expect_bits_equal("rounded", take(out), rounded(x, precision, NUMBERS), NUMBERS,
                      "the left number of a pair belongs into the lower half");
    device_free(from);
}

static void test_rounding(void **)
{
    check_rounding<__nv_bfloat16>(DTYPE_BF16);
    check_rounding<__half>(DTYPE_F16);
}

static void test_copies(void **)
{
    float *x = normals(NUMBERS), *nothing = room_for_floats(NUMBERS);
    float *from = device_floats(x, NUMBERS), *out = device_floats(nothing, NUMBERS);
    copy_kernel<<<1, WARP, 0, cudaStreamPerThread>>>(out, from);
    CHECK_CUDA(cudaGetLastError());
    expect_bits_equal("copies", take(out), x, NUMBERS, "read before they were waited for?");
    device_free(from);
}

static void test_power_of_two(void **)
{
    float *x = normals_around(0, 40, NUMBERS);
    x[0] = -INFINITY;
    x[1] = 0;
    x[2] = -200;
    x[3] = NAN;
    float *from = device_floats(x, NUMBERS), *out = device_floats(x, NUMBERS);
    power_kernel<<<1, WARP, 0, cudaStreamPerThread>>>(out, from);
    CHECK_CUDA(cudaGetLastError());
    const float *got = take(out);
    assert_true(got[0] == 0 && got[1] == 1 && got[2] == 0 && isnan(got[3]));
    double *expected = room_for_doubles(NUMBERS), *bound = room_for_doubles(NUMBERS);
    for (int i = 4; i < NUMBERS; i++) {
        expected[i] = exp2((double)x[i]);
        bound[i] = 0x1p-22 * expected[i] + TINY;
    }
    expect_within("power_of_two", got + 4, expected + 4, bound + 4, NUMBERS - 4, NULL);
    device_free(from);
}

int main(void)
{
    device_init(0, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_loads, free_room),
        cmocka_unit_test_teardown(test_product, free_room),
        cmocka_unit_test_teardown(test_rounding, free_room),
        cmocka_unit_test_teardown(test_copies, free_room),
        cmocka_unit_test_teardown(test_power_of_two, free_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
