/* untouched.c: the linker calls the functions below in place of ddp.h's. A stage may write weights and gradients, but
 * not what parameters there are: tests and the optimizer look at those in the model's list, and would see nothing. */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ddp.h"

typedef struct Before {
    const Ddp *ddp;
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
    Before now = {NULL, list, list->count, alloc_or_fault(count * sizeof *now.items),
                  alloc_or_fault(count * sizeof *now.tensors)};
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

Ddp *__real_ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options);
void __real_ddp_destroy(Ddp *ddp);
void __real_ddp_before_forward(Ddp *ddp, bool which);
void __real_ddp_before_backward(Ddp *ddp, Tensor *loss);
void __real_ddp_after_backward(Ddp *ddp, float gradient_scale);
void __real_ddp_after_update(Ddp *ddp);
void __real_ddp_gather_weights(Ddp *ddp);

Ddp *__wrap_ddp_create(ProcessGroup *pg, ParameterList *parameters, Tape *tape, const DdpOptions *options)
{
    Before *place = before(NULL);
    *place = look_at(parameters);
    Ddp *ddp = __real_ddp_create(pg, parameters, tape, options);
    expect_untouched(place, "ddp_create()");
    place->ddp = ddp;
    return ddp;
}

void __wrap_ddp_destroy(Ddp *ddp)
{
    Before *was = before(ddp);
    expect_untouched(was, "the stage");
    __real_ddp_destroy(ddp);
    free(was->items);
    free(was->tensors);
    *was = (Before){0};
}

void __wrap_ddp_before_forward(Ddp *ddp, bool which)
{
    const Before *was = before(ddp);
    expect_untouched(was, "the stage");
    __real_ddp_before_forward(ddp, (which)); /* (): it is passed on as it is, also where a script rewrites callers */
    expect_untouched(was, "ddp_before_forward()");
}

void __wrap_ddp_before_backward(Ddp *ddp, Tensor *loss)
{
    const Before *was = before(ddp);
    expect_untouched(was, "the stage");
    __real_ddp_before_backward(ddp, loss);
    expect_untouched(was, "ddp_before_backward()");
}

void __wrap_ddp_after_backward(Ddp *ddp, float gradient_scale)
{
    const Before *was = before(ddp);
    expect_untouched(was, "the stage");
    __real_ddp_after_backward(ddp, gradient_scale);
    expect_untouched(was, "ddp_after_backward()");
}

void __wrap_ddp_after_update(Ddp *ddp)
{
    const Before *was = before(ddp);
    expect_untouched(was, "the stage");
    __real_ddp_after_update(ddp);
    expect_untouched(was, "ddp_after_update()");
}

void __wrap_ddp_gather_weights(Ddp *ddp)
{
    const Before *was = before(ddp);
    expect_untouched(was, "the stage");
    __real_ddp_gather_weights(ddp);
    expect_untouched(was, "ddp_gather_weights()");
}
