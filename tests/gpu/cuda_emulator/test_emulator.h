/* test_emulator.h: shared by the emulator's tests: float32 numbers in device memory, and a kernel. */
#ifndef LOCKSTEP_TESTS_TEST_EMULATOR_H
#define LOCKSTEP_TESTS_TEST_EMULATOR_H

#include <cuda_runtime.h>

#include <vector>

extern "C" {
#include "expect.h"
}

static float *device_floats(const std::vector<float> &values)
{
    float *memory;
    assert_int_equal(cudaMalloc(&memory, values.size() * sizeof(float)), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(float), cudaMemcpyHostToDevice,
                                     cudaStreamPerThread),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(cudaStreamPerThread), cudaSuccess);
    return memory;
}

/* Copies back, and frees. */
static std::vector<float> take_floats(float *memory, size_t count)
{
    std::vector<float> values(count);
    assert_int_equal(
        cudaMemcpyAsync(values.data(), memory, count * sizeof(float), cudaMemcpyDeviceToHost, cudaStreamPerThread),
        cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(cudaStreamPerThread), cudaSuccess);
    assert_int_equal(cudaFree(memory), cudaSuccess);
    return values;
}

static std::vector<float> counting(size_t count)
{
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++)
        values[i] = (float)i;
    return values;
}

static __global__ void add_kernel(float *x, float y, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] += y;
}

#endif
