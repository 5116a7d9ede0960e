/* test_emulator_memory.cu: the host cannot access the emulator's device memory, and wrong addresses are reported. Also:
 * wrong matrix products. (Threads, order: test_emulator.cu.) */
#include <cublas_v2.h>

#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "test_emulator.h"

#if defined(__SANITIZE_ADDRESS__)
#define OVERRUN_TEXT "AddressSanitizer"
#define FAR_OVERRUN_TEXT "AddressSanitizer"
#else
#define OVERRUN_TEXT "wrote behind the end of an allocation of 400 bytes"
#define FAR_OVERRUN_TEXT "wrote to memory that was free"
#endif

/* ---- memory ---- */

/* True if the function crashes instead of returning. Its output is ignored. */
static bool crashes(void (*function)(float *), float *argument)
{
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        FILE *nowhere = freopen("/dev/null", "w", stderr);
        (void)nowhere;
        signal(SIGSEGV, SIG_DFL);
        function(argument);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void write_to(float *memory)
{
    *(volatile float *)memory = 1;
}

static void read_from(float *memory)
{
    (void)*(volatile float *)memory;
}

static void test_host_cannot_touch_device_memory(void **)
{
    float host = 0, *memory = device_floats(counting(3));
    assert_false(crashes(write_to, &host));
    assert_true(crashes(write_to, memory));
    assert_true(crashes(read_from, memory + 2));
    add_kernel<<<1, 32, 0, cudaStreamPerThread>>>(memory, 1, 3);
    assert_true(crashes(read_from, memory)); /* closed again after a kernel */
    assert_true(take_floats(memory, 3)[2] == 3);
    assert_true(crashes(read_from, memory)); /* and when it is free */
}

static void run_overrun(void *)
{
    float *x = device_floats(counting(100));
    add_kernel<<<1, 128, 0, cudaStreamPerThread>>>(x, 1, 101);
}

static __global__ void write_kernel(float *x, int64_t index)
{
    x[index] = 1;
}

/* Far behind the end: beyond the guard, where memory was free before and is again. */
static void run_far_overrun(void *)
{
    float *x = device_floats(counting(100)), *y = device_floats(counting(10000)), *z = device_floats(counting(1));
    cudaFree(y);
    write_kernel<<<1, 1, 0, cudaStreamPerThread>>>(x, 1000);
    device_floats(counting(9000));
    take_floats(z, 1);
}

static void run_before_start(void *)
{
    float *x = device_floats(counting(100));
    add_kernel<<<1, 32, 0, cudaStreamPerThread>>>(x - 1, 1, 1);
}

static void run_host_pointer(void *)
{
    float x = 0;
    add_kernel<<<1, 32, 0, cudaStreamPerThread>>>(&x, 1, 1);
}

static void test_wrong_addresses_are_reported(void **)
{
    expect_dies(run_overrun, NULL, 1, OVERRUN_TEXT);
    expect_dies(run_far_overrun, NULL, 1, FAR_OVERRUN_TEXT);
    expect_dies(run_before_start, NULL, 1, "kernel add_kernel: argument 1 is");
    expect_dies(run_host_pointer, NULL, 1, "kernel add_kernel: argument 1 is");
}

static __global__ void read_shared_kernel(float *out)
{
    __shared__ float never_written[32];
    __syncthreads();
    out[threadIdx.x] = never_written[threadIdx.x];
    __syncthreads();
    never_written[threadIdx.x] = 0; /* the next block must not read it */
}

static void test_fresh_memory_is_nan(void **)
{
    float *memory;
    for (size_t bytes : {4, 2048, 1000004}) {
        cudaMalloc(&memory, bytes);
        for (float value : take_floats(memory, bytes / 4))
            assert_true(isnan(value));
    }
    for (int launch = 0; launch < 2; launch++) {
        float *out = device_floats(counting(32));
        read_shared_kernel<<<3, 32, 0, cudaStreamPerThread>>>(out);
        for (float value : take_floats(out, 32))
            assert_true(isnan(value));
    }
}

static void test_memory_runs_out_and_comes_back(void **)
{
    char *first, *second, *third;
    size_t free_before, free_after, total;
    cudaMemGetInfo(&free_before, &total);
    assert_int_equal(cudaMalloc(&first, total), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaSuccess); /* asked once, it is forgotten */
    assert_int_equal(cudaMalloc(&first, 1000), cudaSuccess);
    assert_int_equal(cudaMalloc(&second, 1000), cudaSuccess);
    assert_int_equal(cudaFree(first), cudaSuccess);
    assert_int_equal(cudaMalloc(&third, 500), cudaSuccess);
    assert_ptr_equal(third, first); /* the gap is used again */
    cudaFree(second);
    cudaFree(third);
    assert_int_equal(cudaFree(third), cudaErrorInvalidValue);
    cudaMemGetInfo(&free_after, &total);
    assert_int_equal(free_before, free_after);
}

static cudaError_t copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, cudaStreamPerThread);
}

