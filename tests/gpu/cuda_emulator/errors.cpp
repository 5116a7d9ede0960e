/* errors.cpp: errors of the runtime API, and the end of the program on undefined behaviour. */
#include "emulator.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t error_result(cudaError_t error)
{
    if (error != cudaSuccess) /* also "not ready": the caller must clear it */
        last_error = error;
    return error;
}

cudaError_t error_explained(cudaError_t error, const char *call, const char *reason)
{
    fprintf(stderr, "emulated CUDA: %s: %s\n", call, reason);
    return error_result(error);
}

void emulator_fail(const char *format, ...)
{
    char message[1200], where[200] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (fibers_kernel() != nullptr)
        snprintf(where, sizeof where, "kernel %s, block (%u, %u, %u): ", fibers_kernel(), blockIdx.x, blockIdx.y,
                 blockIdx.z);
    fflush(nullptr);
    fprintf(stderr, "emulated CUDA: %s%s\n", where, message);
    _exit(1);
}

cudaError_t cudaGetLastError()
{
    const cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "driver version is insufficient for CUDA runtime"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image is available"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"}};

const char *cudaGetErrorName(cudaError_t error)
{
    for (const auto &entry : error_texts)
        if (entry.error == error)
            return entry.name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (const auto &entry : error_texts)
        if (entry.error == error)
            return entry.text;
    return "unrecognized error code";
}
