/* replicas.c: the same model on every rank: checked before the first step, copied, and checked again. */
#include "ddp/replicas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "device/device.h"

#define DESCRIPTION_SIZE 160 /* "parameter 0 is fc1.weight float32 [512, 784]", sent as 40 int32 words */

static void describe(const ParameterList *parameters, int i, char *text)
{
    char shape[64];
    memset(text, 0, DESCRIPTION_SIZE);
    if (i >= parameters->count) {
        snprintf(text, DESCRIPTION_SIZE, "parameter %d is nothing (it has %d parameters)", i, parameters->count);
        return;
    }
    tensor_describe(&parameters->items[i]->tensor, shape, sizeof shape);
    snprintf(text, DESCRIPTION_SIZE, "parameter %d is %.60s %s%s", i, parameters->items[i]->name, shape,
             parameters->items[i]->tensor.requires_grad ? "" : " (frozen)");
}

/* What comes from a rank that is in another collective is not a description at all: not a matter of models then. */
static void check_is_description(const char *text, int i, int rank)
{
    char begin[40];
    int length = snprintf(begin, sizeof begin, "parameter %d is ", i);
    CHECK(memcmp(text, begin, (size_t)length) == 0,
          "what rank %d sent is no description of a parameter: it is in another collective, so the ranks have not made "
          "the same calls in the same order before; --debug-collectives names the first one that differs", rank);
}

void replicas_check_same_model(ProcessGroup *pg, const ParameterList *parameters)
{
    int world_size = pg_world_size(pg);
    char mine[DESCRIPTION_SIZE];
    char *all = alloc_or_fault((size_t)world_size * DESCRIPTION_SIZE);
    int64_t count = parameters->count, most = 0;
    pg_all_reduce(pg, &count, &most, 1, DTYPE_I64, REDUCE_MAX, "number of parameters");
    for (int i = 0; i < most; i++) {
        describe(parameters, i, mine);
        pg_all_gather(pg, mine, all, DESCRIPTION_SIZE / 4, DTYPE_I32, "description of a parameter");
        for (int rank = 1; rank < world_size; rank++) {
            const char *theirs = all + (size_t)rank * DESCRIPTION_SIZE;
            check_is_description(all, i, 0);
            check_is_description(theirs, i, rank);
            if (memcmp(all, theirs, DESCRIPTION_SIZE) != 0)
                die("the ranks have different models: %s on rank 0, but %s on rank %d; start every rank with the same "
                    "--model and sizes", all, strstr(theirs, " is ") + 4, rank);
        }
    }
    free(all);
}

void replicas_broadcast(ProcessGroup *pg, ParameterList *parameters)
{
    parameters_changed(parameters);
    for (int i = 0; i < parameters->count; i++) {
        Parameter *parameter = parameters->items[i];
        pg_broadcast(pg, parameter->tensor.data, (size_t)tensor_count(&parameter->tensor), DTYPE_F32, 0,
                     parameter->name);
    }
}

/* A hash of one parameter's bits. */
static int64_t hash_parameter(const Parameter *parameter)
{
    size_t bytes = (size_t)tensor_count(&parameter->tensor) * sizeof(float);
    unsigned char *values = alloc_or_fault(bytes);
    device_to_host(values, parameter->tensor.data, bytes);
    uint64_t hash = fnv1a(FNV1A_START, values, bytes);
    free(values);
    return (int64_t)hash;
}

/* note: ranks-agree */
void replicas_check_equal(ProcessGroup *pg, const ParameterList *parameters)
{
    int world_size = pg_world_size(pg);
    size_t count = (size_t)parameters->count;
    int64_t *mine = alloc_or_fault(count * sizeof *mine);
    int64_t *all = alloc_or_fault((size_t)world_size * count * sizeof *all);
    for (int i = 0; i < parameters->count; i++)
        mine[i] = hash_parameter(parameters->items[i]);
    pg_all_gather(pg, mine, all, count, DTYPE_I64, "fingerprints of the parameters");
    for (int i = 0; i < parameters->count; i++)
        for (int rank = 1; rank < world_size; rank++)
            CHECK(all[(size_t)rank * count + (size_t)i] == all[i],
                  "the ranks' weights have drifted apart: %s differs between rank 0 and rank %d (were rank 0's "
                  "weights broadcast? is its gradient complete when it is sent, summed on all ranks, waited for, and "
                  "scaled alike?)", parameters->items[i]->name, rank);
    free(mine);
    free(all);
}

void replicas_check_gradients(const ParameterList *parameters, const bool *ready)
{
    char names[512] = "";
    size_t used = 0;
    int missing = 0, trained = 0;
    for (int i = 0; i < parameters->count; i++) {
        const Parameter *parameter = parameters->items[i];
        trained += parameter->tensor.requires_grad;
        if (!parameter->tensor.requires_grad || (ready != NULL ? ready[i] : parameter->has_gradient))
            continue;
        missing++;
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", parameter->name);
    }
    CHECK(missing == 0 || missing < trained || ready == NULL,
          "backward is over and no gradient-ready event was noted, of any of %d parameters: does ddp_create() listen "
          "to the tape, and does gradient_ready() call readiness_mark()?", trained);
    CHECK(missing == 0, "backward is over and %d parameter(s) got no gradient: %s. The loss does not depend on them; "
                        "freeze them, or let --find-unused-parameters (stage 3 on) pass them over", missing, names);
}
