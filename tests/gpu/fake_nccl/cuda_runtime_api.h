/* cuda_runtime_api.h: the part of CUDA's runtime that pg_nccl.c needs, declared as in NVIDIA's documentation.
 * Implemented by fake_nccl.c. */
#ifndef LOCKSTEP_TESTS_FAKE_CUDA_RUNTIME_API_H
#define LOCKSTEP_TESTS_FAKE_CUDA_RUNTIME_API_H

typedef enum cudaError { cudaSuccess = 0, cudaErrorNotReady = 600, cudaErrorIllegalAddress = 700 } cudaError_t;
typedef struct CUstream_st *cudaStream_t;
#define cudaStreamNonBlocking 1

const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDeviceGetStreamPriorityRange(int *lowest, int *highest);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);

#endif
