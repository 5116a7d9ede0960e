/* device.h: every kernel the training needs, one prototype each. device_cpu.c implements them with OpenBLAS and
 * plain loops, device_cuda.cu with cuBLAS and CUDA kernels, in the same order; the linker chooses.
 *
 * Pointers are device memory unless a comment says host. Matrices are row-major. Results do not depend on addresses
 * (tensors begin as device_alignment() says), and no kernel uses atomics: the same input gives the same bits. Any count
 * may be zero.
 */
#ifndef LOCKSTEP_DEVICE_DEVICE_H
#define LOCKSTEP_DEVICE_DEVICE_H

#include "base/dtype.h"

/* ---- the device ---- */

/* local_rank: this process's number on its host; threads: BLAS threads of this process (CPU only). CUDA: takes device
 * number local_rank % (devices that this process sees); whether another rank has the same one is for others to check,
 * who can ask it: see device_identity(). Prints advice if the environment forces a slow BLAS kernel. */
void device_init(int local_rank, int threads);
/* Every other thread calls this before it uses the device. (CUDA: a thread begins with device 0, whichever was taken.) */
void device_init_thread(void);
const char *device_name(void);        /* "cpu" or "cuda" */
const char *device_description(void); /* the model, and for the CPU the BLAS kernels chosen */
/* At most 63 characters, equal for two processes only if they compute on one and the same device. CUDA: its UUID in hex.
 * CPU: "", as any number of processes may share it. */
const char *device_identity(void);
/* CUDA: from now on float32 matrix products may round what they multiply to TF32 (--tf32), as the tensor cores take it:
 * float32's exponent, but 11 significant bits instead of 24. Sums and attention stay float32. A CPU has no TF32, and
 * multiplies as before. */
void device_allow_tf32(bool allow);

/* ---- order: a kernel may return before its work is done. Each host thread's work is done in the order of its calls, but
 * the work of two threads side by side, unless an event puts one after the other. (The CPU does all work at once.) ---- */
typedef struct DeviceEvent DeviceEvent;
void device_synchronize(void);              /* returns when all work that this thread has queued is done */
bool device_is_idle(void);                  /* true: that work is done. Returns at once */
DeviceEvent *device_event_record(void);     /* marks the work that this thread has queued so far; CPU: NULL */
void device_event_wait(DeviceEvent *event); /* what this thread queues from now on comes after it. Frees the event */

/* ---- ranges: which part of training a thread's work belongs to. They nest, and a name is printf's. CUDA: for
 * profilers (NVTX), and for the timeline; where nobody looks, a range costs one test. CPU: nothing. ---- */
void device_range_begin(const char *format, ...) __attribute__((format(printf, 1, 2)));
void device_range_begin_on(void *stream, const char *format, ...) __attribute__((format(printf, 2, 3))); /* CUDA's */
void device_range_end(void);
void device_mark(const char *format, ...) __attribute__((format(printf, 1, 2))); /* a moment */
/* Around a step, while base/timeline.h is on (else they do nothing): ranges in between enter the timeline with the times
 * by the GPU's clock, as intervals in which the GPU works for them. begin() and end() wait for the GPU; in between
 * nobody does. */
void device_timeline_begin(void);
void device_timeline_end(void);

/* ---- memory ---- */
size_t device_alignment(void); /* bytes: tensors begin at its multiples. CPU: 64; CUDA: 256 */
void *device_alloc(size_t bytes); /* zeroed, aligned to device_alignment(); device_free() it */
void device_free(void *memory); /* when this thread's work is done; NULL is allowed */
void device_to_host(void *host, const void *device, size_t bytes);
void device_from_host(void *device, const void *host, size_t bytes);
void device_copy(void *to, const void *from, size_t bytes); /* both device memory, not overlapping */
void device_zero(void *memory, size_t bytes);
bool device_owns(const void *memory); /* true: the host cannot read it, and it must be copied. Never true on the CPU */
void *device_alloc_host(size_t bytes); /* host memory that copies fastest to and from the device; device_free_host() it */
void device_free_host(void *memory);

/* ---- where a kernel puts a gradient ----
 * note: first-contribution
 * A tensor that is used several times gets as many contributions to its gradient, which is their sum. The first could
 * be added to zeros. But then zeros are written and read again, two passes over memory for nothing, and most
 * activations get no second contribution. So the first is set, and what lies there before, be it NaN, does not matter.
 * (A kernel that adds up terms in place may begin with zeros of its own, as attention on the CPU does.) */
typedef struct Gradient {
    float *values; /* NULL: nobody needs this gradient */
    bool add;      /* true: +=; false: =, the first contribution */
    DType dtype;   /* DTYPE_F32. (On a GPU some kernels can set 16 bits: gpu/gradient_dtype.c.) */
} Gradient;
void device_contribute(Gradient to, const float *x, int64_t n); /* x is the contribution */

