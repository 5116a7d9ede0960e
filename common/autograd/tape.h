/* tape.h: reverse-mode autograd. Forward operations write themselves down; backward reads the list in reverse.
 *
 * Interface:
 *   tape_begin(tape, true);                  forget the last step, start recording
 *   loss = op_...(tape, ...);                each operation (ops.h) computes at once and appends a Node
 *   tape_backward(tape, loss, seed);         runs the nodes' backward functions, last to first
 *
 * While backward runs, the tape raises the gradient-ready event: once per parameter and backward pass, right
 * after its LAST contribution has landed. A weight that is used twice (GPT's tied embedding) fires once, after
 * the second. DDP listens to this event; the tape itself knows nothing of DDP.
 *
 * All activations, their gradients and the nodes belong to the tape and live until the next tape_begin().
 */
#ifndef LOCKSTEP_AUTOGRAD_TAPE_H
#define LOCKSTEP_AUTOGRAD_TAPE_H

#include "autograd/parameter.h"
#include "device/device.h" /* Gradient */
#include "device/arena.h"

#define NODE_MAX_INPUTS 3

typedef struct Tape Tape;
typedef struct Node Node;

struct Node {
    const char *name;                         /* "linear": for traces and messages */
    void (*backward)(Tape *tape, Node *node); /* contributes to the inputs' gradients, given output->grad */
    Tensor *inputs[NODE_MAX_INPUTS];          /* NULL where unused */
    Tensor *output;
    const void *saved[3];   /* what forward keeps for backward; each operation says what */
    const int32_t *indices; /* tokens or targets, where the operation has them */
    int heads;              /* attention only */
};

typedef void (*GradientReady)(void *listener, Parameter *parameter);

struct Tape {
    Arena arena;
    Tensor **tensors; /* the activations' descriptions, pooled and reused from step to step */
    int tensor_count, tensor_capacity;
    Node *nodes;
    int count, capacity;
    bool recording;  /* false: evaluation, nothing is kept for backward */
    const Node *running; /* the node whose backward function runs; else NULL */
    DType precision; /* of matrix products (rounding.h): DTYPE_F32, _BF16 or _F16 */
    GradientReady on_gradient_ready; /* NULL: nobody listens */
    void *listener;                  /* passed to on_gradient_ready */
};

/* A zeroed Tape with precision DTYPE_F32 is ready for use. */
void tape_begin(Tape *tape, bool recording);
void tape_free(Tape *tape);

/* A new float32 activation; its data is not cleared. */
Tensor *tape_tensor(Tape *tape, int ndim, const int64_t *shape, bool requires_grad);
/* The same, stored in tape->precision (device_store_rounded()): only op_linear() reads it. */
Tensor *tape_rounded_tensor(Tape *tape, int ndim, const int64_t *shape, bool requires_grad);
/* A tensor over memory that someone else owns and that stays valid until the next tape_begin(). */
Tensor *tape_input(Tape *tape, void *data, DType dtype, int ndim, const int64_t *shape);
/* Scratch that lives as long as the activations: count floats, not cleared. */
float *tape_floats(Tape *tape, int64_t count);

/* Appends a node, whose remaining fields the caller fills in. Every use of an input is counted. Returns NULL when the
 * tape does not record or no input needs a gradient: nothing to keep then. */
Node *tape_record(Tape *tape, const char *name, void (*backward)(Tape *, Node *), Tensor *output, Tensor *a,
                  Tensor *b, Tensor *c);

/* Where a backward function puts its contribution to the tensor's gradient; values NULL: it needs none. An activation's
 * gradient gets its memory with the first contribution, which is set (device.h). A parameter's has its memory, zeroed
 * before each step, and all contributions are added. Each call must be followed by exactly one contribution, in call
 * order, because two inputs may be one tensor. */
Gradient tape_gradient(Tape *tape, Tensor *tensor);
/* The dtype of an activation's gradient, chosen at its first contribution: float32 (gradient_dtype.c). A GPU has
 * another version of this function. */
DType gradient_dtype(const Tape *tape, const Tensor *tensor);

/* Adds the gradient of (seed * loss) to every parameter that took part. loss: one element. A node that the loss
 * does not depend on is passed over. Faults if called twice for one recording. */
void tape_backward(Tape *tape, Tensor *loss, float seed);

/* Sets used[parameter->index] for each parameter that the loss depends on, by walking the tape. */
void tape_mark_used(const Tape *tape, const Tensor *loss, bool *used);

#endif
