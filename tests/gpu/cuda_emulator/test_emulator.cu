/* test_emulator.cu: the emulator finds the mistakes that it promises to find in kernels, launches and the order of
 * work. (Memory, matrix products: test_emulator_memory.cu. That it runs correct kernels as a GPU does, the kernels'
 * tests show: tests/common/test_device_*.) */
#include "test_emulator.h"

#include "backends/gpu/device_cuda_mma.h"

#include <cuda_pipeline.h>

#include <stdlib.h>

#include <thread>

/* ---- threads that do not meet ---- */

/* A barrier is missing: the neighbour at distance `step` may not have written its number yet. */
static __global__ void rotate_without_barrier(float *x, int step)
{
    __shared__ float part[64];
    part[threadIdx.x] = x[threadIdx.x];
    x[threadIdx.x] = part[(threadIdx.x + step) % 64];
}

static int wrong_numbers(const char *order, int step)
{
    int wrong = 0;
    setenv("LOCKSTEP_EMULATED_ORDER", order, 1);
    float *x = device_floats(counting(64));
    rotate_without_barrier<<<1, 64, 0, cudaStreamPerThread>>>(x, step);
    const std::vector<float> got = take_floats(x, 64);
    for (int i = 0; i < 64; i++)
        wrong += !(got[i] == (float)((i + step) % 64));
    unsetenv("LOCKSTEP_EMULATED_ORDER");
    return wrong;
}

/* Depending on the order, a missing barrier makes 63 numbers wrong, or only one. */
static void test_missing_barrier_shows_in_one_order(void **)
{
    assert_int_equal(wrong_numbers("forward", 1), 63);
    assert_int_equal(wrong_numbers("reverse", 1), 1);
    assert_int_equal(wrong_numbers("forward", 63), 1);
    assert_int_equal(wrong_numbers("reverse", 63), 63);
}

static __global__ void barrier_behind_return(void)
{
    if (threadIdx.x == 40)
        return;
    __syncthreads();
}

static __global__ void barriers_in_two_branches(void)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

static __global__ void shuffle_in_a_branch(float *x)
{
    float value = 1;
    if (threadIdx.x != 7)
        value = __shfl_xor_sync(0xffffffffu, value, 1);
    __syncthreads();
    x[threadIdx.x] = value;
}

static __global__ void shuffle_in_any_block(void)
{
    __shfl_sync(0xffffffffu, 1, 0);
}

static void run_diverging(void *which)
{
    const int kernel = *(int *)which;
    if (kernel == 0)
        barrier_behind_return<<<1, 64, 0, cudaStreamPerThread>>>();
    else if (kernel == 1)
        barriers_in_two_branches<<<1, 64, 0, cudaStreamPerThread>>>();
    else if (kernel == 2)
        shuffle_in_a_branch<<<1, 32, 0, cudaStreamPerThread>>>(device_floats(counting(32)));
    else
        shuffle_in_any_block<<<1, 48, 0, cudaStreamPerThread>>>();
}

static void test_divergence_is_reported(void **)
{
    const struct {
        int kernel;
        const char *message;
    } cases[] = {
        {0, "kernel barrier_behind_return, block (0, 0, 0): divergence: thread 0 waits at __syncthreads"},
        {0, "thread 40 has left the kernel"},
        {1, "divergence: thread 63 waits at __syncthreads"},
        {2, "thread 7 waits at __syncthreads"},
        {3, "in a block of 48 threads: its last warp lacks lanes"},
    };
    for (auto one : cases)
        expect_dies(run_diverging, &one.kernel, 1, one.message);
}

/* ---- copies to shared memory, tensor cores (what they compute: ../test_device_mma.cu) ---- */

static __global__ void copy_kernel(float *out, const float *x, bool wait)
{
    __shared__ __align__(16) float part[128];
    __pipeline_memcpy_async(&part[4 * threadIdx.x], x + 4 * threadIdx.x, 16);
    __pipeline_commit();
    for (int i = 0; i < 4; i++)
        out[4 * threadIdx.x + i] = part[4 * threadIdx.x + i];
    if (wait)
        __pipeline_wait_prior(0);
}

static __global__ void load_kernel(float *out)
{
    __shared__ __align__(16) __half tile[16][20]; /* its second row begins at 40 bytes */
    out[threadIdx.x] = (float)load_square(&tile[0][0], 20).quarter[0];
}

static void run_copy(void *wait)
{
    setenv("LOCKSTEP_EMULATED_LAZY", "1", 1);
    float *x = device_floats(counting(128)), *out = device_floats(counting(128));
    copy_kernel<<<1, 32, 0, cudaStreamPerThread>>>(out, x, wait != NULL);
    cudaStreamSynchronize(cudaStreamPerThread);
    std::vector<float> got(128);
    cudaMemcpyAsync(got.data(), out, 512, cudaMemcpyDeviceToHost, cudaStreamPerThread);
    cudaStreamSynchronize(cudaStreamPerThread);
    exit(isnan(got[0]) ? 3 : 0);
}

