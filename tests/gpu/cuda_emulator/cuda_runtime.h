/* cuda_runtime.h: the emulator's version of CUDA's header: the part of the language and of the runtime API that the
 * project uses. emulator.h says how it works. */
#ifndef LOCKSTEP_TESTS_CUDA_RUNTIME_H
#define LOCKSTEP_TESTS_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>
#include <type_traits>

/* ---- the language ---- */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
/* One block runs at a time, so a static variable can be its shared memory. All these variables are in one section, so
 * that they can be filled with NaN for every block. (Except in templates, where gcc ignores the attribute.) */
#define __shared__ static __attribute__((section("emulated_shared")))

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
static inline float2 make_float2(float x, float y)
{
    return float2{x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{x, y, z, w};
}

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}

/* ---- barriers and exchanges. Error messages name the place of the call. ---- */

struct EmulatedPlace {
    const char *call, *file;
    int line;
};
void emulator_meet_block(EmulatedPlace place);
void emulator_meet_warp(unsigned mask, EmulatedPlace place);
/* Each lane of a warp passes a value. Returns the values of all lanes, EMULATED_SLOT bytes from one to the next, valid
 * until this lane's next exchange. */
enum { EMULATED_SLOT = 48 };
const char *emulator_exchange(const void *value, size_t bytes, unsigned mask, EmulatedPlace place);
/* Replaces *value by the value that lane `source` of this warp passes. */
void emulator_shuffle(void *value, size_t bytes, int source, unsigned mask, EmulatedPlace place);
int emulator_lane();

static inline void __syncthreads(const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    emulator_meet_block(EmulatedPlace{"__syncthreads", file, line});
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, const char *file = __builtin_FILE(),
                              int line = __builtin_LINE())
{
    emulator_meet_warp(mask, EmulatedPlace{"__syncwarp", file, line});
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    emulator_shuffle(&value, sizeof value, source & 31, mask, EmulatedPlace{"__shfl_sync", file, line});
    return value;
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, const char *file = __builtin_FILE(),
                   int line = __builtin_LINE())
{
    const int lane = emulator_lane(), source = lane + (int)delta;
    emulator_shuffle(&value, sizeof value, source < 32 ? source : lane, mask,
                     EmulatedPlace{"__shfl_down_sync", file, line});
    return value;
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, const char *file = __builtin_FILE(), int line = __builtin_LINE())
{
    emulator_shuffle(&value, sizeof value, (emulator_lane() ^ bits) & 31, mask,
                     EmulatedPlace{"__shfl_xor_sync", file, line});
    return value;
}

/* ---- the runtime API ---- */

typedef enum cudaError {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchTimeout = 702,
    cudaErrorMisalignedAddress = 716,
    cudaErrorLaunchFailure = 719
} cudaError_t;
enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};
enum cudaMemoryType { cudaMemoryTypeUnregistered, cudaMemoryTypeHost, cudaMemoryTypeDevice, cudaMemoryTypeManaged };
enum cudaDeviceAttr {
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76
};
struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    size_t totalGlobalMem;
    int multiProcessorCount, major, minor;
};
struct cudaPointerAttributes {
    enum cudaMemoryType type;
    int device;
    void *devicePointer, *hostPointer;
};
typedef struct EmulatedStream *cudaStream_t;
typedef struct EmulatedEvent *cudaEvent_t;
#define cudaStreamPerThread ((cudaStream_t)2)
#define cudaEventDefault 0u
#define cudaEventDisableTiming 2u

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);

cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream = 0);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream = 0);

cudaError_t cudaDeviceSynchronize();
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags = 0);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream = 0);
cudaError_t cudaEventQuery(cudaEvent_t event);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);

cudaError_t cudaGetLastError();
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

/* As in CUDA's own header: cudaMalloc(&p, bytes) for a pointer of any type. */
template <typename T> cudaError_t cudaMalloc(T **memory, size_t bytes)
{
    return cudaMalloc((void **)memory, bytes);
}
template <typename T> cudaError_t cudaMallocHost(T **memory, size_t bytes)
{
    return cudaMallocHost((void **)memory, bytes);
}

/* ---- launches: transform.sh makes emulated_launch("k", k, grid, block, 0, stream)(arguments) out of
 * k<<<grid, block, 0, stream>>>(arguments) ---- */

void emulator_launch(const char *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                     std::function<void()> thread);
void emulator_check_pointer(const char *kernel, int argument, const void *pointer);

template <typename... Parameters> struct EmulatedLaunch {
    const char *name;
    void (*kernel)(Parameters...);
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;

    void operator()(Parameters... arguments) const
    {
        int argument = 0;
        (check_argument(argument++, arguments), ...);
        auto run = kernel;
        emulator_launch(name, grid, block, shared, stream, [=] { run(arguments...); });
    }

    template <typename T> void check_argument(int argument, const T &value) const
    {
        if constexpr (std::is_pointer_v<T>)
            emulator_check_pointer(name, argument, value);
        (void)argument, (void)value;
    }
};

template <typename... Parameters>
EmulatedLaunch<Parameters...> emulated_launch(const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block,
                                              size_t shared = 0, cudaStream_t stream = 0)
{
    return EmulatedLaunch<Parameters...>{name, kernel, grid, block, shared, stream};
}

#endif
