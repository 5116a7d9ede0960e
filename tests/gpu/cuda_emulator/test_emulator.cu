/* test_emulator.cu: the emulator runs the threads of a kernel as a GPU does, and finds the mistakes that it promises to
 * find. (Memory, matrix products: test_emulator_memory.cu.) */
#include "test_emulator.h"

#include "gpu/device_cuda_mma.h"

#include <cuda_pipeline.h>

#include <stdlib.h>

#include <thread>

/* ---- threads that meet ---- */

static void test_a_loop(void **)
{
    std::vector<float> x = counting(1000);
    float *memory = device_floats(x);
    add_kernel<<<4, 256, 0, cudaStreamPerThread>>>(memory, 0.5f, 1000);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    const std::vector<float> sum = take_floats(memory, 1000);
    for (float &value : x)
        value += 0.5f;
    expect_close("x", sum.data(), x.data(), 1000, 0, 0, "does every thread of every block run, and once?");
}

/* Each block sums its 128 numbers: halves of a tree, with a barrier between them. */
static __global__ void tree_kernel(float *sums, const float *x)
{
    __shared__ float part[128];
    part[threadIdx.x] = x[blockIdx.x * 128 + threadIdx.x];
    for (int distance = 64; distance > 0; distance /= 2) {
        __syncthreads();
        if (threadIdx.x < (unsigned)distance)
            part[threadIdx.x] += part[threadIdx.x + distance];
    }
    if (threadIdx.x == 0)
        sums[blockIdx.x] = part[0];
}

static void test_barrier(void **)
{
    float *x = device_floats(counting(640)), *sums = device_floats(counting(5));
    tree_kernel<<<5, 128, 0, cudaStreamPerThread>>>(sums, x);
    const std::vector<float> got = take_floats(sums, 5);
    for (int block = 0; block < 5; block++)
        assert_true(got[block] == 128 * 128 * block + 127 * 128 / 2);
    take_floats(x, 640);
}

