/* setup.c: sets up a run before its first step, and tears it down. */
#include "train/loop/trainer.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "ddp/replicas.h"

#define RANDOM_SAMPLES 1000 /* size of the toy regression's data set */

/* note: uneven-end
 * Without --join, a rank that runs out of data would leave the loop, and the others would wait for it in their next
 * all-reduce. So before the first step, ranks exchange their numbers of steps, and die() if these differ. Collective.
 *
 * note: shadowing
 * With --join, a rank that has run out of data gets micro-batches of 0 samples and treats them as any others: the tape
 * raises its events, its all-reduces start, and its gradients are zero. All ranks take the same optimizer step. */
static void check_even_end(ProcessGroup *pg, const Replica *replica, const Sampler *sampler)
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
 * Batch norm divides by a variance, which one sample does not have. The last batch of an epoch may be that small. */
static void check_norm(const Replica *replica, const Sampler *sampler, long first_step)
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
                die("--norm: step %lld of an epoch has a micro-batch with a single sample%s, which has no variance; "
                    "give another --batch-size", (long long)step, alone ? " on one rank" : "");
        }
}

/* Each rank reads its own host's files. If they differ, die()s and shows both sides. Collective. */
static void check_same_files(ProcessGroup *pg, const Replica *replica, const Dataset *train_set,
                             const Dataset *eval_set, long first_step)
{
    char text[320], checkpoint[128] = "none";
    if (pg_world_size(pg) == 1)
        return; /* a checksum takes time */
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

static void open_dataset(Dataset *dataset, const Options *o, DatasetSplit split)
{
    const ModelSpec *model = &o->model;
    switch (o->dataset) {
    case DATASET_IMAGES:
        dataset_open_images(dataset, o->data, split, model->mlp.inputs, model->mlp.outputs);
        break;
    case DATASET_TEXT:
        dataset_open_text(dataset, o->data, split, model->gpt.context, o->seed, o->binary_data);
        dataset->mask = split == SPLIT_TRAIN ? o->mask_tokens : 0;
        break;
    case DATASET_RANDOM:
        dataset_open_random(dataset, RANDOM_SAMPLES, model->mlp.inputs, model->mlp.outputs,
                            o->seed + (split == SPLIT_EVAL));
        break;
    }
}

/* note: same-start
 * Ranks draw different weights (seed + rank), so that only the broadcast in ddp_create() can make them equal. */
static void create_replica(Trainer *trainer)
{
    const Options *options = trainer->options;
    Replica *replica = &trainer->replica;
    const uint64_t seed = options->seed + (options->same_seed ? 0 : (uint64_t)pg_rank(trainer->pg));
    replica_create(replica, options, seed, run_length(options, &trainer->sampler));
    replica->rank_order = trainer->resolved->rank_order;
    replica_make_codec(replica, pg_rank(trainer->pg), 1, pg_world_size(trainer->pg));
    local_work_begin("reads", options->resume != NULL ? options->resume : "its data");
    if (pg_world_size(trainer->pg) > 1 || options->save != NULL || options->resume != NULL)
        replica->data_checksum = dataset_checksum(&trainer->train_set);
    if (options->resume != NULL)
        trainer->record.first_step = replica_resume(replica, options->resume, &trainer->sampler);
    local_work_end();
    if (options->warmup_given && options->warmup_steps > replica->total_steps)
        die("--warmup-steps: %ld is more than the run's %ld steps; give fewer", options->warmup_steps,
            replica->total_steps);
    check_same_files(trainer->pg, replica, &trainer->train_set, &trainer->eval_set, trainer->record.first_step);
    check_even_end(trainer->pg, replica, &trainer->sampler);
    check_norm(replica, &trainer->sampler, trainer->record.first_step);
    if (trainer->record.first_step >= replica->total_steps)
        die("--resume: %s was saved after %ld steps, and the run ends there: ask for more --steps or --epochs",
            options->resume, trainer->record.first_step);
}

static void join_norm_group(Trainer *trainer, Norm norm)
{
    if (norm == NORM_NONE || pg_world_size(trainer->pg) == 1)
        return;
    trainer->norm_group = pg_split(trainer->pg, 0);
    trainer->norm_ranks = sync_batch_norm_ranks(trainer->norm_group);
    if (norm == NORM_SYNC_BATCH)
        trainer->replica.model.norm_ranks = &trainer->norm_ranks;
}

/* --verify: the reference will start from these weights, which rank 0 has broadcast. */
static void keep_initial_weights(Trainer *trainer)
{
    const ParameterList *parameters = &trainer->replica.model.parameters;
    ddp_gather_weights(trainer->ddp);
    if (pg_rank(trainer->pg) != 0)
        return;
    trainer->initial_weights = alloc_or_fault((size_t)parameters_total(parameters) * sizeof(float));
    parameters_to_host(parameters, trainer->initial_weights);
}

void set_up_run(Trainer *trainer)
{
    const Options *options = trainer->options;
    const int world_size = pg_world_size(trainer->pg);
    local_work_begin("reads", "its data");
    open_dataset(&trainer->train_set, options, SPLIT_TRAIN);
    open_dataset(&trainer->eval_set, options, SPLIT_EVAL);
    local_work_end();
    trainer->record.base_rss_mb = report_resident_mb();
    sampler_create(&trainer->sampler, trainer->train_set.size, world_size, options->batch_size, options->seed, true,
                   options->drop_last);
    if (options->rank_samples_count > 0)
        sampler_set_rank_samples(&trainer->sampler, options->rank_samples);
    if (sampler_steps_per_epoch(&trainer->sampler) == 0)
        die("--drop-last leaves nothing of %lld samples on %d ranks", (long long)trainer->train_set.size, world_size);
    create_replica(trainer);
    join_norm_group(trainer, options->model.norm);
    DdpOptions ddp_options = options->ddp;
    ddp_options.codec = replica_codec(&trainer->replica);
    ddp_options.sharding = &options->sharding;
    trainer->ddp = ddp_create(trainer->pg, &trainer->replica.model.parameters, &trainer->replica.tape, &ddp_options);
    trainer->loader = loader_start(&trainer->train_set, &trainer->sampler, pg_rank(trainer->pg), options->accumulate,
                                   trainer->record.first_step);
    optimizer_set_partition(&trainer->replica.optimizer, ddp_partition(trainer->ddp));
    trainer->memory = (MemoryWatch){.pg = trainer->pg, .ddp = trainer->ddp, .codec = ddp_options.codec,
                                    .optimizer = &trainer->replica.optimizer};
    if (options->verify != VERIFY_NONE)
        keep_initial_weights(trainer);
}

void tear_down_run(Trainer *trainer)
{
    loader_stop(trainer->loader);
    ddp_destroy(trainer->ddp);
    if (trainer->norm_group != NULL)
        pg_destroy(trainer->norm_group);
    replica_free(&trainer->replica);
    sampler_free(&trainer->sampler);
    dataset_close(&trainer->train_set);
    dataset_close(&trainer->eval_set);
    stats_free(&trainer->record.stats);
    free(trainer->initial_weights);
    free(trainer->record.evaluations);
}
