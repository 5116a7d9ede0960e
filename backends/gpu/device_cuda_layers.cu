/* device_cuda_layers.cu: the kernels on an NVIDIA GPU, second part: linear, and sums over rows.
 *
 * cuBLAS computes matrix products. The gradients of bias, layernorm and embedding are sums over the rows of a batch.
 * Other code often uses atomic additions for them; here they have two stages, each in a fixed order.
 */
#include "backends/gpu/device_cuda.h"

/* ---- sums over rows: see device_cuda.h ---- */

/* Block (x, y): rows from x * rows_per_block, columns from y * WARP. Writes, or adds to, row x of out. */
template <typename Number>
static __global__ void sum_rows_kernel(float *out, const Number *matrix, int64_t rows, int64_t n,
                                       int64_t rows_per_block, bool add)
{
    const int64_t column = (int64_t)blockIdx.y * WARP + threadIdx.x;
    const int64_t first = blockIdx.x * rows_per_block;
    const int64_t end = first + rows_per_block < rows ? first + rows_per_block : rows;
    float sum = 0;
    if (column < n)
        for (int64_t row = first + threadIdx.y; row < end; row += SUM_LANES)
            sum += to_float(matrix[row * n + column]);
    sum = sum_of_lanes(sum);
    float *to = out + blockIdx.x * n + column;
    if (column < n && threadIdx.y == 0)
        *to = add ? *to + sum : sum;
}

void cuda_contribute_partial_sums(Gradient to, const float *partial, int64_t tiles, int64_t n)
{
    const dim3 grid(1, blocks_for(n, WARP));
    sum_rows_kernel<float><<<grid, SUM_BLOCK, 0, cudaStreamPerThread>>>(to.values, partial, tiles, n, tiles, to.add);
    CHECK_CUDA(cudaGetLastError());
}

/* Contributes the sum of the rows of an operand (rows, n) to `to` (n). */
static void contribute_sum_of_rows(Gradient to, const void *operand, DType precision, int64_t rows, int64_t n)
{
    if (rows == 0)
        clear_if_first(to, n);
    if (rows == 0 || n == 0)
        return;
    const int64_t tiles = blocks_for(rows, SUM_ROWS);
    const dim3 grid(blocks_for(rows, SUM_ROWS), blocks_for(n, WARP));
    float *partial = (float *)cuda_scratch((size_t)(tiles * n) * sizeof *partial);
    const float *floats = (const float *)operand;
    const __nv_bfloat16 *bf16 = (const __nv_bfloat16 *)operand;
    const __half *f16 = (const __half *)operand;
    if (precision == DTYPE_F32)
        sum_rows_kernel<float><<<grid, SUM_BLOCK, 0, cudaStreamPerThread>>>(partial, floats, rows, n, SUM_ROWS, false);
    else if (precision == DTYPE_BF16)
        sum_rows_kernel<__nv_bfloat16><<<grid, SUM_BLOCK, 0, cudaStreamPerThread>>>(partial, bf16, rows, n, SUM_ROWS,
                                                                                    false);
    else
        sum_rows_kernel<__half><<<grid, SUM_BLOCK, 0, cudaStreamPerThread>>>(partial, f16, rows, n, SUM_ROWS, false);
    CHECK_CUDA(cudaGetLastError());
    cuda_contribute_partial_sums(to, partial, tiles, n);
}

/* ---- linear ---- */

/* The handle of cuBLAS, created at the first product. Only with a workspace of its own does cuBLAS give the same bits
 * in every run. Call this from the training thread only. */
static cublasHandle_t cublas(void)
{
    static cublasHandle_t handle = NULL;
    const size_t workspace_bytes = (size_t)32 << 20; /* what NVIDIA recommends for Hopper; older GPUs need less */
    if (handle == NULL) {
        CHECK_CUBLAS(cublasCreate(&handle));
        CHECK_CUBLAS(cublasSetStream(handle, cudaStreamPerThread)); /* first, because it resets the workspace */
        CHECK_CUBLAS(cublasSetWorkspace(handle, device_alloc(workspace_bytes), workspace_bytes));
    }
    return handle;
}

static cudaDataType_t cuda_type(DType precision)
{
    if (precision == DTYPE_F32)
        return CUDA_R_32F;
    return precision == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* c (m, n) = a b, or with `add` c += a b, with a (m, k) or its transpose, b (k, n) or its transpose, both operands in
 * `precision`. stride: numbers from one stored row to the next; c's is n.
 * cuBLAS expects column-major matrices: it reads our row-major ones as transposed. So it computes c^T = b^T a^T. */
static void matmul(float *c, const void *a, int64_t a_stride, cublasOperation_t a_transposed, const void *b,
                   int64_t b_stride, cublasOperation_t b_transposed, bool add, int64_t m, int64_t n, int64_t k,
                   DType precision)
{
    if (k == 0)
        clear_if_first({c, add, DTYPE_F32}, m * n); /* an empty sum is 0 */
    if (m == 0 || n == 0 || k == 0)
        return;
    const float alpha = 1, beta = add ? 1 : 0; /* where beta is 0, cuBLAS does not read c */
    const cudaDataType_t type = cuda_type(precision);
    /* float32 stays float32, unless --tf32 allows TF32 */
    const bool tf32 = precision == DTYPE_F32 && cuda_tf32_allowed();
    CHECK_CUBLAS(cublasGemmEx(cublas(), b_transposed, a_transposed, (int)n, (int)m, (int)k, &alpha, b, type,
                              (int)b_stride, a, type, (int)a_stride, &beta, c, CUDA_R_32F, (int)n,
                              tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

/* One block per row. */
static __global__ void write_bias_kernel(float *out, const float *bias, int64_t n)
{
    float *row = out + blockIdx.x * n;
    for (int64_t i = 4 * threadIdx.x; i < n; i += 4 * THREADS)
        store_four(row, i, n, load_four(bias, i, n));
}

void device_linear_forward(float *out, const void *x, const void *weight, const float *bias, int64_t rows,
                           int64_t n_in, int64_t n_out, DType precision)
{
    /* Each row starts with the bias, and the product is added to it. */
    if (bias != NULL && rows > 0) {
        write_bias_kernel<<<(unsigned)rows, THREADS, 0, cudaStreamPerThread>>>(out, bias, n_out);
        CHECK_CUDA(cudaGetLastError());
    }
    matmul(out, x, n_in, CUBLAS_OP_N, weight, n_in, CUBLAS_OP_T, bias != NULL, rows, n_out, n_in, precision);
}

void device_linear_backward(Gradient dx, Gradient dweight, Gradient dbias, const void *dout, const void *x,
                            const void *weight, int64_t rows, int64_t n_in, int64_t n_out, DType precision)
{
    /* forward: out (rows, n_out) = x weight^T + bias, so dx = dout weight, dweight = dout^T x, dbias = sum of rows */
    if (dx.values != NULL)
        matmul(dx.values, dout, n_out, CUBLAS_OP_N, weight, n_in, CUBLAS_OP_N, dx.add, rows, n_in, n_out, precision);
    if (dweight.values != NULL)
        matmul(dweight.values, dout, n_out, CUBLAS_OP_T, x, n_in, CUBLAS_OP_N, dweight.add, n_out, n_in, rows,
               precision);
    if (dbias.values != NULL)
        contribute_sum_of_rows(dbias, dout, precision, rows, n_out);
}
