/* A correct stage 4 with another design: two linked lists of buckets, to be launched and under way. Events collect what
 * is done already, without waiting. A 16-bit copy exists only while it is sent. */
#include "ddp.h"

#include <stdlib.h>

#include "base/check.h"
#include "ddp/buckets.h"
#include "ddp/readiness.h"
#include "ddp/replicas.h"
#include "device/device.h"

const int ddp_stage_number = 4;
const char *const ddp_stage_name = "accumulation";

typedef struct Entry Entry;
struct Entry {
    Bucket *bucket;
    Entry *next;
};

typedef struct Queue {
    Entry *first, **end;
} Queue;

struct Ddp {
    ProcessGroup *pg;
    ParameterList *parameters;
    Tape *tape;
    DdpOptions options;
    Buckets buckets;
    Readiness readiness;
    Queue to_launch, under_way; /* both empty while micro-batches only accumulate */
    bool last, rebuild_due;
};

static void append(Queue *queue, Bucket *bucket)
{
    Entry *entry = alloc_or_fault(sizeof *entry);
    entry->bucket = bucket;
    if (queue->first == NULL)
        queue->end = &queue->first;
    *queue->end = entry;
    queue->end = &entry->next;
}

static Bucket *take_first(Queue *queue)
{
    Entry *entry = queue->first;
    Bucket *bucket = entry->bucket;
    queue->first = entry->next;
    free(entry);
    return bucket;
}

static void launch(Ddp *ddp, Bucket *bucket)
{
    void *sent = bucket->data;
    if (ddp->options.grad_dtype != DTYPE_F32) {
        sent = bucket->half = device_alloc(bucket->elements * sizeof(uint16_t));
        device_to_half(sent, bucket->data, ddp->options.grad_dtype, (int64_t)bucket->elements);
    }
    bucket->work = pg_all_reduce_async(ddp->pg, sent, sent, bucket->elements, ddp->options.grad_dtype, REDUCE_SUM,
                                       bucket->name);
    append(&ddp->under_way, bucket);
}

static void collect(Ddp *ddp, Bucket *bucket)
{
    work_wait(bucket->work);
    if (bucket->half != NULL)
        device_from_half(bucket->data, bucket->half, ddp->options.grad_dtype, (int64_t)bucket->elements);
    device_free(bucket->half);
    bucket->half = NULL;
}

static void gradient_ready(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    readiness_mark(&ddp->readiness, parameter);
    ddp->buckets.items[ddp->buckets.of_parameter[parameter->index]].pending--;
    while (ddp->to_launch.first != NULL && ddp->to_launch.first->bucket->pending == 0)
        launch(ddp, take_first(&ddp->to_launch));
    while (ddp->under_way.first != NULL && work_test(ddp->under_way.first->bucket->work))
        collect(ddp, take_first(&ddp->under_way));
}

static void create_buckets(Ddp *ddp, const int *order)
{
    buckets_create(&ddp->buckets, ddp->pg, ddp->parameters, order, ddp->options.first_bucket_cap_bytes,
                   ddp->options.bucket_cap_bytes);
}

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    *ddp = (Ddp){.pg = pg, .parameters = parameters, .tape = tape, .options = *options};
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    create_buckets(ddp, NULL);
    readiness_create(&ddp->readiness, parameters);
    tape->on_gradient_ready = gradient_ready;
    tape->listener = ddp;
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    ddp->tape->on_gradient_ready = NULL;
    buckets_free(&ddp->buckets);
    readiness_free(&ddp->readiness);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->buckets.count;
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    ddp->last = last_micro_batch;
    if (!ddp->rebuild_due)
        return;
    buckets_free(&ddp->buckets);
    create_buckets(ddp, ddp->readiness.order);
    ddp->rebuild_due = false;
    ddp->options.rebuild_buckets = false;
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    readiness_begin(&ddp->readiness, ddp->parameters);
    for (int b = 0; b < ddp->buckets.count; b++) {
        ddp->buckets.items[b].pending = ddp->buckets.items[b].count;
        if (ddp->last)
            append(&ddp->to_launch, &ddp->buckets.items[b]);
    }
    if (!ddp->options.find_unused_parameters)
        return;
    bool *used = alloc_or_fault((size_t)ddp->parameters->count * sizeof *used);
    tape_mark_used(ddp->tape, loss, used);
    for (int i = 0; i < ddp->parameters->count; i++)
        if (!used[i] && ddp->parameters->items[i]->tensor.requires_grad)
            gradient_ready(ddp, ddp->parameters->items[i]);
    free(used);
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    while (ddp->under_way.first != NULL)
        collect(ddp, take_first(&ddp->under_way));
    if (!ddp->last)
        return;
    for (int b = 0; b < ddp->buckets.count; b++)
        device_scale(ddp->buckets.items[b].data, gradient_scale, (int64_t)ddp->buckets.items[b].elements);
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
    if (ddp->options.rebuild_buckets)
        readiness_agree_on_order(&ddp->readiness, ddp->pg);
    ddp->rebuild_due = ddp->options.rebuild_buckets;
}