static void test_wrong_copies_are_refused(void **)
{
    float host[8] = {0}, *memory = device_floats(counting(7));
    assert_int_equal(copy(host, memory, 32, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(copy(host, memory + 3, 16, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(copy(memory, host, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    assert_int_equal(copy(memory, host, 4, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    assert_int_equal(copy(memory, host, 4, cudaMemcpyDefault), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(host, 0, 4, cudaStreamPerThread), cudaErrorInvalidValue);
    assert_int_equal(cudaMemsetAsync(memory + 6, 0, 8, cudaStreamPerThread), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(host, memory, 4, cudaMemcpyDeviceToHost, 0), cudaErrorInvalidResourceHandle);
    cudaPointerAttributes attributes;
    float *pinned;
    cudaMallocHost(&pinned, 12);
    cudaPointerGetAttributes(&attributes, memory + 6);
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
    cudaPointerGetAttributes(&attributes, pinned + 2);
    assert_int_equal(attributes.type, cudaMemoryTypeHost);
    cudaPointerGetAttributes(&attributes, host);
    assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
    assert_int_equal(cudaFreeHost(host), cudaErrorInvalidValue);
    assert_int_equal(cudaFreeHost(pinned), cudaSuccess);
    take_floats(memory, 7);
    cudaGetLastError();
}

/* ---- matrix products ---- */

/* a (3, 5) and b (5, 4) of the product (3, 4). (What right ones compute: operations_layers.c.) */
static void test_wrong_products_are_refused(void **)
{
    cublasHandle_t handle;
    const float one = 1;
    float *a = device_floats(counting(15)), *b = device_floats(counting(20)), *c = device_floats(counting(12));
    cublasCreate(&handle);
    cublasSetStream(handle, cudaStreamPerThread);
    assert_int_equal(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 3, 4, 5, &one, a, 3, b, 5, &one, c, 3),
                     CUBLAS_STATUS_SUCCESS);
    const struct {
        cublasOperation_t op_a, op_b;
        int lda, ldb, ldc;
    } wrong[] = {
        {CUBLAS_OP_N, CUBLAS_OP_N, 2, 5, 3}, /* rows that overlap */
        {CUBLAS_OP_T, CUBLAS_OP_N, 4, 5, 3}, {CUBLAS_OP_N, CUBLAS_OP_T, 3, 3, 3}, {CUBLAS_OP_N, CUBLAS_OP_N, 3, 5, 2},
        {CUBLAS_OP_N, CUBLAS_OP_N, 4, 5, 3}, /* behind the memory's end */
        {CUBLAS_OP_N, CUBLAS_OP_N, 3, 6, 3}, {CUBLAS_OP_N, CUBLAS_OP_T, 3, 5, 3}, {CUBLAS_OP_N, CUBLAS_OP_N, 3, 5, 4},
    };
    for (auto w : wrong)
        assert_int_equal(cublasSgemm(handle, w.op_a, w.op_b, 3, 4, 5, &one, a, w.lda, b, w.ldb, &one, c, w.ldc),
                         CUBLAS_STATUS_INVALID_VALUE);
    for (float *memory : {a, b, c})
        assert_int_equal(cudaFree(memory), cudaSuccess);
    assert_int_equal(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(cublasDestroy(handle), CUBLAS_STATUS_NOT_INITIALIZED);
}

/* One thread multiplies, the other copies: device memory is open during both, and neither may close it while the other
 * uses it. */
static void test_products_beside_copies(void **)
{
    const int n = 64;
    const float one = 1, zero = 0;
    float *a = device_floats(std::vector<float>(n * n, 1)), *c = device_floats(counting(n * n));
    std::thread copying([=] {
        for (int i = 0; i < 300; i++)
            take_floats(device_floats(counting(n * n)), n * n);
    });
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSetStream(handle, cudaStreamPerThread);
    for (int i = 0; i < 300; i++)
        assert_int_equal(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, a, n, a, n, &zero, c, n),
                         CUBLAS_STATUS_SUCCESS);
    copying.join();
    assert_true(take_floats(c, n * n)[n] == n);
    take_floats(a, n * n);
    cublasDestroy(handle);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_cannot_touch_device_memory),
        cmocka_unit_test(test_wrong_addresses_are_reported),
        cmocka_unit_test(test_fresh_memory_is_nan),
        cmocka_unit_test(test_memory_runs_out_and_comes_back),
        cmocka_unit_test(test_wrong_copies_are_refused),
        cmocka_unit_test(test_wrong_products_are_refused),
        cmocka_unit_test(test_products_beside_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
