/* tape.h: reverse-mode autograd. Each forward operation appends a node; backward walks the nodes in reverse.
 *
 * Interface:
 *   tape_begin(tape, true);                  forget the last step, start recording
 *   loss = op_...(tape, ...);                each operation (ops.h) computes at once and appends a Node
 *   tape_backward(tape, loss, seed);         runs the nodes' backward functions, last to first
 *
 * While backward runs, the tape raises the gradient-ready event once per parameter, right after the LAST contribution
 * to its gradient. For a weight that is used twice (GPT's tied embedding), that is after the second. DDP listens to
 * this event; the tape knows nothing of DDP.
 * Two more events serve stage 5, which does not always hold all weights and gradients in memory: parameters-needed,
 * right before an operation reads weights (in forward or backward), and gradient-needed, before a contribution to a
 * parameter's gradient that has no memory.
 *
 * All activations, their gradients and the nodes belong to the tape and live until the next tape_begin().
 */
#ifndef LOCKSTEP_AUTOGRAD_TAPE_H
#define LOCKSTEP_AUTOGRAD_TAPE_H

#include "autograd/tensor.h"
#include "device/device.h" /* Gradient */
#include "device/arena.h"

#define NODE_MAX_INPUTS 3

typedef struct Tape Tape;
typedef struct Node Node;
typedef Tensor *(*TapeBlock)(Tape *tape, Tensor *x, const void *what);

struct Node {
    const char *name;                         /* "linear": for traces and messages */
    void (*backward)(Tape *tape, Node *node); /* contributes to the inputs' gradients, given output->grad */
    Tensor *inputs[NODE_MAX_INPUTS];          /* NULL where unused */
    Tensor *output;
    const void *saved[3];   /* what forward keeps for backward; each operation says what */
    const int32_t *indices; /* tokens or targets, where the operation has them */
    int heads;              /* attention only */
    uint32_t layer;         /* dropout: number of its mask; block: of its first mask */
    /* Only for a block that backward recomputes (recompute.c): */
    TapeBlock forward; /* NULL: the node is an operation */
    const void *what;
    int first_parameter, parameter_count; /* in Tape.block_parameters */
};

/* The functions that handle the tape's events. NULL: ignore this event. */
typedef struct TapeListener {
    void *self; /* passed to all three; not owned */
    void (*gradient_ready)(void *self, Parameter *parameter);
    /* Must point tensor.grad to zeroed memory. */
    void (*gradient_needed)(void *self, Parameter *parameter);
    /* Must point tensor.data of all these, the parameters of one operation, to their values. */
    void (*parameters_needed)(void *self, Parameter *const *parameters, int count);
} TapeListener;

struct Tape {
    Arena arena;
    Tensor **tensors; /* pool of the activations' Tensor structs, reused in every step */
    int tensor_count, tensor_capacity;
    Node *nodes;
    int count, capacity;
    bool recording;  /* false: evaluation, nothing is kept for backward */
    const Node *running; /* the node whose backward function runs; else NULL */
    DType precision; /* of matrix products (rounding.h): DTYPE_F32, _BF16 or _F16 */
    bool recompute; /* tape_block() keeps only the block's result */
    bool in_block;  /* a block is being computed, or backward is in one */
    int block_begin, tensors_before_block; /* where its nodes and tensors begin */
    Arena block_arena;            /* its activations */
    Parameter **block_parameters; /* used in the blocks of this recording; owned (the list) */
    int block_parameter_count, block_parameter_capacity;
    DropoutMask dropout; /* for op_dropout(): set it before forward, keep it until backward ends. Only the tape sets
                          * `layer`: tape_begin() to 0, each op_dropout() to the next number */
    TapeListener listener; /* set it with tape_listen() */
};

/* A zeroed Tape with precision DTYPE_F32 is ready for use. tape_begin() invalidates all tensors of the last step. */
void tape_begin(Tape *tape, bool recording);
void tape_free(Tape *tape);

/* Replaces the listener, and returns the previous one, so that the new one can forward events to it. At first, and
 * after (TapeListener){0}, all events are ignored. */
TapeListener tape_listen(Tape *tape, TapeListener listener);

/* A new float32 activation; its data is not cleared. */
Tensor *tape_tensor(Tape *tape, int ndim, const int64_t *shape, bool requires_grad);
/* The same, stored in tape->precision (device_store_rounded()): only op_linear() reads it. */
Tensor *tape_rounded_tensor(Tape *tape, int ndim, const int64_t *shape, bool requires_grad);
/* A tensor over the caller's device memory, which must stay valid until the next tape_begin(). Not owned. */
Tensor *tape_input(Tape *tape, void *data, DType dtype, int ndim, const int64_t *shape);
/* Scratch memory: count floats, not cleared, valid until the next tape_begin(). */
float *tape_floats(Tape *tape, int64_t count);

/* An operation calls this before it reads these tensors' data, in forward and in backward; any may be NULL. Raises
 * parameters-needed for those that are parameters. */
void tape_needs(Tape *tape, const Tensor *a, const Tensor *b, const Tensor *c);

/* Appends a node and counts one use of each input (b, c may be NULL). The caller fills in the node's other fields.
 * Returns NULL if the tape does not record or the output needs no gradient: then keep nothing for backward. */
Node *tape_record(Tape *tape, const char *name, void (*backward)(Tape *, Node *), Tensor *output, Tensor *a,
                  Tensor *b, Tensor *c);

/* Where a backward function writes its contribution to the tensor's gradient. values is NULL if the tensor needs none.
 * An activation's gradient gets its memory here at the first contribution, which is stored with = (device.h). A
 * parameter's gradient is zeroed before, so all contributions are added; if it has no memory, gradient-needed provides
 * it. Each call must be followed by exactly one contribution, in call order, because two inputs may be one tensor. */
Gradient tape_gradient(Tape *tape, Tensor *tensor);
/* The dtype of an activation's gradient, chosen at its first contribution. gradient_dtype.c always chooses float32;
 * backends/gpu/ replaces that file. */
DType gradient_dtype(const Tape *tape, const Tensor *tensor);

/* Returns forward(tape, x, what), which has x's shape. If the tape recomputes, it keeps only this result, and backward
 * computes the rest again, with the same bits. `what` must stay valid until then. */
Tensor *tape_block(Tape *tape, Tensor *x, TapeBlock forward, const void *what);
/* Frees the activations of the current block, and their gradients. */
void tape_close_block(Tape *tape);
/* The arena for new activations: that of the current block, if there is one, else the tape's. */
Arena *tape_arena(Tape *tape);

/* Adds the gradient of (seed * loss) to the gradient of every parameter that the loss depends on. loss: one element.
 * Nodes that the loss does not depend on are skipped. Faults if called twice for one recording. */
void tape_backward(Tape *tape, Tensor *loss, float seed);

/* Sets used[parameter->index] to true for each parameter that the loss depends on; leaves the others as they are. Call
 * it between forward and backward. */
void tape_mark_used(const Tape *tape, const Tensor *loss, bool *used);

#endif
