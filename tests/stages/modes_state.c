/* modes_state.c: see modes_state.h. */
#include "modes_state.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"
#include "expect.h"

long *state_versions(const Trial *trial)
{
    long *versions = alloc_or_fault((size_t)trial->ranks->parameters.count * sizeof *versions);
    for (int i = 0; i < trial->ranks->parameters.count; i++)
        versions[i] = trial->ranks->parameters.items[i]->version;
    return versions;
}

/* Of what was received. Weights that are not rank 0's were not, which is another mistake. */
void state_expect_marked(const Trial *trial, const long *versions)
{
    for (int i = 0; i < trial->ranks->parameters.count; i++) {
        const float *got = trial_tensor(trial, i)->data, *rank_0s = trial->whole.parameters.items[i]->tensor.data;
        const size_t bytes = (size_t)tensor_count(trial_tensor(trial, i)) * sizeof *got;
        if (!trial->begins_as_rank_0 && got != NULL && memcmp(got, rank_0s, bytes) == 0 &&
            trial->ranks->parameters.items[i]->version == versions[i])
            fail_msg("rank %d: ddp_create() has received %s, and not called parameter_changed(): products in 16 bits "
                     "would go on with the old weights (%s)", pg_rank(trial->pg),
                     trial->ranks->parameters.items[i]->name, trial->mode->title);
    }
}

void state_expect_fresh_gradients(const Trial *trial)
{
    for (int i = 0; i < trial->ranks->parameters.count; i++) {
        const float *gradient = trial_tensor(trial, i)->grad;
        if ((uintptr_t)gradient % device_alignment() != 0)
            fail_msg("rank %d: the gradient of %s begins at no multiple of %zu bytes (%s)", pg_rank(trial->pg),
                     trial->ranks->parameters.items[i]->name, device_alignment(), trial->mode->title);
        for (int64_t k = 0; k < tensor_count(trial_tensor(trial, i)) && gradient != NULL; k++)
            if (gradient[k] != 0)
                fail_msg("rank %d: after ddp_create() the gradient of %s is not zero: it is that of before (%s); a "
                         "model may have been trained already, and its gradients are freed then", pg_rank(trial->pg),
                         trial->ranks->parameters.items[i]->name, trial->mode->title);
    }
}

void state_expect_weights(const Trial *trial, int step, int k)
{
    for (int i = 0; i < trial->whole.parameters.count && LOCKSTEP_STAGE < 5; i++) {
        const Tensor *want = &trial->whole.parameters.items[i]->tensor;
        if (memcmp(trial_tensor(trial, i)->data, want->data, (size_t)tensor_count(want) * sizeof(float)) != 0)
            fail_msg("rank %d: %s has other weights before micro-batch %d of step %d than the optimizer has left, or "
                     "at first than rank 0 (%s): a stage writes weights in ddp_create() only", pg_rank(trial->pg),
                     trial->ranks->parameters.items[i]->name, k + 1, step + 1, trial->mode->title);
    }
}

void state_expect_own_weights(const Trial *trial)
{
    for (int i = 0; i < trial->whole.parameters.count; i++) {
        const Tensor *want = &trial->whole.parameters.items[i]->tensor;
        const float *got = trial_tensor(trial, i)->data;
        if (got == NULL || memcmp(got, want->data, (size_t)tensor_count(want) * sizeof *got) != 0)
            fail_msg("rank %d: after ddp_destroy() %s does not have its last weights (%s); usual cause: they are not "
                     "gathered before the shards are freed", pg_rank(trial->pg),
                     trial->ranks->parameters.items[i]->name, trial->mode->title);
    }
}

/* ---- slices ---- */

/* Slices are in the order of the ranks, without a gap. */
static void compare_with_group(const Trial *trial, const int64_t *all, int first, int ranks, int parameter)
{
    const int count = trial->ranks->parameters.count;
    int64_t covered = 0;
    for (int rank = first; rank < first + ranks; rank++) {
        const int64_t *slice = all + 2 * (rank * count + parameter);
        if (slice[1] > 0 && slice[0] != covered)
            break;
        covered += slice[1];
    }
    if (covered != tensor_count(trial_tensor(trial, parameter)))
        fail_msg("rank %d: the slices of %s that ddp_partition() tells of do not cover it: %lld of %lld elements have "
                 "one owner (%s)", pg_rank(trial->pg), trial->ranks->parameters.items[parameter]->name,
                 (long long)covered, (long long)tensor_count(trial_tensor(trial, parameter)), trial->mode->title);
}

void state_expect_partition(const Trial *trial)
{
    const Partition *partition = ddp_partition(trial->ddp);
    const int count = trial->ranks->parameters.count, world = pg_world_size(trial->pg);
    if ((LOCKSTEP_STAGE == 5) != (partition != NULL))
        fail_msg("ddp_partition() must%s return NULL in stage %d", LOCKSTEP_STAGE == 5 ? " not" : "", LOCKSTEP_STAGE);
    if (partition == NULL)
        return;
    int64_t *own = alloc_or_fault((size_t)count * 2 * sizeof *own);
    int64_t *all = alloc_or_fault((size_t)count * 2 * (size_t)world * sizeof *all);
    for (int i = 0; i < count; i++) {
        const Slice *slice = &partition->slices[i];
        own[2 * i] = slice->begin;
        own[2 * i + 1] = slice->count;
        if (slice->count > 0 && (slice->weight == NULL || slice->grad == NULL))
            fail_msg("rank %d: the slice of %s has no weights or no gradients (%s)", pg_rank(trial->pg),
                     trial->ranks->parameters.items[i]->name, trial->mode->title);
    }
    pg_all_gather(trial->pg, own, all, (size_t)count * 2, DTYPE_I64, trial_weights);
    const int ranks = trial->mode->sharding.shard_ranks > 0 ? trial->mode->sharding.shard_ranks : world;
    for (int i = 0; i < count; i++)
        if (i != trial->mode->frozen)
            for (int first = 0; first < world; first += ranks)
                compare_with_group(trial, all, first, ranks, i);
    free(own);
    free(all);
}

/* ---- use, and levels ---- */

void state_expect_use(const Trial *trial, int i, int step)
{
    const bool used = fan_uses(trial->mode, pg_world_size(trial->pg), step, i);
    const Parameter *parameter = trial->ranks->parameters.items[i];
    if (trial->mode->options.find_unused_parameters && parameter->has_gradient != used)
        fail_msg("rank %d: after step %d, %s counts as %s, but %s (%s); usual cause: ranks that do not agree on which "
                 "parameters were used", pg_rank(trial->pg), step + 1, parameter->name, used ? "unused" : "used",
                 used ? "a rank has used it in a micro-batch of the step" : "no rank has used it",
                 trial->mode->title);
}

void state_expect_level(const Trial *trial)
{
    const int zero = LOCKSTEP_STAGE < 5 || pg_world_size(trial->pg) == 1 ? 1 : trial->mode->sharding.level;
    for (int i = 0; i < trial->ranks->parameters.count; i++) {
        const bool weights = zero == 3 && trial_tensor(trial, i)->data != NULL;
        if (i != trial->mode->frozen && (weights || (zero >= 2 && trial_tensor(trial, i)->grad != NULL)))
            fail_msg("rank %d: after backward %s still has its whole %s, as at a lower level (%s)", pg_rank(trial->pg),
                     trial->ranks->parameters.items[i]->name, weights ? "weights" : "gradient", trial->mode->title);
    }
}
