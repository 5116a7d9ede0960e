/* device.h: one prototype for each kernel that training needs. device_cpu*.c implement them with OpenBLAS and plain
 * loops; backends/gpu/device_cuda*.cu, with cuBLAS and CUDA kernels. The linker chooses. Both keep the order of this
 * header.
 *
 * Pointers are device memory, owned by the caller, unless a comment says otherwise. Matrices are row-major. The same
 * input gives the same bits: results do not depend on addresses (if tensors are aligned to device_alignment()), and no
 * kernel uses atomics. Any count may be zero. An error of the device is a fault. */
#ifndef LOCKSTEP_DEVICE_DEVICE_H
#define LOCKSTEP_DEVICE_DEVICE_H

#include "base/dtype.h"

/* ---- the device ---- */

/* Call first in main(): restarts the program if OpenBLAS does not know this processor. CUDA: does nothing. */
void device_choose_kernels(char **argv);
/* Call once, before training. local_rank: this process's number on its host. CUDA: takes device number local_rank %
 * (number of visible devices); to see whether another rank has the same device, compare device_identity().
 * CPU: uses `threads` BLAS threads. */
void device_init(int local_rank, int threads);
/* Call in every other thread before it uses the device. CUDA: otherwise it uses device 0. */
void device_init_thread(void);
typedef enum DeviceKind { DEVICE_CPU, DEVICE_CUDA } DeviceKind;
DeviceKind device_kind(void);
static inline const char *device_name(void) { return device_kind() == DEVICE_CUDA ? "cuda" : "cpu"; }
const char *device_description(void); /* the device's model; CPU: the BLAS kernels in use */
/* At most 63 characters. CUDA: the device's UUID in hex; two processes with equal UUIDs share the device. CPU: "",
 * because any number of processes may share it. */
const char *device_identity(void);
/* CUDA: from now on float32 matrix products may round their operands to TF32 for the tensor cores (--tf32): float32's
 * exponent, but 11 significant bits instead of 24. Sums and attention stay float32. CPU: no effect. */
void device_allow_tf32(bool allow);

/* ---- order: a kernel may return before its work is done; on the CPU it never does. The work of one host thread runs
 * in the order of its calls. The work of two threads may overlap, unless an event orders it. ---- */
typedef struct DeviceEvent DeviceEvent;
void device_synchronize(void);              /* returns when all work that this thread has queued is done */
bool device_is_idle(void);                  /* true if that work is done; does not wait */
DeviceEvent *device_event_record(void);     /* marks the work that this thread has queued up to here; CPU: NULL */
void device_event_wait(DeviceEvent *event); /* work that this thread queues later runs after it. Frees the event */

/* ---- ranges: which part of training a thread's work belongs to. They nest; names are given as for printf. CUDA: for
 * profilers (NVTX) and for the timeline; if neither is on, a range costs one test. CPU: no effect. ---- */
void device_range_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Of the work on this CUDA stream. */
void device_range_begin_on(void *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));
void device_range_end(void);
void device_mark(const char *format, ...) __attribute__((format(printf, 1, 2))); /* a point in time */
/* Call these around a step. While the timeline (base/clock.h) is on, it gets the ranges between them, with the times at
 * which the GPU ran their work. Of these functions only the two below wait for the GPU. Timeline off: no effect. */
void device_timeline_begin(void);
void device_timeline_end(void);

/* ---- memory ---- */
size_t device_alignment(void); /* bytes: tensors begin at multiples of it. CPU: 64; CUDA: 256 */
void *device_alloc(size_t bytes); /* zeroed, aligned to device_alignment(); device_free() it */
void device_free(void *memory); /* waits for this thread's work first; NULL is allowed */
void device_to_host(void *host, const void *device, size_t bytes); /* both copies are done on return */
void device_from_host(void *device, const void *host, size_t bytes);
void device_copy(void *to, const void *from, size_t bytes); /* both device memory, not overlapping */
void device_zero(void *memory, size_t bytes);
bool device_owns(const void *memory); /* true: device memory, which the host cannot read. CPU: always false */
void *device_alloc_host(size_t bytes); /* zeroed host memory (CUDA: pinned); device_free_host() it */
void device_free_host(void *memory);

