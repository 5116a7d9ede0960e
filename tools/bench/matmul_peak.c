/* matmul_peak.c: how fast this GPU multiplies matrices: the fastest of some large cuBLAS products in bf16 and TF32
 * (sums in float32), and in float32. No program reaches the peak of a data sheet; this one can be reached. Prints one
 * line of JSON. bf16: the result is float32 or bf16, whichever is faster, because training has both kinds of products,
 * and a peak that is too low would make training look better than it is.
 */
#include <stdint.h>
#include <stdio.h>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "base/check.h"

enum { ROUNDS = 20 };

#define CHECK_CUDA(call) CHECK((call) == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cudaGetLastError()))
#define CHECK_CUBLAS(call) CHECK((call) == CUBLAS_STATUS_SUCCESS, "%s failed", #call)

/* Numbers of about 0.01 with random signs and digits, as bf16 and as float32. Not zeros: a GPU multiplies zeros at a
 * higher clock, which training does not reach. */
static void fill(void *device, size_t bytes)
{
    enum { WORDS = 1 << 20 };
    static uint32_t words[WORDS];
    uint64_t state = 1;
    for (int i = 0; i < WORDS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX generator */
        words[i] = ((uint32_t)(state >> 32) & 0x807f807fu) | 0x3c003c00u;
    }
    for (size_t done = 0; done < bytes; done += sizeof words) {
        size_t part = bytes - done < sizeof words ? bytes - done : sizeof words;
        CHECK_CUDA(cudaMemcpy((unsigned char *)device + done, words, part, cudaMemcpyHostToDevice));
    }
}

/* Multiplies two matrices of n by n ROUNDS times; returns operations per second, in 10^12. */
static double measure(cublasHandle_t handle, int n, cudaDataType_t type, cudaDataType_t output,
                      cublasComputeType_t compute)
{
    size_t bytes = (size_t)n * (size_t)n * sizeof(float);
    void *a = NULL, *b = NULL, *c = NULL;
    cudaEvent_t start, end;
    float one = 1, zero = 0, milliseconds = 0;
    CHECK_CUDA(cudaMalloc(&a, bytes));
    CHECK_CUDA(cudaMalloc(&b, bytes));
    CHECK_CUDA(cudaMalloc(&c, bytes));
    fill(a, bytes);
    fill(b, bytes);
    CHECK_CUDA(cudaEventCreate(&start));
    CHECK_CUDA(cudaEventCreate(&end));
    for (int round = 0; round < 2 * ROUNDS; round++) {
        if (round == ROUNDS) /* the first ones warm up */
            CHECK_CUDA(cudaEventRecord(start, 0));
        CHECK_CUBLAS(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, a, type, n, b, type, n, &zero, c,
                                  output, n, compute, CUBLAS_GEMM_DEFAULT));
    }
    CHECK_CUDA(cudaEventRecord(end, 0));
    CHECK_CUDA(cudaEventSynchronize(end));
    CHECK_CUDA(cudaEventElapsedTime(&milliseconds, start, end));
    cudaEventDestroy(start);
    cudaEventDestroy(end);
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
    return 2.0 * n * n * n * ROUNDS / ((double)milliseconds * 1e-3) / 1e12;
}

static double best(cublasHandle_t handle, cudaDataType_t type, cudaDataType_t output, cublasComputeType_t compute)
{
    static const int sizes[] = {4096, 8192, 12288};
    double highest = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double speed = measure(handle, sizes[i], type, output, compute);
        highest = speed > highest ? speed : highest;
    }
    return highest;
}

int main(void)
{
    struct cudaDeviceProp properties;
    cublasHandle_t handle;
    job_set_program("matmul_peak");
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess)
        die("no CUDA device: %s", cudaGetErrorString(cudaGetLastError()));
    CHECK_CUBLAS(cublasCreate(&handle));
    double to_fp32 = best(handle, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F);
    double to_bf16 = best(handle, CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F);
    double tf32 = best(handle, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32);
    double fp32 = best(handle, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F);
    printf("{\"gpu\": \"%s\", \"bf16_tflops\": %.2f, \"bf16_to_fp32_tflops\": %.2f, \"bf16_to_bf16_tflops\": %.2f, "
           "\"tf32_tflops\": %.2f, \"fp32_tflops\": %.2f}\n", properties.name, to_bf16 > to_fp32 ? to_bf16 : to_fp32,
           to_fp32, to_bf16, tf32, fp32);
    cublasDestroy(handle);
    return 0;
}