static void run_load(void *)
{
    load_kernel<<<1, 32, 0, cudaStreamPerThread>>>(device_floats(counting(32)));
}

static void test_copies_and_loads_are_checked(void **)
{
    bool wait = true;
    expect_dies(run_copy, &wait, 3, ""); /* read too early */
    expect_dies(run_copy, NULL, 1, "copies to shared memory that no thread has waited for");
    expect_dies(run_load, NULL, 1, "each row must begin at a multiple of 16 bytes");
}

/* ---- order ---- */

static void test_wrong_launches_are_refused(void **)
{
    float *x = device_floats(counting(4));
    add_kernel<<<0, 32, 0, cudaStreamPerThread>>>(x, 1, 4);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    add_kernel<<<1, 1025, 0, cudaStreamPerThread>>>(x, 1, 4);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    add_kernel<<<dim3(1, 65536), 32, 0, cudaStreamPerThread>>>(x, 1, 4);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    assert_true(take_floats(x, 4)[0] == 0);
}

static void test_events(void **)
{
    cudaEvent_t event;
    assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    assert_int_equal(cudaEventQuery(event), cudaSuccess); /* never recorded: nothing to wait for */
    assert_int_equal(cudaEventRecord(event, cudaStreamPerThread), cudaSuccess);
    assert_int_equal(cudaStreamWaitEvent(cudaStreamPerThread, event, 0), cudaSuccess);
    assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    assert_int_equal(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaEventRecord(event, cudaStreamPerThread), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaStreamWaitEvent(cudaStreamPerThread, NULL, 0), cudaErrorInvalidResourceHandle);
    assert_string_equal(cudaGetErrorName(cudaGetLastError()), "cudaErrorInvalidResourceHandle");
}

/* Elapsed times are those between events that were recorded for it, and have happened. (That the times are right:
 * test_device_ranges.c.) */
static void test_times(void **)
{
    cudaEvent_t events[2], without;
    float elapsed = 0;
    assert_int_equal(cudaEventCreateWithFlags(&without, cudaEventDisableTiming), cudaSuccess);
    for (cudaEvent_t &event : events)
        assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDefault), cudaSuccess);
    assert_int_equal(cudaEventElapsedTime(&elapsed, events[0], events[1]), cudaErrorInvalidResourceHandle);
    setenv("LOCKSTEP_EMULATED_LAZY", "1", 1);
    for (cudaEvent_t event : {events[0], events[1], without})
        cudaEventRecord(event, cudaStreamPerThread);
    assert_int_equal(cudaEventElapsedTime(&elapsed, events[0], events[1]), cudaErrorNotReady);
    cudaStreamSynchronize(cudaStreamPerThread);
    unsetenv("LOCKSTEP_EMULATED_LAZY");
    assert_int_equal(cudaEventElapsedTime(&elapsed, events[0], events[1]), cudaSuccess);
    assert_int_equal(cudaEventElapsedTime(&elapsed, events[0], without), cudaErrorInvalidResourceHandle);
    for (cudaEvent_t event : {events[0], events[1], without})
        assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    cudaGetLastError();
}

/* Lazy: a host that does not wait reads the old numbers; an event orders the work of two threads. */
static void test_lazy(void **)
{
    float *x = device_floats(counting(2)), *pinned;
    cudaMallocHost(&pinned, 8);
    setenv("LOCKSTEP_EMULATED_LAZY", "1", 1);
    add_kernel<<<1, 32, 0, cudaStreamPerThread>>>(x, 1, 2);
    cudaMemcpyAsync(pinned, x, 8, cudaMemcpyDeviceToHost, cudaStreamPerThread);
    const bool too_early = isnan(pinned[1]);
    assert_int_equal(cudaStreamQuery(cudaStreamPerThread), cudaErrorNotReady);
    cudaStreamSynchronize(cudaStreamPerThread);
    assert_int_equal(cudaStreamQuery(cudaStreamPerThread), cudaSuccess);
    assert_true(too_early && pinned[1] == 2);

    for (bool wait : {false, true}) {
        add_kernel<<<1, 32, 0, cudaStreamPerThread>>>(x, 1, 2);
        cudaEvent_t event;
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
        cudaEventRecord(event, cudaStreamPerThread);
        std::thread([=] {
            if (wait)
                cudaStreamWaitEvent(cudaStreamPerThread, event, 0);
            cudaEventDestroy(event); /* the wait remains */
            cudaMemcpyAsync(pinned, x, 8, cudaMemcpyDeviceToHost, cudaStreamPerThread);
            cudaStreamSynchronize(cudaStreamPerThread);
        }).join();
        assert_true(pinned[1] == (wait ? 4 : 2));
        cudaStreamSynchronize(cudaStreamPerThread);
    }
    unsetenv("LOCKSTEP_EMULATED_LAZY");
    cudaFreeHost(pinned);
    take_floats(x, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_missing_barrier_shows_in_one_order),
        cmocka_unit_test(test_divergence_is_reported),
        cmocka_unit_test(test_copies_and_loads_are_checked),
        cmocka_unit_test(test_wrong_launches_are_refused),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_lazy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
