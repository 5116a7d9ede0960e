/* cublas.cpp: cuBLAS's matrix products with OpenBLAS. Arguments are checked as in cuBLAS; in addition, each matrix must
 * be inside one allocation of device memory. */
#include "cublas_v2.h"

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emulator.h"

#include <cblas.h>
#include <stdio.h>

#include <set>
#include <vector>

struct EmulatedBlas {
    cudaStream_t stream;
};

static std::set<cublasHandle_t> handles; /* that exist */

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    *handle = new EmulatedBlas{0};
    handles.insert(*handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    if (handles.erase(handle) == 0)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    if (handles.count(handle) == 0)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes)
{
    Guard guard(emulator_mutex);
    if (handles.count(handle) == 0)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    const bool is_there = workspace == nullptr || memory_bytes_behind(workspace) >= (long)bytes;
    return is_there && (uintptr_t)workspace % 256 == 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

namespace
{

/* A matrix in device memory, column-major, of any of the three types. */
struct Matrix {
    const void *values;
    cudaDataType type;
    int rows, columns, stride;

    size_t bytes() const
    {
        const size_t element = type == CUDA_R_32F ? 4 : 2;
        return columns == 0 || rows == 0 ? 0 : ((size_t)stride * (columns - 1) + rows) * element;
    }
};

/* To 11 significant bits, ties away from zero, as the tensor cores' own conversion does. */
float nearest_tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x1000u) & ~0x1fffu; /* a carry into the exponent is right */
    if (!isnan(x))
        memcpy(&x, &bits, sizeof x);
    return x;
}

/* Its numbers as float32: in place, or as a copy in `room`. */
const float *as_floats(const Matrix &matrix, std::vector<float> &room, bool tf32)
{
    if (matrix.type == CUDA_R_32F && !tf32)
        return (const float *)matrix.values;
    if (matrix.type == CUDA_R_32F) {
        room.resize(matrix.bytes() / 4 + 1);
        for (size_t i = 0; i < matrix.bytes() / 4; i++)
            room[i] = nearest_tf32(((const float *)matrix.values)[i]);
        return room.data();
    }
    room.resize(matrix.bytes() / 2 + 1);
    for (size_t i = 0; i < matrix.bytes() / 2; i++) {
        if (matrix.type == CUDA_R_16BF)
            room[i] = __bfloat162float(((const __nv_bfloat16 *)matrix.values)[i]);
        else
            room[i] = __half2float(((const __half *)matrix.values)[i]);
    }
    return room.data();
}

/* NULL: cuBLAS accepts this matrix; otherwise the reason why not. */
const char *objection(const Matrix &matrix)
{
    if (matrix.rows < 0 || matrix.columns < 0)
        return "a negative number of rows or columns";
    if (matrix.stride < (matrix.rows > 1 ? matrix.rows : 1))
        return "a leading dimension smaller than the number of rows (which is at least 1)";
    if (matrix.bytes() > 0 && memory_bytes_behind(matrix.values) < (long)matrix.bytes())
        return "a matrix that does not lie within one allocation of device memory";
    if ((uintptr_t)matrix.values % (matrix.type == CUDA_R_32F ? 4 : 2) != 0)
        return "a matrix at an address that does not fit its type";
    return nullptr;
}

} // namespace

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType a_type, int lda, const void *b,
                            cudaDataType b_type, int ldb, const void *beta, void *c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    Guard guard(emulator_mutex);
    (void)algorithm;
    if (handles.count(handle) == 0)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    const bool is_float32 = compute == CUBLAS_COMPUTE_32F || compute == CUBLAS_COMPUTE_32F_PEDANTIC ||
                            compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (a_type != b_type || c_type != CUDA_R_32F || !is_float32 || handle->stream != cudaStreamPerThread)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const bool a_as_is = op_a == CUBLAS_OP_N, b_as_is = op_b == CUBLAS_OP_N;
    const Matrix A = {a, a_type, a_as_is ? m : k, a_as_is ? k : m, lda};
    const Matrix B = {b, b_type, b_as_is ? k : n, b_as_is ? n : k, ldb};
    const Matrix C = {c, c_type, m, n, ldc};
    for (const Matrix *matrix : {&A, &B, &C}) {
        if (objection(*matrix) != nullptr) {
            fprintf(stderr, "emulated CUDA: cublasGemmEx (m %d, n %d, k %d): %s: %s\n", m, n, k,
                    matrix == &A   ? "A"
                    : matrix == &B ? "B"
                                   : "C",
                    objection(*matrix));
            return CUBLAS_STATUS_INVALID_VALUE;
        }
    }
    if (const long planted = emulator_setting("LOCKSTEP_EMULATED_CUBLAS_STATUS", CUBLAS_STATUS_SUCCESS))
        return (cublasStatus_t)planted;
    const bool tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    const float alpha_now = *(const float *)alpha, beta_now = *(const float *)beta;
    if (m == 0 || n == 0)
        return CUBLAS_STATUS_SUCCESS;
    stream_submit([=] {
        std::vector<float> a_room, b_room;
        memory_open();
        cblas_sgemm(CblasColMajor, a_as_is ? CblasNoTrans : CblasTrans, b_as_is ? CblasNoTrans : CblasTrans, m, n, k,
                    alpha_now, as_floats(A, a_room, tf32), lda, as_floats(B, b_room, tf32), ldb, beta_now, (float *)c,
                    ldc);
        memory_close("cublasGemmEx");
    });
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                           const float *alpha, const float *a, int lda, const float *b, int ldb, const float *beta,
                           float *c, int ldc)
{
    return cublasGemmEx(handle, op_a, op_b, m, n, k, alpha, a, CUDA_R_32F, lda, b, CUDA_R_32F, ldb, beta, c, CUDA_R_32F,
                        ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "the operation completed successfully";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "an internal operation failed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
    }
    return "unknown status";
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "unknown status";
}
