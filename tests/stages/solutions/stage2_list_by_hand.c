/* A correct stage 2 with another design: buckets are a linked list, made from the plan's rule alone, and each has its
 * own block of shared memory. All of them are reduced first and scaled afterwards. */
#include "ddp.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "ddp/bucket_plan.h"
#include "ddp/replicas.h"
#include "device/device.h"

const int ddp_stage_number = 2;
const char *const ddp_stage_name = "bucketed";

typedef struct Piece Piece;
struct Piece {
    char name[24];
    float *values;
    size_t elements;
    Piece *next;
};

struct Ddp {
    ProcessGroup *pg;
    ParameterList *parameters;
    Piece *first;
};

/* A new piece for the trained parameters of bucket `number`. order: of the parameters; bucket_of: by place in it. */
static Piece *make_piece(Ddp *ddp, const int *order, const int *bucket_of, int count, int number)
{
    Piece *piece = alloc_or_fault(sizeof *piece);
    size_t bytes = 0, at = 0;
    snprintf(piece->name, sizeof piece->name, "bucket %d", number);
    for (int i = 0; i < count; i++)
        if (bucket_of[i] == number)
            bytes += parameter_gradient_bytes(ddp->parameters->items[order[i]]);
    piece->elements = bytes / sizeof *piece->values;
    piece->values = pg_alloc_shared(ddp->pg, bytes);
    for (int i = 0; i < count; i++) {
        Parameter *parameter = ddp->parameters->items[order[i]];
        if (bucket_of[i] != number)
            continue;
        parameter->tensor.grad = piece->values + at;
        at += parameter_gradient_bytes(parameter) / sizeof *piece->values;
    }
    return piece;
}

static void make_pieces(Ddp *ddp, const DdpOptions *options)
{
    const size_t room = (size_t)ddp->parameters->count;
    size_t *sizes = alloc_or_fault(room * sizeof *sizes);
    int *order = alloc_or_fault(room * sizeof *order), *bucket_of = alloc_or_fault(room * sizeof *bucket_of);
    int count = 0;
    for (int i = ddp->parameters->count; i-- > 0;) {
        if (!ddp->parameters->items[i]->tensor.requires_grad)
            continue;
        sizes[count] = (size_t)tensor_count(&ddp->parameters->items[i]->tensor) * sizeof(float);
        order[count++] = i;
    }
    int buckets = buckets_plan(sizes, count, options->first_bucket_cap_bytes, options->bucket_cap_bytes, bucket_of);
    Piece **end = &ddp->first;
    for (int b = 0; b < buckets; b++) {
        *end = make_piece(ddp, order, bucket_of, count, b);
        end = &(*end)->next;
    }
    free(sizes);
    free(order);
    free(bucket_of);
}

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    (void)tape;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    make_pieces(ddp, options);
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    while (ddp->first != NULL) {
        Piece *piece = ddp->first;
        ddp->first = piece->next;
        pg_free_shared(ddp->pg, piece->values);
        free(piece);
    }
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    int count = 0;
    for (const Piece *piece = ddp->first; piece != NULL; piece = piece->next)
        count++;
    return count;
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    (void)ddp;
    (void)last_micro_batch;
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    (void)ddp;
    (void)loss;
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    replicas_check_gradients(ddp->parameters, NULL);
    for (Piece *piece = ddp->first; piece != NULL; piece = piece->next)
        pg_all_reduce(ddp->pg, piece->values, piece->values, piece->elements, DTYPE_F32, REDUCE_SUM, piece->name);
    for (Piece *piece = ddp->first; piece != NULL; piece = piece->next)
        device_scale(piece->values, gradient_scale, (int64_t)piece->elements);
}
