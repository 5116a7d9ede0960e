/* device_cuda.cu: an NVIDIA GPU: the device, its events and its memory. The kernels: device_cuda_elementwise.cu, linear in
 * device_cuda_layers.cu, layernorm and embedding in device_cuda_layernorm.cu, attention in device_cuda_attention.cu,
 * losses, optimizers and the rest in device_cuda_update.cu. Ranges: device_cuda_ranges.cu. Rules for all: device_cuda.h.
 */
#include "backends/gpu/device_cuda.h"

#include <stdio.h>
#include <string.h>

/* ---- the device ---- */

static int device_number = 0; /* among the devices that this process sees */
static char description[320] = "cuda";
static char identity[64] = "";
static bool tf32_allowed = false;

/* The usual remedy, or "". */
static const char *hint_for(cudaError_t status)
{
    switch (status) {
    case cudaErrorMemoryAllocation:
        return "; the GPU's memory is full: try a smaller --batch-size, or --accumulate in stage 4";
    case cudaErrorNoKernelImageForDevice:
        return "; this program was built for other GPUs: configure with -DCMAKE_CUDA_ARCHITECTURES=native";
    case cudaErrorInsufficientDriver:
        return "; the driver is older than this CUDA: nvidia-smi shows which CUDA it supports";
    case cudaErrorIllegalAddress: case cudaErrorMisalignedAddress:
        return "; a kernel, perhaps an earlier one, read or wrote where it must not: compute-sanitizer says which";
    case cudaErrorLaunchFailure: case cudaErrorLaunchTimeout:
        return "; it may come from an earlier kernel: CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer finds it";
    default:
        return "";
    }
}

static const char *hint_for_cublas(cublasStatus_t status)
{
    const bool in_a_kernel = status == CUBLAS_STATUS_EXECUTION_FAILED || status == CUBLAS_STATUS_INTERNAL_ERROR;
    if (status == CUBLAS_STATUS_NOT_INITIALIZED)
        return "; cuBLAS could not start: the GPU's memory may be full, or cuBLAS and the driver do not match";
    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        return hint_for(cudaErrorMemoryAllocation);
    return in_a_kernel ? hint_for(cudaErrorLaunchFailure) : "";
}

void check_cuda(cudaError_t status, const char *call, const char *file, int line)
{
    if (status != cudaSuccess)
        fault_at(file, line, "CUDA: %s: %s (%s)%s", call, cudaGetErrorString(status), cudaGetErrorName(status),
                 hint_for(status));
}

void check_cublas(cublasStatus_t status, const char *call, const char *file, int line)
{
    if (status != CUBLAS_STATUS_SUCCESS)
        fault_at(file, line, "cuBLAS: %s: %s (%s)%s", call, cublasGetStatusString(status), cublasGetStatusName(status),
                 hint_for_cublas(status));
}

void device_choose_kernels(char **argv)
{
    (void)argv;
}

void device_init(int local_rank, int threads)
{
    (void)threads; /* only the CPU has BLAS threads */
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    if (status != cudaSuccess || devices == 0)
        die("no CUDA device (%s): `nvidia-smi` must list one and CUDA_VISIBLE_DEVICES must not hide it; the CPU "
            "program is `train`", status != cudaSuccess ? cudaGetErrorString(status) : "the driver finds none");
    device_number = local_rank % devices;
    device_init_thread();

    cudaDeviceProp properties;
    CHECK_CUDA(cudaGetDeviceProperties(&properties, device_number));
    snprintf(description, sizeof description, "cuda, %s, compute capability %d.%d", properties.name, properties.major,
             properties.minor);
    for (size_t i = 0; i < sizeof properties.uuid.bytes; i++)
        snprintf(identity + 2 * i, sizeof identity - 2 * i, "%02x", (unsigned char)properties.uuid.bytes[i]);
}

void device_init_thread(void)
{
    CHECK_CUDA(cudaSetDevice(device_number));
}

DeviceKind device_kind(void)
{
    return DEVICE_CUDA;
}

const char *device_description(void)
{
    return description;
}

