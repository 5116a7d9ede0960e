/* replicas.c: the same model on every rank: checked before the first step, copied, and checked again. */
#include "ddp/replicas.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "device/device.h"

enum { LINE_SIZE = 160 }; /* bytes: the longest description of a parameter */
enum { LARGEST_TEXT = 1 << 24 }; /* bytes; a larger size was sent by another collective */

/* Ends the run at the first line in which the texts differ. */
static void show_difference(const char *text, const char *other, int rank, const char *problem, const char *advice)
{
    int length = 0, other_length = 0;
    do {
        text += length + (text[length] == '\n');
        other += other_length + (other[other_length] == '\n');
        length = (int)strcspn(text, "\n");
        other_length = (int)strcspn(other, "\n");
    } while (length == other_length && memcmp(text, other, (size_t)length) == 0);
    const char *value = strstr(text, " is ");
    int name = value != NULL && value < text + length ? (int)(value - text) + 4 : 0;
    int known = strncmp(text, other, (size_t)name) == 0 ? name : 0; /* do not print the same name twice */
    die("%s: %.*s on rank 0, but %.*s on rank %d; %s", problem, length, text, other_length - known, other + known, rank,
        advice);
}

static void check_same_collective(bool same, int rank)
{
    CHECK(same, "rank %d sent data of another collective, not the text that is compared here: the ranks have not made "
          "the same calls in the same order before; --debug-collectives names the first one that differs", rank);
}

/* `problem` is sent in front of the text, to recognise data of another collective. */
void replicas_check_same_text(ProcessGroup *pg, const char *text, const char *problem, const char *advice)
{
    const int world_size = pg_world_size(pg);
    const size_t head = strlen(problem);
    int64_t size = (int64_t)(head + strlen(text)), largest = size;
    int64_t *sizes = alloc_or_fault((size_t)world_size * sizeof *sizes);
    pg_all_gather(pg, &size, sizes, 1, DTYPE_I64, "size of a description");
    for (int rank = 0; rank < world_size; rank++) {
        check_same_collective(sizes[rank] <= LARGEST_TEXT, rank);
        largest = sizes[rank] > largest ? sizes[rank] : largest;
    }
    size_t words = (size_t)largest / sizeof(int32_t) + 1, bytes = words * sizeof(int32_t); /* with a 0 at the end */
    char *mine = alloc_or_fault(bytes), *all = alloc_or_fault((size_t)world_size * bytes);
    stpcpy(stpcpy(mine, problem), text);
    pg_all_gather(pg, mine, all, words, DTYPE_I32, "description");
    for (int rank = 0; rank < world_size; rank++) {
        const char *theirs = all + (size_t)rank * bytes;
        check_same_collective(strncmp(theirs, problem, head) == 0, rank);
        if (strcmp(all, theirs) != 0)
            show_difference(all + head, theirs + head, rank, problem, advice);
    }
    free(sizes);
    free(mine);
    free(all);
}

void replicas_check_same_model(ProcessGroup *pg, const ParameterList *parameters)
{
    char *text = alloc_or_fault((size_t)(parameters->count + 1) * LINE_SIZE), shape[64];
    char *end = text + sprintf(text, "the number of parameters is %d\n", parameters->count);
    for (int i = 0; i < parameters->count; i++) {
        const Tensor *tensor = &parameters->items[i]->tensor;
        tensor_describe(tensor, shape, sizeof shape);
        end += sprintf(end, "parameter %d is %.60s %s%s\n", i, parameters->items[i]->name, shape,
                       tensor->requires_grad ? "" : " (frozen)");
    }
    replicas_check_same_text(pg, text, "the ranks have different models",
                             "start every rank with the same --model and sizes");
    free(text);
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

/* note: ranks-agree
 * Ranks compare a hash of each parameter, not the weights: 8 bytes per parameter are sent. This finds a rank that
 * differs from the others; a mistake that all ranks make alike needs a comparison with one process (--verify). */
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
          "backward is over and no gradient-ready event was recorded for any of %d parameters: does ddp_create() "
          "listen to the tape, and does gradient_ready() call readiness_mark()?", trained);
    CHECK(missing == 0, "backward is over and %d parameter(s) got no gradient: %s. The loss does not depend on them; "
                        "freeze them (requires_grad), or use --find-unused-parameters (stages 3 to 5, not --zero 3), "
                        "with which ddp_before_backward() marks them as ready in every micro-batch", missing, names);
}
