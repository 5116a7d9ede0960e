/* A correct stage 3, written independently of ours: it uses only the rule of the caps of ddp/buckets.h. Gradients lie
 * in one block; a bucket is a piece of it, and an element of a linked list. */
#include "ddp.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "ddp/buckets.h"
#include "ddp/readiness.h"
#include "ddp/replicas.h"
#include "device/device.h"

const int ddp_stage_number = 3;
const char *const ddp_stage_name = "overlap";

typedef struct Piece Piece;
struct Piece {
    char name[24];
    float *begin;
    size_t elements;
    int members, ready;
    Work *work;
    Piece *next;
};

struct Ddp {
    ProcessGroup *pg;
    ParameterList *parameters;
    Tape *tape;
    DdpOptions options;
    Readiness readiness;
    float *block, *scratch;
    Piece *first, *to_start;
    Piece **piece_of; /* by parameter index; NULL: frozen */
    int pieces;
    bool last, rebuild;
};

static Piece *add_piece(Ddp *ddp, float *begin)
{
    Piece *piece = alloc_or_fault(sizeof *piece), **end = &ddp->first;
    while (*end != NULL)
        end = &(*end)->next;
    *end = piece;
    piece->begin = begin;
    snprintf(piece->name, sizeof piece->name, "bucket %d", ddp->pieces++);
    return piece;
}

/* order: of the trained parameters. */
static void lay_out(Ddp *ddp, const int *order, int count)
{
    size_t *sizes = alloc_or_fault((size_t)count * sizeof *sizes);
    int *number = alloc_or_fault((size_t)count * sizeof *number);
    for (int i = 0; i < count; i++)
        sizes[i] = (size_t)tensor_count(&ddp->parameters->items[order[i]]->tensor) * sizeof(float);
    buckets_plan(sizes, count, ddp->options.first_bucket_cap_bytes, ddp->options.bucket_cap_bytes, number);

    size_t bytes = parameters_gradient_bytes(ddp->parameters);
    ddp->block = pg_alloc_shared(ddp->pg, bytes);
    ddp->scratch = device_alloc(bytes);
    ddp->piece_of = alloc_or_fault((size_t)ddp->parameters->count * sizeof(Piece *));
    ddp->pieces = 0;
    float *next = ddp->block;
    Piece *piece = NULL;
    for (int i = 0; i < count; i++) {
        Parameter *parameter = ddp->parameters->items[order[i]];
        if (i == 0 || number[i] != number[i - 1])
            piece = add_piece(ddp, next);
        parameter->tensor.grad = next;
        next += parameter_gradient_bytes(parameter) / sizeof(float);
        piece->elements = (size_t)(next - piece->begin);
        piece->members++;
        ddp->piece_of[order[i]] = piece;
    }
    free(sizes);
    free(number);
}

static void take_apart(Ddp *ddp)
{
    while (ddp->first != NULL) {
        Piece *piece = ddp->first;
        ddp->first = piece->next;
        free(piece);
    }
    pg_free_shared(ddp->pg, ddp->block);
    device_free(ddp->scratch);
    free(ddp->piece_of);
}

static void event(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    readiness_mark(&ddp->readiness, parameter);
    ddp->piece_of[parameter->index]->ready++;
    while (ddp->to_start != NULL && ddp->to_start->ready == ddp->to_start->members) {
        Piece *piece = ddp->to_start;
        ddp->to_start = piece->next;
        float *result = ddp->last ? piece->begin : ddp->scratch + (piece->begin - ddp->block);
        piece->work = pg_all_reduce_async(ddp->pg, piece->begin, result, piece->elements, DTYPE_F32, REDUCE_SUM,
                                          piece->name);
    }
}

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    ddp->pg = pg;
    ddp->parameters = parameters;
    ddp->tape = tape;
    ddp->options = *options;
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    int *order = alloc_or_fault((size_t)parameters->count * sizeof *order), count = 0;
    for (int i = parameters->count; i-- > 0;)
        if (parameters->items[i]->tensor.requires_grad)
            order[count++] = i;
    lay_out(ddp, order, count);
    free(order);
    readiness_create(&ddp->readiness, parameters);
    tape->on_gradient_ready = event;
    tape->listener = ddp;
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    ddp->tape->on_gradient_ready = NULL;
    take_apart(ddp);
    readiness_free(&ddp->readiness);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->pieces;
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    if (ddp->rebuild) {
        take_apart(ddp);
        lay_out(ddp, ddp->readiness.order, ddp->readiness.count);
        ddp->rebuild = ddp->options.rebuild_buckets = false;
    }
    ddp->last = last_micro_batch;
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    readiness_begin(&ddp->readiness, ddp->parameters);
    ddp->to_start = ddp->first;
    for (Piece *piece = ddp->first; piece != NULL; piece = piece->next)
        piece->ready = 0;
    if (!ddp->options.find_unused_parameters)
        return;
    bool *used = alloc_or_fault((size_t)ddp->parameters->count * sizeof *used);
    tape_mark_used(ddp->tape, loss, used);
    for (int i = 0; i < ddp->parameters->count; i++)
        if (ddp->piece_of[i] != NULL && !used[i])
            event(ddp, ddp->parameters->items[i]);
    free(used);
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    size_t elements = 0;
    for (Piece *piece = ddp->first; piece != NULL; piece = piece->next) {
        work_wait(piece->work);
        elements += piece->elements;
    }
    if (!ddp->last)
        return;
    device_scale(ddp->block, gradient_scale, (int64_t)elements); /* all of them at once */
    if (ddp->options.rebuild_buckets) {
        readiness_agree_on_order(&ddp->readiness, ddp->pg);
        ddp->rebuild = true;
    }
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
}