/* ---- where a kernel writes a gradient ----
 * note: first-contribution
 * A tensor's gradient is the sum of one contribution for each use. The first could be added to zeros. But writing and
 * reading zeros costs two passes over memory, and most activations have only one contribution. So the first one is
 * stored with =, and the memory may hold anything before, even NaN. A kernel that sums terms in place, such as
 * attention on the CPU, writes zeros first. */
typedef struct Gradient {
    float *values; /* NULL: this gradient is not needed */
    bool add;      /* true: +=; false: =, the first contribution */
    DType dtype;   /* DTYPE_F32; for some kernels on a GPU perhaps 16 bits: backends/gpu/gradient_dtype.c */
} Gradient;
void device_contribute(Gradient to, const float *x, int64_t n); /* x is the contribution */

/* ---- element-wise ---- */
void device_add(float *out, const float *a, const float *b, int64_t n);        /* out = a + b */
void device_accumulate(float *out, const float *x, int64_t n);                 /* out += x */
void device_fill(float *x, float value, int64_t n);                            /* x = value */
void device_scale(float *x, float factor, int64_t n);                          /* x *= factor */
void device_scale_by(float *x, const float *factor, int64_t n);                /* the same; factor: device, one float */
void device_round(float *out, const float *x, DType precision, int64_t n);     /* to nearest bf16/f16; F32: out = x */
void device_relu_forward(float *out, const float *x, int64_t n);
void device_relu_backward(Gradient dx, const float *x, const float *dout, int64_t n);
void device_gelu_forward(float *out, const float *x, int64_t n);
void device_gelu_backward(Gradient dx, const float *x, const float *dout, int64_t n);

/* ---- dropout: to = x / (1 - probability), or 0 with that probability. Backward is the same function, of dout ----
 * x (samples, elements). CUDA: faults, and options_check.c rejects dropout on a GPU.
 *
 * note: dropout-mask
 * Whether an element is dropped depends only on these numbers and on its index. No two elements of a run have the same
 * ones, and they do not depend on which rank has a sample. So N ranks drop the elements that one process drops, a
 * resumed run those of an uninterrupted run, and backward recomputes the mask instead of storing it. */
typedef struct DropoutMask {
    float probability; /* in [0, 1); 0: nothing is dropped */
    uint64_t seed;
    uint32_t step, layer;  /* layer: counts the masks of a forward pass */
    const int64_t *places; /* (samples), host memory: index of each in the step's global batch, below 2^32 */
} DropoutMask;
void device_dropout(Gradient to, const float *x, const DropoutMask *mask, int64_t samples, int64_t elements);

/* ---- rounded numbers: operands of matrix products (why: autograd/rounding.h) ----
 * The device chooses their format, so pointers to them are void pointers. The CPU emulates bf16 and f16: a float holds
 * the rounded value. CUDA stores 16 bits, which its tensor cores read; so does backends/onednn/ for bf16. Under
 * DTYPE_F32, nothing is rounded. */
size_t device_rounded_bytes(DType precision, int64_t n);
void device_store_rounded(void *rounded, const float *x, DType precision, int64_t n);

/* ---- linear: out (rows, n_out) = x (rows, n_in) weight^T + bias, weight (n_out, n_in), bias (n_out) or NULL ----
 * x, weight and dout are rounded to `precision`. */
void device_linear_forward(float *out, const void *x, const void *weight, const float *bias, int64_t rows,
                           int64_t n_in, int64_t n_out, DType precision);
/* dx (rows, n_in), dweight (n_out, n_in), dbias (n_out). */
void device_linear_backward(Gradient dx, Gradient dweight, Gradient dbias, const void *dout, const void *x,
                            const void *weight, int64_t rows, int64_t n_in, int64_t n_out, DType precision);

/* ---- layernorm over rows of n; mean and rstd (rows) are kept for backward ---- */
void device_layernorm_forward(float *out, float *mean, float *rstd, const float *x, const float *weight,
                              const float *bias, int64_t rows, int64_t n);
void device_layernorm_backward(Gradient dx, Gradient dweight, Gradient dbias, const float *dout, const float *x,
                               const float *mean, const float *rstd, const float *weight, int64_t rows, int64_t n);

