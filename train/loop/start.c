/* start.c: see start.h. */
#include "train/loop/start.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "ddp/replicas.h"

/* note: uneven-end
 * Without --join, a rank that runs out of data would leave the loop, and the others would wait for it in their next
 * all-reduce. So before the first step, ranks tell each other how many steps they have data for. Collective. */
void start_check_even_end(ProcessGroup *pg, const Replica *replica, const Sampler *sampler)
{
    const int64_t total_steps = replica->total_steps + sampler->batch_offset;
    int world_size = pg_world_size(pg), fewest_rank = 0, most_rank = 0;
    int64_t mine = sampler_rank_steps(sampler, pg_rank(pg));
    int64_t *steps = alloc_or_fault((size_t)world_size * sizeof *steps);
    pg_all_gather(pg, &mine, steps, 1, DTYPE_I64, "steps that a rank has data for");
    for (int rank = 1; rank < world_size; rank++) {
        fewest_rank = steps[rank] < steps[fewest_rank] ? rank : fewest_rank;
        most_rank = steps[rank] > steps[most_rank] ? rank : most_rank;
    }
    int64_t fewest = steps[fewest_rank], most = steps[most_rank];
    free(steps);
    if (fewest < most && fewest < total_steps && replica->options->join == JOIN_NONE)
        die("--rank-samples: an epoch has %lld batches on rank %d, but only %lld on rank %d, and the others would wait "
            "for it; give --join to train on without its data, --drop-last to stop all ranks there, or equal numbers",
            (long long)most, most_rank, (long long)fewest, fewest_rank);
}

/* note: too-few-to-normalize
 * Batch norm divides by a variance, which one sample does not have. The last batch of an epoch may be that small, so the
 * ranks look at all steps before the first one. */
void start_check_norm(const Replica *replica, const Sampler *sampler, long first_step)
{
    const Options *options = replica->options;
    const bool alone = options->model.norm == NORM_BATCH; /* a rank's own samples; else those of all ranks */
    const int64_t epoch = sampler_steps_per_epoch(sampler), left = replica->total_steps - first_step;
    for (int64_t i = 0; i < (left < epoch ? left : epoch) && options->model.norm != NORM_NONE; i++)
        for (int k = 0; k < options->accumulate; k++) {
            int64_t step, samples = 0;
            bool too_few = false;
            sampler_epoch_of_step(sampler, first_step + (long)i, &step);
            for (int rank = 0; rank < sampler->world_size; rank++) {
                const int64_t own = sampler_count(sampler, step, rank, k, options->accumulate);
                too_few = too_few || (alone && own == 1);
                samples += own;
            }
            if (too_few || samples == 1)
                die("--norm: step %lld of an epoch has a micro-batch with a single sample%s, which has no variance; give "
                    "another --batch-size", (long long)step, alone ? " on one rank" : "");
        }
}

/* Each rank reads the files of its own host, and the same name may hold other data there. */
void start_check_same_files(ProcessGroup *pg, const Replica *replica, const Dataset *train_set, const Dataset *eval_set,
                            long first_step)
{
    char text[320], checkpoint[128] = "none";
    if (pg_world_size(pg) == 1)
        return; /* a checksum takes time, and there is nothing to compare */
    if (replica->options->resume != NULL)
        snprintf(checkpoint, sizeof checkpoint, "of step %ld, loss scale %g (%ld good steps), checksum %016llx",
                 first_step, (double)replica->scaler.scale, replica->scaler.good_steps,
                 (unsigned long long)replica->resumed_hash);
    snprintf(text, sizeof text, "the data to train on is %lld samples, checksum %08x\n"
             "the data to evaluate on is %lld samples, checksum %08x\n" "the checkpoint (--resume) is %s\n",
             (long long)train_set->size, replica->data_checksum,
             (long long)eval_set->size, dataset_checksum(eval_set), checkpoint);
    replicas_check_same_text(pg, text, "the ranks read different files",
                             "give every rank the same data and checkpoint");
}
