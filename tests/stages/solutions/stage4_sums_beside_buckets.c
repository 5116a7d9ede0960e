/* A correct stage 4 with another design: gradients stay in their own block, beside the buckets, in all micro-batches.
 * The last one copies each of them, when its event comes, to its place in what is sent, in 32 or in 16 bits. */
#include "ddp.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "ddp/bucket_plan.h"
#include "ddp/readiness.h"
#include "ddp/replicas.h"
#include "device/device.h"

const int ddp_stage_number = 4;
const char *const ddp_stage_name = "accumulation";

typedef struct Message {
    char name[24];
    size_t begin, elements; /* of Ddp.sent */
    int members, missing;
    Work *work;
} Message;

struct Ddp {
    ProcessGroup *pg;
    ParameterList *parameters;
    Tape *tape;
    DdpOptions options;
    Readiness readiness;
    void *gradients;
    char *sent; /* all messages, one after the other, in grad_dtype */
    Message *messages;
    int *message_of; /* by parameter index */
    size_t *place;   /* by parameter index: in `sent`, in elements */
    int count, next;
    bool last, rebuild_due;
};

/* order: of the `trained` trained parameters. */
static void lay_out(Ddp *ddp, const int *order, int trained)
{
    size_t *sizes = alloc_or_fault((size_t)trained * sizeof *sizes), next = 0;
    int *number = alloc_or_fault((size_t)trained * sizeof *number);
    for (int i = 0; i < trained; i++)
        sizes[i] = (size_t)tensor_count(&ddp->parameters->items[order[i]]->tensor) * sizeof(float);
    ddp->count = buckets_plan(sizes, trained, ddp->options.first_bucket_cap_bytes, ddp->options.bucket_cap_bytes,
                              number);
    free(ddp->messages);
    ddp->messages = alloc_or_fault((size_t)ddp->count * sizeof *ddp->messages);
    for (int i = 0; i < trained; i++) {
        Message *message = &ddp->messages[number[i]];
        if (message->members++ == 0)
            message->begin = next;
        ddp->message_of[order[i]] = number[i];
        ddp->place[order[i]] = next;
        next += parameter_gradient_bytes(ddp->parameters->items[order[i]]) / sizeof(float);
        message->elements = next - message->begin;
        snprintf(message->name, sizeof message->name, "bucket %d", number[i]);
    }
    free(sizes);
    free(number);
}

static void *sent_at(const Ddp *ddp, size_t element)
{
    return ddp->sent + element * dtype_size(ddp->options.grad_dtype);
}

static void gradient_ready(void *listener, Parameter *parameter)
{
    Ddp *ddp = listener;
    const DType dtype = ddp->options.grad_dtype;
    readiness_mark(&ddp->readiness, parameter);
    if (!ddp->last)
        return;
    void *to = sent_at(ddp, ddp->place[parameter->index]);
    if (dtype == DTYPE_F32)
        device_copy(to, parameter->tensor.grad, (size_t)tensor_count(&parameter->tensor) * sizeof(float));
    else
        device_to_half(to, parameter->tensor.grad, dtype, tensor_count(&parameter->tensor));
    ddp->messages[ddp->message_of[parameter->index]].missing--;
    for (; ddp->next < ddp->count && ddp->messages[ddp->next].missing == 0; ddp->next++) {
        Message *message = &ddp->messages[ddp->next];
        void *values = sent_at(ddp, message->begin);
        message->work = pg_all_reduce_async(ddp->pg, values, values, message->elements, dtype, REDUCE_SUM,
                                            message->name);
    }
}

Ddp *ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    const size_t room = (size_t)parameters->count;
    Ddp *ddp = alloc_or_fault(sizeof *ddp);
    *ddp = (Ddp){.pg = pg, .parameters = parameters, .tape = tape, .options = *options};
    replicas_check_same_model(pg, parameters);
    replicas_broadcast(pg, parameters);
    ddp->gradients = parameters_allocate_gradients(parameters);
    ddp->sent = pg_alloc_shared(pg, parameters_gradient_bytes(parameters));
    ddp->message_of = alloc_or_fault(room * sizeof *ddp->message_of);
    ddp->place = alloc_or_fault(room * sizeof *ddp->place);
    int *order = alloc_or_fault(room * sizeof *order), trained = 0;
    for (int i = parameters->count - 1; i >= 0; i--)
        if (parameters->items[i]->tensor.requires_grad)
            order[trained++] = i;
    lay_out(ddp, order, trained);
    free(order);
    readiness_create(&ddp->readiness, parameters);
    tape->on_gradient_ready = gradient_ready;
    tape->listener = ddp;
    return ddp;
}

void ddp_destroy(Ddp *ddp)
{
    ddp->tape->on_gradient_ready = NULL;
    parameters_free_gradients(ddp->parameters, ddp->gradients);
    pg_free_shared(ddp->pg, ddp->sent);
    readiness_free(&ddp->readiness);
    free(ddp->messages);
    free(ddp->message_of);
    free(ddp->place);
    free(ddp);
}

int ddp_bucket_count(const Ddp *ddp)
{
    return ddp->count;
}

void ddp_before_forward(Ddp *ddp, bool last_micro_batch)
{
    ddp->last = last_micro_batch;
    if (ddp->rebuild_due)
        lay_out(ddp, ddp->readiness.order, ddp->readiness.count);
    ddp->rebuild_due = false;
}

void ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    readiness_begin(&ddp->readiness, ddp->parameters);
    ddp->next = 0;
    for (int m = 0; m < ddp->count; m++)
        ddp->messages[m].missing = ddp->messages[m].members;
    bool *used = alloc_or_fault((size_t)ddp->parameters->count * sizeof *used);
    tape_mark_used(ddp->tape, loss, used);
    for (int i = 0; i < ddp->parameters->count && ddp->options.find_unused_parameters; i++)
        if (!used[i] && ddp->parameters->items[i]->tensor.requires_grad)
            gradient_ready(ddp, ddp->parameters->items[i]);
    free(used);
}

void ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    readiness_check_complete(&ddp->readiness, ddp->parameters);
    if (!ddp->last)
        return;
    for (int m = 0; m < ddp->count; m++)
        work_wait(ddp->messages[m].work);
    for (int i = 0; i < ddp->parameters->count; i++) {
        Tensor *tensor = &ddp->parameters->items[i]->tensor;
        if (!tensor->requires_grad)
            continue;
        if (ddp->options.grad_dtype == DTYPE_F32)
            device_copy(tensor->grad, sent_at(ddp, ddp->place[i]), (size_t)tensor_count(tensor) * sizeof(float));
        else
            device_from_half(tensor->grad, sent_at(ddp, ddp->place[i]), ddp->options.grad_dtype, tensor_count(tensor));
        device_scale(tensor->grad, gradient_scale, tensor_count(tensor));
    }
    if (ddp->options.find_unused_parameters)
        readiness_agree_on_use(ddp->pg, ddp->parameters);
    if (ddp->options.rebuild_buckets)
        readiness_agree_on_order(&ddp->readiness, ddp->pg);
    ddp->rebuild_due = ddp->options.rebuild_buckets;
    ddp->options.rebuild_buckets = false;
}