const char *device_identity(void)
{
    return identity;
}

void device_allow_tf32(bool allow)
{
    int major = 0;
    CHECK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_number));
    if (allow && major < 8)
        die("--tf32: this GPU has none (%s; TF32 came with 8.0); leave the flag out", description);
    tf32_allowed = allow;
}

bool cuda_tf32_allowed(void)
{
    return tf32_allowed;
}

void device_synchronize(void)
{
    CHECK_CUDA(cudaStreamSynchronize(cudaStreamPerThread));
}

/* CUDA stores "not ready" as the thread's last error. Clear it, or the check after the next launch would report it. */
bool device_is_idle(void)
{
    const cudaError_t status = cudaStreamQuery(cudaStreamPerThread);
    if (status != cudaErrorNotReady)
        CHECK_CUDA(status);
    else
        cudaGetLastError();
    return status == cudaSuccess;
}

/* A DeviceEvent is a cudaEvent_t; the cast hides CUDA's type from device.h. */
DeviceEvent *device_event_record(void)
{
    cudaEvent_t event;
    CHECK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    CHECK_CUDA(cudaEventRecord(event, cudaStreamPerThread));
    return (DeviceEvent *)event;
}

void device_event_wait(DeviceEvent *event)
{
    CHECK_CUDA(cudaStreamWaitEvent(cudaStreamPerThread, (cudaEvent_t)event, 0)); /* the GPU waits, not this thread */
    CHECK_CUDA(cudaEventDestroy((cudaEvent_t)event)); /* CUDA frees it only after the wait */
}

/* ---- memory ---- */

size_t device_alignment(void)
{
    return 256; /* cuBLAS's choice of kernels depends on alignment up to 256; cudaMalloc() guarantees it */
}

void *device_alloc(size_t bytes)
{
    void *memory = NULL;
    CHECK_CUDA(cudaMalloc(&memory, bytes > 0 ? bytes : 1));
    CHECK_CUDA(cudaMemsetAsync(memory, 0, bytes, cudaStreamPerThread));
    device_synchronize(); /* so that every thread sees the zeros, not only this one */
    return memory;
}

void device_free(void *memory)
{
    if (memory == NULL)
        return;
    device_synchronize(); /* queued kernels may use it, and cudaFree() does not guarantee to wait for them */
    CHECK_CUDA(cudaFree(memory));
}

/* Both copies between host and device wait until they are done, because the caller may read or reuse `host` at once. */
void device_to_host(void *host, const void *device, size_t bytes)
{
    CHECK_CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cudaStreamPerThread));
    device_synchronize();
}

void device_from_host(void *device, const void *host, size_t bytes)
{
    CHECK_CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cudaStreamPerThread));
    device_synchronize();
}

void device_copy(void *to, const void *from, size_t bytes)
{
    CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cudaStreamPerThread));
}

void device_zero(void *memory, size_t bytes)
{
    CHECK_CUDA(cudaMemsetAsync(memory, 0, bytes, cudaStreamPerThread));
}

bool device_owns(const void *memory)
{
    if (memory == NULL)
        return false;
    cudaPointerAttributes attributes;
    CHECK_CUDA(cudaPointerGetAttributes(&attributes, memory));
    return attributes.type == cudaMemoryTypeDevice;
}

/* Pinned memory: the system never moves it, so the GPU can copy it without the CPU, at full speed. */
void *device_alloc_host(size_t bytes)
{
    void *memory = NULL;
    CHECK_CUDA(cudaMallocHost(&memory, bytes > 0 ? bytes : 1));
    memset(memory, 0, bytes);
    return memory;
}

void device_free_host(void *memory)
{
    CHECK_CUDA(cudaFreeHost(memory));
}

void *cuda_scratch(size_t bytes)
{
    static void *scratch = NULL; /* never freed: used until the process ends */
    static size_t size = 0;
    if (bytes > size) {
        device_free(scratch);
        CHECK_CUDA(cudaMalloc(&scratch, bytes));
        size = bytes;
    }
    return scratch;
}
