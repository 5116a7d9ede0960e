/* tensor.h: an array of up to four dimensions, and where its numbers live.
 *
 * A Tensor never owns the memory it points to. Activations point into a step's arena, weights into the model's
 * storage, gradients of weights into memory that the stage chooses (a bucket, for example).
 * `data` and `grad` are device memory: on the CPU, plain memory.
 */
#ifndef LOCKSTEP_AUTOGRAD_TENSOR_H
#define LOCKSTEP_AUTOGRAD_TENSOR_H

#include "base/dtype.h"

#define TENSOR_MAX_DIMS 4

typedef struct Tensor {
    int ndim;
    int64_t shape[TENSOR_MAX_DIMS]; /* row-major: the last dimension is contiguous */
    DType dtype; /* of data */
    bool requires_grad; /* depends on a parameter that is trained */
    void *data;
    void *grad;                  /* same shape; NULL until the first contribution arrives */
    DType grad_dtype;            /* of grad: float32, unless gradient_dtype() (tape.h) chose another one */
    int uses;                    /* tape: operations that read it, less those that backward has passed */
    struct Parameter *parameter; /* set if this tensor is a parameter's value, else NULL */
} Tensor;

/* A tensor over `data` (not owned). shape has ndim entries. */
Tensor tensor_view(void *data, DType dtype, int ndim, const int64_t *shape);

int64_t tensor_count(const Tensor *tensor);              /* number of elements */
int64_t tensor_rows(const Tensor *tensor);               /* product of all dimensions but the last */
int64_t tensor_last(const Tensor *tensor);               /* the last dimension */
void tensor_describe(const Tensor *tensor, char *text, size_t size); /* "float32 [768, 256]" */

#endif