/* Blocks of two dimensions; a warp is 32 threads in the order of x, then y. */
template <typename Number> static __global__ void shuffle_kernel(float *out)
{
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    Number sum = (Number)thread;
    for (int distance = 16; distance > 0; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    const Number next = __shfl_down_sync(0xffffffffu, (Number)thread, 1);
    const Number fifth = __shfl_sync(0xffffffffu, (Number)thread, 5);
    __syncwarp();
    float *to = out + ((blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x * blockDim.y + thread) * 3;
    to[0] = (float)sum;
    to[1] = (float)next;
    to[2] = (float)fifth;
}

static void check_shuffles(const std::vector<float> &got)
{
    for (int i = 0; i < 6 * 96; i++) {
        const int thread = i % 96, first = thread / 32 * 32;
        assert_true(got[i * 3] == 32 * first + 31 * 32 / 2);
        assert_true(got[i * 3 + 1] == (thread % 32 == 31 ? thread : thread + 1)); /* the last lane keeps its own */
        assert_true(got[i * 3 + 2] == first + 5);
    }
}

static void test_shuffles(void **)
{
    float *out = device_floats(counting(6 * 96 * 3));
    shuffle_kernel<float><<<dim3(3, 2), dim3(16, 6), 0, cudaStreamPerThread>>>(out);
    check_shuffles(take_floats(out, 6 * 96 * 3));
    out = device_floats(counting(6 * 96 * 3));
    shuffle_kernel<double><<<dim3(3, 2), dim3(16, 6), 0, cudaStreamPerThread>>>(out);
    check_shuffles(take_floats(out, 6 * 96 * 3));
}

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

/* ---- threads that do not meet ---- */

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

static void run_return(void *)
{
    barrier_behind_return<<<1, 64, 0, cudaStreamPerThread>>>();
}

static void run_branches(void *)
{
    barriers_in_two_branches<<<1, 64, 0, cudaStreamPerThread>>>();
}

static void run_shuffle(void *)
{
    float *x = device_floats(counting(32));
    shuffle_in_a_branch<<<1, 32, 0, cudaStreamPerThread>>>(x);
}

static void run_half_a_warp(void *)
{
    shuffle_in_any_block<<<1, 48, 0, cudaStreamPerThread>>>();
}

static void test_divergence_is_reported(void **)
{
    expect_dies(run_return, NULL, 1,
                "kernel barrier_behind_return, block (0, 0, 0): divergence: thread 0 waits at "
                "__syncthreads");
    expect_dies(run_return, NULL, 1, "thread 40 has left the kernel");
    expect_dies(run_branches, NULL, 1, "divergence: thread 63 waits at __syncthreads");
    expect_dies(run_shuffle, NULL, 1, "thread 7 waits at __syncthreads");
    expect_dies(run_half_a_warp, NULL, 1, "in a block of 48 threads: its last warp lacks lanes");
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

/* An event's time is when the stream reaches it, not when the host asks. */
static void test_times(void **)
{
    cudaEvent_t events[3], without;
    float first = 0, second = 0, both = 0;
    float *x = device_floats(counting(2));
    assert_int_equal(cudaEventCreateWithFlags(&without, cudaEventDisableTiming), cudaSuccess);
    for (cudaEvent_t &event : events)
        assert_int_equal(cudaEventCreateWithFlags(&event, cudaEventDefault), cudaSuccess);
    assert_int_equal(cudaEventElapsedTime(&first, events[0], events[1]), cudaErrorInvalidResourceHandle);
    setenv("LOCKSTEP_EMULATED_LAZY", "1", 1);
    cudaEventRecord(events[0], cudaStreamPerThread);
    unsetenv("LOCKSTEP_EMULATED_LAZY");
    std::thread([=] { cudaEventRecord(events[1], cudaStreamPerThread); }).join(); /* its stream comes by at once */
    cudaStreamSynchronize(cudaStreamPerThread);
    assert_int_equal(cudaEventElapsedTime(&first, events[0], events[1]), cudaSuccess);
    assert_true(first < 0);

    setenv("LOCKSTEP_EMULATED_LAZY", "1", 1);
    for (cudaEvent_t event : events) {
        add_kernel<<<1, 32, 0, cudaStreamPerThread>>>(x, 1, 2);
        cudaEventRecord(event, cudaStreamPerThread);
    }
    cudaEventRecord(without, cudaStreamPerThread);
    cudaEventSynchronize(events[1]);
    assert_int_equal(cudaEventElapsedTime(&first, events[0], events[1]), cudaSuccess);
    assert_int_equal(cudaEventElapsedTime(&both, events[0], events[2]), cudaErrorNotReady);
    cudaStreamSynchronize(cudaStreamPerThread);
    unsetenv("LOCKSTEP_EMULATED_LAZY");
    cudaEventElapsedTime(&second, events[1], events[2]);
    cudaEventElapsedTime(&both, events[0], events[2]);
    assert_true(first > 0 && second > 0 && fabsf(both - first - second) <= 1e-6f * both);
    assert_int_equal(cudaEventElapsedTime(&both, events[0], without), cudaErrorInvalidResourceHandle);
    for (cudaEvent_t event : {events[0], events[1], events[2], without})
        assert_int_equal(cudaEventDestroy(event), cudaSuccess);
    take_floats(x, 2);
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

static void test_devices(void **)
{
    int count = -1;
    setenv("LOCKSTEP_EMULATED_DEVICES", "2", 1);
    assert_int_equal(cudaGetDeviceCount(&count), cudaSuccess);
    assert_int_equal(count, 2);
    assert_int_equal(cudaSetDevice(1), cudaSuccess);
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    setenv("LOCKSTEP_EMULATED_DEVICES", "0", 1);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    assert_int_equal(count, 0);
    unsetenv("LOCKSTEP_EMULATED_DEVICES");
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    cudaGetLastError();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_loop),
        cmocka_unit_test(test_barrier),
        cmocka_unit_test(test_shuffles),
        cmocka_unit_test(test_missing_barrier_shows_in_one_order),
        cmocka_unit_test(test_divergence_is_reported),
        cmocka_unit_test(test_copies_and_loads_are_checked),
        cmocka_unit_test(test_wrong_launches_are_refused),
        cmocka_unit_test(test_events),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_lazy),
        cmocka_unit_test(test_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