/* ---- embedding: out (B, T, C) = token_table[tokens] + position_table[t] ---- */
void device_embedding_forward(float *out, const int32_t *tokens, const float *token_table,
                              const float *position_table, int64_t B, int64_t T, int64_t C);
/* Adds, with +=, because most rows of a table get no contribution. Either gradient may be NULL: not needed. */
void device_embedding_backward(float *dtoken_table, float *dposition_table, const float *dout, const int32_t *tokens,
                               int64_t B, int64_t T, int64_t C);

/* ---- causal self-attention: qkv (B, T, 3C) -> out (B, T, C) ----
 * out and the operands of the products inside are rounded to `precision`. saved: device_attention_saved() floats that
 * forward fills for backward. scratch: device_attention_scratch() floats that backward may overwrite. */
int64_t device_attention_saved(int64_t B, int64_t T, int64_t C, int heads);
int64_t device_attention_scratch(int64_t B, int64_t T, int64_t C, int heads);
void device_attention_forward(void *out, float *saved, const float *qkv, int64_t B, int64_t T, int64_t C, int heads,
                              DType precision);
void device_attention_backward(Gradient dqkv, float *scratch, const float *dout, const float *qkv, const void *out,
                               const float *saved, int64_t B, int64_t T, int64_t C, int heads, DType precision);

/* ---- losses: *loss is set to the SUM over rows; dloss is the gradient of that sum (device, one float) ----
 * Keep row_max and row_sum (rows) for backward: each row's largest logit, and its sum of exp(logit - largest). Backward
 * recomputes the probabilities (rows, V) from them. A row whose target is negative is masked: it adds nothing to the
 * loss, and its gradient is 0. */
void device_cross_entropy_forward(float *loss, float *row_max, float *row_sum, const float *logits,
                                  const int32_t *targets, int64_t rows, int64_t V);
void device_cross_entropy_backward(Gradient dlogits, const float *dloss, const float *logits, const float *row_max,
                                   const float *row_sum, const int32_t *targets, int64_t rows, int64_t V);
void device_mse_forward(float *loss, const float *prediction, const float *target, int64_t rows, int64_t n);
void device_mse_backward(Gradient dprediction, const float *dloss, const float *prediction, const float *target,
                         int64_t rows, int64_t n);

/* ---- norm and clipping: the results stay on the device, so that the host need not wait for them ---- */
/* sums[k] = sum of x[i]^2 over block k of x, in float64. A block has SQUARES_BLOCK numbers; the last one may have
 * fewer. So ranks that hold different blocks of one gradient get the bits that one process gets. A sum is finite
 * exactly if its block is, because float64 can hold the square of every float32. */
#define SQUARES_BLOCK 1024
#define squares_blocks(n) (((n) + SQUARES_BLOCK - 1) / SQUARES_BLOCK)
void device_sum_of_squares(double *sums, const float *x, int64_t n);
/* *factor = min(1, max_norm / (norm + 1e-6)), where norm is the square root of the sum of all `sums`; max_norm may be
 * INFINITY. If norm is not finite: NaN. */
void device_clip_factor(float *factor, const double *sums, int64_t count, double max_norm);

/* ---- optimizers, in place, one call per parameter (formulas: optim/optimizer.c) ---- */
typedef struct DeviceUpdate {
    float *weight;
    const float *grad;
    const float *factor; /* from device_clip_factor(). NaN: skip the step, change nothing */
    int64_t n;
} DeviceUpdate;
void device_sgd(const DeviceUpdate *update, float *momentum_buffer, float lr, float momentum, float weight_decay,
                bool first_step); /* momentum_buffer NULL: plain SGD */
void device_adamw(const DeviceUpdate *update, float *m, float *v, float lr, float beta1, float beta2, float eps,
                  float weight_decay, float correction1, float correction2);

/* ---- accuracy: returns the number of rows (of V logits) whose largest logit is at the target ---- */
int64_t device_count_correct(const float *logits, const int32_t *targets, int64_t rows, int64_t V);

/* ---- half precision on the wire ---- */
void device_to_half(void *half, const float *x, DType dtype, int64_t n);   /* dtype: DTYPE_BF16 or DTYPE_F16 */
void device_from_half(float *x, const void *half, DType dtype, int64_t n);

#endif
