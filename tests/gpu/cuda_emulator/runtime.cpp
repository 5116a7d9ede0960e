/* runtime.cpp: the functions of the CUDA runtime API that the project uses: devices, memory, launches. (Streams,
 * events: streams.cpp.)
 */
#include "emulator.h"

#include <stdio.h>
#include <stdlib.h>

#include <map>

namespace
{

std::map<void *, size_t> host_memory;
thread_local int current_device = 0;

int device_count()
{
    return (int)emulator_setting("LOCKSTEP_EMULATED_DEVICES", 1);
}

int capability()
{
    return (int)emulator_setting("LOCKSTEP_EMULATED_CAPABILITY", 80);
}

/* Submits work other than kernels, with device memory accessible to it. */
void submit_on_memory(const char *what, std::function<void()> work)
{
    stream_submit([=] {
        memory_open();
        work();
        memory_close(what);
    });
}

} // namespace

long emulator_setting(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text != nullptr && *text != '\0' ? atol(text) : otherwise;
}

/* ---- devices ---- */

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = device_count();
    return error_result(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    if (device_count() == 0)
        return error_result(cudaErrorNoDevice);
    if (device < 0 || device >= device_count())
        return error_result(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return error_result(device_count() > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    if (device < 0 || device >= device_count())
        return error_result(cudaErrorInvalidDevice);
    *properties = cudaDeviceProp{"emulated on the CPU", {{0}}, memory_size(), 1, capability() / 10, capability() % 10};
    properties->uuid.bytes[15] = (char)(device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    if (device < 0 || device >= device_count())
        return error_result(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = capability() / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = capability() % 10; break;
    }
    return cudaSuccess;
}

/* ---- memory ---- */

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    Guard guard(emulator_mutex);
    if (device_count() == 0)
        return error_result(cudaErrorNoDevice);
    *memory = bytes > 0 ? memory_allocate(bytes) : nullptr;
    return error_result(bytes > 0 && *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

/* Does not wait: queued work that uses the memory will find it freed. */
cudaError_t cudaFree(void *memory)
{
    Guard guard(emulator_mutex);
    if (memory != nullptr && !memory_release(memory))
        return error_explained(cudaErrorInvalidValue, "cudaFree", "no allocation begins there: freed twice?");
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **memory, size_t bytes)
{
    Guard guard(emulator_mutex);
    *memory = nullptr;
    if (bytes > 0 && posix_memalign(memory, 4096, bytes) != 0)
        return error_result(cudaErrorMemoryAllocation);
    if (bytes > 0) {
        memset(*memory, 0xff, bytes); /* NaN: it is not zeroed */
        host_memory[*memory] = bytes;
    }
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    Guard guard(emulator_mutex);
    streams_run_all();
    if (memory == nullptr)
        return cudaSuccess;
    if (host_memory.erase(memory) == 0)
        return error_explained(cudaErrorInvalidValue, "cudaFreeHost", "cudaMallocHost never gave that pointer");
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    Guard guard(emulator_mutex);
    *free_bytes = memory_free_bytes();
    *total = memory_size();
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer)
{
    Guard guard(emulator_mutex);
    void *p = (void *)pointer;
    *attributes = cudaPointerAttributes{cudaMemoryTypeUnregistered, -1, nullptr, p};
    auto next = host_memory.upper_bound(p);
    if (memory_is_device(pointer))
        *attributes = cudaPointerAttributes{cudaMemoryTypeDevice, current_device, p, nullptr};
    else if (next != host_memory.begin() && (char *)p < (char *)std::prev(next)->first + std::prev(next)->second)
        *attributes = cudaPointerAttributes{cudaMemoryTypeHost, current_device, p, p};
    return cudaSuccess;
}

/* NULL: `bytes` bytes at `pointer` are on the side that a copy expects. Otherwise the reason why not. */
static const char *wrong_side(const void *pointer, size_t bytes, bool wants_device)
{
    if (memory_is_device(pointer) != wants_device)
        return wants_device ? "a pointer that must be device memory is not"
                            : "a pointer that must be host memory is not";
    if (wants_device && memory_bytes_behind(pointer) < (long)bytes)
        return "more bytes than there are up to the end of the allocation";
    return nullptr;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream)
{
    Guard guard(emulator_mutex);
    if (!stream_is_own(stream))
        return error_explained(cudaErrorInvalidResourceHandle, "cudaMemcpyAsync",
                               "only cudaStreamPerThread is emulated");
    if (bytes == 0)
        return cudaSuccess;
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (kind == cudaMemcpyDefault) {
        to_device = memory_is_device(to);
        from_device = memory_is_device(from);
    }
    const char *wrong = wrong_side(to, bytes, to_device);
    if (wrong == nullptr)
        wrong = wrong_side(from, bytes, from_device);
    if (wrong != nullptr)
        return error_explained(cudaErrorInvalidValue, "cudaMemcpyAsync", wrong);
    submit_on_memory("cudaMemcpyAsync", [=] { memcpy(to, from, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream)
{
    Guard guard(emulator_mutex);
    if (!stream_is_own(stream))
        return error_explained(cudaErrorInvalidResourceHandle, "cudaMemsetAsync",
                               "only cudaStreamPerThread is emulated");
    const char *wrong = bytes > 0 ? wrong_side(memory, bytes, true) : nullptr;
    if (wrong != nullptr)
        return error_explained(cudaErrorInvalidValue, "cudaMemsetAsync", wrong);
    submit_on_memory("cudaMemsetAsync", [=] { memset(memory, value, bytes); });
    return cudaSuccess;
}

/* ---- kernels ---- */

void emulator_check_pointer(const char *kernel, int argument, const void *pointer)
{
    Guard guard(emulator_mutex);
    if (pointer != nullptr && memory_bytes_behind(pointer) < 0)
        emulator_fail("kernel %s: argument %d is %p, which points into no allocation of device memory", kernel,
                      argument + 1, pointer);
}

void emulator_launch(const char *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                     std::function<void()> thread)
{
    Guard guard(emulator_mutex);
    if (shared != 0 || !stream_is_own(stream))
        emulator_fail("kernel %s: launches must be <<<grid, block, 0, cudaStreamPerThread>>>", kernel);
    const bool no_grid =
        grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535;
    const bool no_block = block.x == 0 || block.y == 0 || block.z == 0 || block.x > 1024 || block.y > 1024 ||
                          block.z > 64 || block.x * block.y * block.z > 1024;
    if (no_grid || no_block) {
        fprintf(stderr, "emulated CUDA: kernel %s: no GPU runs (%u, %u, %u) blocks of (%u, %u, %u) threads\n", kernel,
                grid.x, grid.y, grid.z, block.x, block.y, block.z);
        error_result(cudaErrorInvalidConfiguration);
        return;
    }
    submit_on_memory(kernel, [=] { fibers_run(kernel, grid, block, thread); });
}
