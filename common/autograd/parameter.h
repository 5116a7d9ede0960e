/* parameter.h: a named weight that is trained, and the list of a model's weights.
 *
 * The order of the list is the order of registration. It is the same on every rank, and everything that must
 * agree between ranks (broadcasts, buckets, hashes) follows it.
 */
#ifndef LOCKSTEP_AUTOGRAD_PARAMETER_H
#define LOCKSTEP_AUTOGRAD_PARAMETER_H

#include "autograd/tensor.h"

/* A parameter's value as matrix products read it. Only autograd/rounding.c uses this. */
typedef struct RoundedCopy {
    void *values; /* NULL until the first product; owned by the list of parameters */
    DType dtype;
    long version; /* of the value that was rounded */
} RoundedCopy;

typedef struct Parameter {
    char name[64]; /* as PyTorch would name it: "fc1.weight" */
    int index;     /* place in the list */
    Tensor tensor; /* value in tensor.data (owned by the list), gradient in tensor.grad (owned by DDP) */
    bool contributed;  /* tape: at least one use has contributed to the gradient in this backward pass */
    bool has_gradient; /* the gradient was completed at least once since parameters_zero_gradients() */
    long version;      /* how often the value has changed */
    RoundedCopy rounded;
} Parameter;

typedef struct ParameterList {
    Parameter **items;
    int count, capacity;
} ParameterList;

/* Registers a float32 parameter of the given shape, zero-filled. The list owns it. */
Parameter *parameters_add(ParameterList *list, const char *name, int ndim, const int64_t *shape);
void parameters_free(ParameterList *list);

int64_t parameters_total(const ParameterList *list);                            /* elements in all */
Parameter *parameters_find(const ParameterList *list, const char *name);        /* NULL if there is none */

/* Call one of these after writing values: it marks the rounded copies as out of date. */
void parameter_changed(Parameter *parameter);
void parameters_changed(ParameterList *list);

/* Bytes of one gradient, rounded up to a multiple of device_alignment(), so that the next gradient is aligned too. */
size_t parameter_gradient_bytes(const Parameter *parameter);
/* Bytes of a block that holds the gradients of all trained parameters, each aligned. */
size_t parameters_gradient_bytes(const ParameterList *list);
/* Points each trained parameter's gradient into such a block. The block must be aligned and zeroed; not owned. */
void parameters_place_gradients(ParameterList *list, void *block);
/* Allocates such a block and places the gradients in it. The caller frees it with device_free(). */
void *parameters_allocate_gradients(ParameterList *list);

/* grad = 0 and has_gradient = false, for all. Call between the optimizer's step and the next forward pass. */
void parameters_zero_gradients(ParameterList *list);

/* Copy all values to or from `values`: host memory, parameters_total() floats, in list order without gaps. */
void parameters_to_host(const ParameterList *list, float *values);
void parameters_from_host(ParameterList *list, const float *values);

/* FNV-1a (64 bit) over the float32 bytes of all values in list order: the weights_hash of the summary. */
uint64_t parameters_hash(const ParameterList *list);

#endif
