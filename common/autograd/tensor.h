/* tensor.h: a tensor, which is an array of up to four dimensions, and a parameter: a named tensor that is trained.
 *
 * A Tensor never owns the memory it points to. Activations point into a step's arena, weights into the model's
 * storage, gradients of weights into memory that the stage chooses (a bucket, for example).
 * `data` and `grad` are device memory: on the CPU, plain memory.
 */
#ifndef LOCKSTEP_AUTOGRAD_TENSOR_H
#define LOCKSTEP_AUTOGRAD_TENSOR_H

#include "base/dtype.h"
#include "base/rng.h"

/* ---- tensors ---- */

#define TENSOR_MAX_DIMS 4

typedef struct Tensor {
    int ndim;
    int64_t shape[TENSOR_MAX_DIMS]; /* row-major: the last dimension is contiguous */
    DType dtype; /* of data */
    bool requires_grad; /* depends on a parameter that is trained */
    void *data;
    void *grad;                  /* same shape; NULL until backward adds to it. A parameter's: set by DDP */
    DType grad_dtype;            /* of grad: float32, unless gradient_dtype() (tape.h) chose another one */
    bool in_block, grad_in_block; /* tape: data, grad lie in the memory of a recomputed block */
    int uses;                    /* tape: operations that read it, minus those that backward has passed */
    bool reached;                /* tape: in tape_mark_used(), the loss depends on it */
    struct Parameter *parameter; /* set if this tensor is a parameter's value, else NULL */
} Tensor;

/* A tensor over `data` (not owned). shape has ndim entries. */
Tensor tensor_view(void *data, DType dtype, int ndim, const int64_t *shape);

int64_t tensor_count(const Tensor *tensor);              /* number of elements */
int64_t tensor_rows(const Tensor *tensor);               /* product of all dimensions but the last */
int64_t tensor_last(const Tensor *tensor);               /* the last dimension */
void tensor_describe(const Tensor *tensor, char *text, size_t size); /* "float32 [768, 256]" */

/* ---- parameters: a model's weights ---- */

/* A parameter's value as matrix products read it. Only autograd/rounding.c uses this. */
typedef struct RoundedCopy {
    void *values; /* NULL until the first product; owned by the list of parameters */
    DType dtype;
    long version; /* of the value that was rounded */
} RoundedCopy;

typedef struct Parameter {
    char name[64]; /* as PyTorch would name it: "fc1.weight" */
    int index;     /* place in the list */
    int layer;     /* the part of the model that it belongs to: parameters that are needed together (stage 5) */
    Tensor tensor; /* value in tensor.data (owned by the list), gradient in tensor.grad (owned by DDP) */
    size_t gradient_room; /* bytes at tensor.grad, including the gap after the gradient; 0: no gap is known */
    bool is_buffer;    /* not trained, but written by forward: a batch norm's running statistics */
    bool contributed;  /* tape: at least one use has contributed to the gradient in this backward pass */
    bool has_gradient; /* the gradient was completed at least once since parameters_zero_gradients() */
    long version;      /* how often the value has changed */
    long reads;         /* tape_needs(): how often an operation has read the value */
    long product_reads; /* how many of these were matrix products, which read the rounded copy */
    RoundedCopy rounded;
} Parameter;

/* The order of the list is the order of registration. It is the same on every rank, and everything that must
 * agree between ranks (broadcasts, buckets, hashes) follows it. */
typedef struct ParameterList {
    Parameter **items;
    int count, capacity;
    int layers; /* so far; parameters_add() adds to the last one. A model increments it before each new layer */
} ParameterList;

/* Registers a float32 parameter of the given shape, zero-filled. The list owns it. */
Parameter *parameters_add(ParameterList *list, const char *name, int ndim, const int64_t *shape);
void parameters_free(ParameterList *list);
/* Makes it a buffer: no optimizer updates it, but it is compared, saved and hashed like any other parameter. */
void parameter_make_buffer(Parameter *parameter);

int64_t parameters_total(const ParameterList *list); /* elements in all */

/* Call one of these after writing values: it marks the rounded copies as out of date. */
void parameter_changed(Parameter *parameter);
void parameters_changed(ParameterList *list);

/* Bytes of one gradient, rounded up to a multiple of device_alignment(), so that the next gradient is aligned too. */
size_t parameter_gradient_bytes(const Parameter *parameter);
/* Bytes of a block that holds the gradients of all trained parameters, each aligned. */
size_t parameters_gradient_bytes(const ParameterList *list);
/* Points each trained parameter's gradient into such a block, which must be aligned and zeroed, as device_alloc() and
 * pg_alloc_shared() give it. The caller owns the block. */
void parameters_place_gradients(ParameterList *list, void *block);
/* Allocates such a block with device_alloc(), and places the gradients in it. */
void *parameters_allocate_gradients(ParameterList *list);

/* Frees the block of parameters_allocate_gradients(). The parameters then have no gradients. */
void parameters_free_gradients(ParameterList *list, void *block);

/* grad = 0 and has_gradient = false, for all. Clears the gaps, too: after an overflow they may hold a NaN, which int8
 * would spread to the numbers before them. Call between the optimizer's step and the next forward pass. */
void parameters_zero_gradients(ParameterList *list);

/* Copy all values to or from `values`: host memory, parameters_total() floats, in list order without gaps. */
void parameters_to_host(const ParameterList *list, float *values);
void parameters_from_host(ParameterList *list, const float *values);

/* FNV-1a (64 bit) over the float32 bytes of all values in list order: the weights_hash of the summary. */
uint64_t parameters_hash(const ParameterList *list);

/* ---- initial values: numbers drawn from rng in index order, or a constant ---- */
void init_uniform(Parameter *parameter, Rng *rng, float limit);    /* in [-limit, limit) */
void init_normal(Parameter *parameter, Rng *rng, float deviation); /* mean 0, standard deviation `deviation` */
void init_constant(Parameter *parameter, float value);

#endif
