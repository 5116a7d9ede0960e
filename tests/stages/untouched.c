/* untouched.c: the linker calls the functions below in place of ddp.h's. A stage may write weights and gradients, but
 * not what parameters there are: tests and the optimizer look at those in the model's list, and would see nothing. Nor
 * may it change the tape, but for its listeners, or the group. (In a judge, judge.h, there is no stage: nothing is
 * called.) */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ddp.h"
#include "judge.h"

#ifdef LOCKSTEP_STAGE_IS_APART
#include "stage_calls.h"
#else /* the project's own stages get the group itself */
static ProcessGroup *stage_handle(ProcessGroup *pg)
{
    return pg;
}

static void stage_begins(void)
{
}

static void stage_ends(const char *call)
{
    (void)call;
}

static bool stage_has_function(const void *function)
{
    return function != NULL;
}
#endif

typedef struct Before {
    const Ddp *ddp;
    Tape *tape, tape_before; /* the tape, and what it was before the call that runs */
    const ParameterList *list;
    int count;
    Parameter **items;
    Tensor *tensors; /* their values, but not their contents */
} Before;

enum { MOST = 16 };
static Before known[MOST]; /* ddp: NULL if it is free */

static Before *before(const Ddp *ddp)
{
    int i = 0;
    while (i < MOST && known[i].ddp != ddp)
        i++;
    CHECK(i < MOST, "more than %d of them at a time, or none that ddp_create() returned", MOST);
    return &known[i];
}

static Before look_at(const ParameterList *list)
{
    const size_t count = (size_t)list->count;
    Before now = {.list = list, .count = list->count, .items = alloc_or_fault(count * sizeof *now.items),
                  .tensors = alloc_or_fault(count * sizeof *now.tensors)};
    for (size_t i = 0; i < count; i++) {
        now.items[i] = list->items[i];
        now.tensors[i] = list->items[i]->tensor;
    }
    return now;
}

static void expect_untouched(const Before *was, const char *call)
{
    CHECK(was->list->count == was->count, "%s changed the number of the model's parameters from %d to %d", call,
          was->count, was->list->count);
    for (int i = 0; i < was->count; i++) {
        CHECK(was->list->items[i] == was->items[i], "%s changed the list of the model's parameters", call);
        const Tensor *tensor = &was->items[i]->tensor, *then = &was->tensors[i];
        CHECK(tensor->ndim == then->ndim && memcmp(tensor->shape, then->shape, sizeof then->shape) == 0 &&
                  tensor->dtype == then->dtype && tensor->requires_grad == then->requires_grad,
              "%s changed the shape or type of %s, or whether it is trained", call, was->items[i]->name);
    }
}

static void expect_own(const void *now, const void *then, const char *event, const char *call)
{
    CHECK(now == then || now == NULL || stage_has_function(now), "%s: %s of the tape's listener is no function of ddp.c", call, event);
}

/* A stage may set the three functions that listen, and what they get. */
static void expect_tape_untouched(const Before *was, const char *call)
{
    Tape now = *was->tape, then = was->tape_before;
    const TapeListener hears = now.listener, heard = then.listener;
    expect_own((const void *)hears.gradient_ready, (const void *)heard.gradient_ready, "gradient_ready", call);
    expect_own((const void *)hears.gradient_needed, (const void *)heard.gradient_needed, "gradient_needed", call);
    expect_own((const void *)hears.parameters_needed, (const void *)heard.parameters_needed, "parameters_needed", call);
    CHECK(memcmp(&now.arena, &then.arena, sizeof now.arena) == 0 && now.tensors == then.tensors &&
              now.tensor_count == then.tensor_count && now.tensor_capacity == then.tensor_capacity &&
              now.nodes == then.nodes && now.count == then.count && now.capacity == then.capacity &&
              now.recording == then.recording && now.running == then.running && now.precision == then.precision,
          "%s changed the tape: a stage sets its listeners, and nothing else", call);
}

static void begin(Before *was)
{
    expect_untouched(was, "the stage");
    was->tape_before = *was->tape;
    stage_begins();
}

static void finish(const Before *was, const char *call)
{
    stage_ends(call);
    expect_untouched(was, call);
    expect_tape_untouched(was, call);
}

Ddp *__real_ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options);
void __real_ddp_destroy(Ddp *ddp);
int __real_ddp_bucket_count(const Ddp *ddp);
void __real_ddp_before_forward(Ddp *ddp, bool which);
void __real_ddp_before_backward(Ddp *ddp, Tensor *loss);
void __real_ddp_after_backward(Ddp *ddp, float gradient_scale);
void __real_ddp_after_update(Ddp *ddp);
void __real_ddp_gather_weights(Ddp *ddp);
const Partition *__real_ddp_partition(Ddp *ddp);

/* In a judge the result is the memory of the gradients. */
Ddp *__wrap_ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    if (in_judge())
        return parameters_allocate_gradients(parameters);
    Before *place = before(NULL);
    *place = look_at(parameters);
    place->tape = tape;
    pg = stage_handle(pg);
    begin(place);
    Ddp *ddp = __real_ddp_create(pg, parameters, tape, options);
    finish(place, "ddp_create()");
    place->ddp = ddp;
    return ddp;
}

void __wrap_ddp_destroy(Ddp *ddp)
{
    if (in_judge()) {
        device_free(ddp);
        return;
    }
    Before *was = before(ddp);
    begin(was);
    __real_ddp_destroy(ddp);
    stage_ends("ddp_destroy()");
    const TapeListener left = was->tape->listener;
    CHECK(left.gradient_ready == NULL && left.gradient_needed == NULL && left.parameters_needed == NULL,
          "after ddp_destroy() the tape still raises its events, to a listener whose memory is freed: end it with "
          "tape_listen(tape, (TapeListener){0})");
    free(was->items);
    free(was->tensors);
    *was = (Before){0};
}

int __wrap_ddp_bucket_count(const Ddp *ddp)
{
    return in_judge() ? 0 : __real_ddp_bucket_count(ddp);
}

const Partition *__wrap_ddp_partition(Ddp *ddp)
{
    const Partition *partition = in_judge() ? NULL : __real_ddp_partition(ddp);
    if (partition != NULL) {
        expect_own((const void *)partition->add_up, NULL, "add_up", "ddp_partition()");
        expect_own((const void *)partition->gather, NULL, "gather", "ddp_partition()");
    }
    return partition;
}

void __wrap_ddp_before_forward(Ddp *ddp, bool which)
{
    if (in_judge())
        return;
    Before *was = before(ddp);
    begin(was);
    __real_ddp_before_forward(ddp, (which)); /* (): it is passed on as it is, also where a script rewrites callers */
    finish(was, "ddp_before_forward()");
}

void __wrap_ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    if (in_judge())
        return;
    Before *was = before(ddp);
    begin(was);
    __real_ddp_before_backward(ddp, loss);
    finish(was, "ddp_before_backward()");
}

void __wrap_ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    if (in_judge())
        return;
    Before *was = before(ddp);
    begin(was);
    __real_ddp_after_backward(ddp, gradient_scale);
    finish(was, "ddp_after_backward()");
}

void __wrap_ddp_after_update(Ddp *ddp)
{
    if (in_judge())
        return;
    Before *was = before(ddp);
    begin(was);
    __real_ddp_after_update(ddp);
    finish(was, "ddp_after_update()");
}

void __wrap_ddp_gather_weights(Ddp *ddp)
{
    if (in_judge())
        return;
    Before *was = before(ddp);
    begin(was);
    __real_ddp_gather_weights(ddp);
    finish(was, "ddp_gather_weights()");
}