/* ---- element-wise ---- */
void device_add(float *out, const float *a, const float *b, int64_t n);        /* out = a + b */
void device_accumulate(float *out, const float *x, int64_t n);                 /* out += x */
void device_fill(float *x, float value, int64_t n);                            /* x = value */
void device_scale(float *x, float factor, int64_t n);                          /* x *= factor */
void device_scale_by(float *x, const float *factor, int64_t n);                /* the same; factor: device, one float */
void device_round(float *out, const float *x, DType precision, int64_t n);     /* to the nearest bf16/f16, as float */
void device_relu_forward(float *out, const float *x, int64_t n);
void device_relu_backward(Gradient dx, const float *x, const float *dout, int64_t n);
void device_gelu_forward(float *out, const float *x, int64_t n);
void device_gelu_backward(Gradient dx, const float *x, const float *dout, int64_t n);

/* ---- rounded numbers, as matrix products read them (why: autograd/rounding.h) ----
 * How they lie in memory is the device's choice, so pointers to them are void pointers: the CPU emulates bf16 and f16 (a
 * float that holds a rounded value); CUDA has 16 bits, as its tensor cores read them. Float32 is never rounded. */
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
/* Always added, as most rows of a table get nothing. Either table's gradient may be NULL. */
void device_embedding_backward(float *dtoken_table, float *dposition_table, const float *dout, const int32_t *tokens,
                               int64_t B, int64_t T, int64_t C);

/* ---- causal self-attention: qkv (B, T, 3C) -> out (B, T, C), rounded to `precision` ----
 * So is what its products multiply.
 * saved: device_attention_saved() floats that forward fills for backward. scratch: device_attention_scratch()
 * floats that backward may overwrite. */
int64_t device_attention_saved(int64_t B, int64_t T, int64_t C, int heads);
int64_t device_attention_scratch(int64_t B, int64_t T, int64_t C, int heads);
void device_attention_forward(void *out, float *saved, const float *qkv, int64_t B, int64_t T, int64_t C, int heads,
                              DType precision);
void device_attention_backward(Gradient dqkv, float *scratch, const float *dout, const float *qkv, const void *out,
                               const float *saved, int64_t B, int64_t T, int64_t C, int heads, DType precision);

/* ---- losses: *loss is set to the SUM over rows; dloss is the gradient of that sum (device, one float) ----
 * row_max and row_sum (rows) are kept for backward: the largest logit, and the sum of exp(logit - largest). They are
 * enough to compute the probabilities (rows, V) again. */
void device_cross_entropy_forward(float *loss, float *row_max, float *row_sum, const float *logits,
                                  const int32_t *targets, int64_t rows, int64_t V);
void device_cross_entropy_backward(Gradient dlogits, const float *dloss, const float *logits, const float *row_max,
                                   const float *row_sum, const int32_t *targets, int64_t rows, int64_t V);
void device_mse_forward(float *loss, const float *prediction, const float *target, int64_t rows, int64_t n);
void device_mse_backward(Gradient dprediction, const float *dloss, const float *prediction, const float *target,
                         int64_t rows, int64_t n);

/* ---- looking at gradients: the results stay on the device, so that nobody has to wait for them ---- */
/* *sum is set: in float64, in an order that n alone decides. It is finite exactly if all of x is, as no float32 has a
 * square that float64 cannot hold. */
void device_sum_of_squares(double *sum, const float *x, int64_t n);
/* *factor is set to what gradients are multiplied by so that their norm, the root of the sum of all `sums`, is at most
 * max_norm (INFINITY: any norm will do): 1 or less. NaN where the norm is not finite. */
void device_clip_factor(float *factor, const double *sums, int64_t count, double max_norm);

/* ---- optimizers, in place, one call per parameter (formulas: , ) ---- */
typedef struct DeviceUpdate {
    float *weight;
    const float *grad;
    const float *factor; /* what device_clip_factor() has found: NaN: the step is left out, and nothing changes */
    int64_t n;
} DeviceUpdate;
void device_sgd(const DeviceUpdate *update, float *momentum_buffer, float lr, float momentum, float weight_decay,
                bool first_step); /* momentum_buffer NULL: plain SGD */
void device_adamw(const DeviceUpdate *update, float *m, float *v, float lr, float beta1, float beta2, float eps,
                  float weight_decay, float correction1, float correction2);

/* ---- looking at the model's answers: rows whose largest logit is at the target (result on the host) ---- */
int64_t device_count_correct(const float *logits, const int32_t *targets, int64_t rows, int64_t V);

/* ---- half precision on the wire ---- */
void device_to_half(void *half, const float *x, DType dtype, int64_t n);   /* dtype: DTYPE_BF16 or DTYPE_F16 */
void device_from_half(float *x, const void *half, DType dtype, int64_t n);

#endif
