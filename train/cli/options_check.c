/* options_check.c: rejects flags that contradict each other or do not fit files and ranks, and ranks that differ. */
#include "train/cli/options_flags.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "train/files/atomic_file.h"
#include "train/gpu.h"

/* ---- flags that contradict each other ---- */

#define MIN_WIRE_GBPS 1e-6 /* with less, sending the GPT's gradients would take days */

static void check_model(const Options *options)
{
    static const FlagId of_mlp[] = {FLAG_HIDDEN, FLAG_NORM, FLAG_ACTIVATION}, of_gpt[] = {FLAG_LAYERS, FLAG_HEADS,
        FLAG_WIDTH, FLAG_CONTEXT, FLAG_GENERATE, FLAG_BINARY_DATA, FLAG_MASK_TOKENS, FLAG_RECOMPUTE};
    const char *model = options->model.name;
    if (options->model.kind == MODEL_GPT) {
        for (size_t i = 0; i < sizeof of_mlp / sizeof of_mlp[0]; i++)
            if (options->given[of_mlp[i]])
                die("--%s: not for model %s; --model mlp and mlp-toy have it", flags[of_mlp[i]].name, model);
        if (options->model.gpt.width % options->model.gpt.heads != 0)
            die("--heads: %d heads cannot share a width of %d evenly; choose a --width that is a multiple",
                options->model.gpt.heads, options->model.gpt.width);
        if (options->generate > 0 && options->model.gpt.vocabulary > 256)
            die("--generate: writes bytes, and %s has a vocabulary of %d tokens; --model gpt can", model,
                options->model.gpt.vocabulary);
        return;
    }
    for (size_t i = 0; i < sizeof of_gpt / sizeof of_gpt[0]; i++)
        if (options->given[of_gpt[i]])
            die("--%s: not for model %s; --model gpt and gpt2 have it", flags[of_gpt[i]].name, model);
    if (options->dataset == DATASET_RANDOM && options->data != NULL)
        die("--data: model %s trains on random numbers; --model mlp, gpt and gpt2 read files", model);
}

/* The input of the skipped layer becomes the input of the next one. */
static void check_skipped_layer(const Options *options)
{
    const int layer = options->model.skip_layer;
    const MlpSizes *mlp = &options->model.mlp;
    if (layer == 0)
        return;
    if (options->model.kind == MODEL_GPT && layer > options->model.gpt.layers)
        die("--skip-layer: the model has only %d block(s), counted from 1", options->model.gpt.layers);
    if (options->model.kind == MODEL_MLP && (layer != 2 || mlp->hidden1 != mlp->hidden2))
        die("--skip-layer: of an MLP only layer 2 can be left out, and only where both --hidden are equal");
}

static void check_training(const Options *options, int stage)
{
    if (options->given[FLAG_STEPS] && options->given[FLAG_EPOCHS])
        die("--epochs: not together with --steps; give one of them");
    if (options->warmup_given && options->steps > 0 && options->warmup_steps > options->steps)
        die("--warmup-steps: %ld is more than the run's %ld steps (--steps); give at most that", options->warmup_steps,
            options->steps);
    if (options->drop_last && options->join != JOIN_NONE)
        die("--drop-last: not together with --join: it stops all ranks where the first one runs out of data; give "
            "one of them");
    if (options->mask_tokens > 0 && options->join == JOIN_INITIAL)
        die("--mask-tokens: not together with --join initial, which divides by the full batch: its number of masked "
            "tokens is unknown; --join divides by the step's own");
    if (options->given[FLAG_MOMENTUM] && options->optimizer.kind != OPTIMIZER_SGD)
        die("--momentum: only --optimizer sgd has it");
    if (options->precision != DTYPE_F32 && stage < 4)
        die("--precision: stage %d (%s) computes in fp32; %s has %s", stage, stage_name(stage), stage_directory(4),
            options->text[FLAG_PRECISION]);
    if (options->given[FLAG_LOSS_SCALE] && options->precision != DTYPE_F16)
        die("--loss-scale: only --precision fp16 needs it");
    if (options->ddp.codec->sends_nothing && (options->verify != VERIFY_NONE || options->check_every > 0))
        die("--%s: with --grad-dtype noop each rank trains by itself, and there is nothing to compare",
            options->verify != VERIFY_NONE ? "verify" : "check-every");
}

static void check_device(const Options *options)
{
    const bool cuda = device_kind() == DEVICE_CUDA, nccl = options_backend(options) == BACKEND_NCCL;
    if (options->share_gpu && !cuda)
        die("--share-gpu: this program computes on the CPU, which ranks share anyway; it is for train_cuda");
    if (cuda && (options->model.norm != NORM_NONE || options->dropout > 0 || options->recompute))
        die("--%s: train_cuda has no kernel for it; the program without CUDA, train, has one",
            options->dropout > 0 ? "dropout" : options->recompute ? "recompute" : "norm");
    if (options->ddp.codec->on_cpu_only && cuda)
        die("--grad-dtype: train_cuda has no kernel for %s; it has fp32, bf16 and fp16", options->ddp.codec->name);
    if (options->tf32 && !cuda)
        die("--tf32: this program computes on the CPU, which has no TF32; it is for train_cuda");
    if (options->tf32 && options->precision != DTYPE_F32)
        die("--tf32: is about matrix products in fp32, and --precision %s leaves none; give one of the two",
            options->text[FLAG_PRECISION]);
    if (nccl && !cuda)
        die("--backend: nccl carries GPU memory only and needs train_cuda; give mpi");
    if (nccl && !gpu_has_nccl())
        die("--backend: this program was built without NCCL; give mpi");
    if (nccl && options->share_gpu)
        die("--share-gpu: NCCL needs a GPU for every rank; ranks that share one need --backend mpi");
    if (options->given[FLAG_RANKS_PER_HOST] && options->group.algorithm != ALLREDUCE_HIERARCHICAL)
        die("--ranks-per-host: needs --allreduce hierarchical, which adds each host's parts first");
    if (nccl && options->group.algorithm != ALLREDUCE_MPI)
        die("--allreduce: NCCL adds in its own way; for %s give --backend mpi as well", options->text[FLAG_ALLREDUCE]);
    if (cuda && options->group.algorithm == ALLREDUCE_SHM)
        die("--allreduce: shm adds in memory that all ranks of a host see, but train_cuda's gradients lie on the GPU; "
            "ordered gives the same sums");
}

static void check_power_sgd(const Options *options, int stage)
{
    if (!options->ddp.codec->keeps_state) {
        if (options->given[FLAG_POWERSGD_RANK])
            die("--powersgd-rank: needs --grad-dtype powersgd");
        return;
    }
    if (stage == 5)
        die("--grad-dtype: powersgd needs all gradients of a matrix on each rank; stage 4 has them");
    if (options->precision == DTYPE_F16)
        die("--grad-dtype: powersgd keeps a part of the gradients for the next step, where --precision fp16 may have "
            "another loss scale; give bf16 or fp32");
    if (options->ddp.find_unused_parameters)
        die("--grad-dtype: powersgd sends a message for each parameter, also for unused ones; with --%s "
            "give bf16 or int8", options->ddp.static_graph ? "static-graph" : "find-unused-parameters");
    if (options->verify == VERIFY_EXACT && options->group.algorithm == ALLREDUCE_HIERARCHICAL)
        die("--verify: exact adds powersgd's factors rank by rank; give --allreduce ordered");
}

static void check_sharding(const Options *options, int stage)
{
    if (stage < 5)
        return;
    if (options->ddp.rebuild_buckets)
        die("--rebuild-buckets: not in stage 5, where the optimizer's state would have to move with the shards; "
            "stages 3 and 4 have it");
    if (options->sharding.shard_ranks > 0 && options->group.algorithm == ALLREDUCE_HIERARCHICAL)
        die("--shard-ranks: adds within groups first, as --allreduce hierarchical does; give one of the two");
    if (options->sharding.shard_ranks > 0 && options->ddp.codec->rounds && options->verify == VERIFY_EXACT)
        die("--shard-ranks: rounds in each group, and again across groups, which --verify exact does not compute; give "
            "--grad-dtype fp32");
    if (options->ddp.find_unused_parameters && options->sharding.level == 3)
        die("--%s: not with --zero 3, because ranks that use different parameters would gather different weights at "
            "the same time; --zero 1 and 2 have it",
            options->ddp.static_graph ? "static-graph" : "find-unused-parameters");
    if (options->model.skip_layer > 0 && options->sharding.level == 3)
        die("--skip-layer: leaves parameters unused, which --zero 3 does not allow; --zero 1 and 2 do, with "
            "--find-unused-parameters");
}

void options_check_flags(const Options *options, int stage)
{
    check_sharding(options, stage);
    check_power_sgd(options, stage);
    check_model(options);
    check_skipped_layer(options);
    check_training(options, stage);
    check_device(options);
    if (options->given[FLAG_WIRE] && options->group.wire_gbps < MIN_WIRE_GBPS)
        die("--wire: the bandwidth must be at least %g gigabit per second, which is 1 kbit/s (the latency may be 0)",
            MIN_WIRE_GBPS);
    if (options->given[FLAG_SAVE_EVERY] && options->save == NULL)
        die("--save-every: needs --save FILE, the file to write");
    if (options->save_best != NULL && options->eval_every == 0)
        die("--save-best: needs --eval-every K, which says when the loss on held-out data is measured");
    if (options->given[FLAG_LOG_EVERY] && options->log == NULL)
        die("--log-every: needs --log FILE, the file to write");
}

/* ---- files ---- */

static const FlagId outputs[] = {FLAG_SAVE, FLAG_SAVE_BEST, FLAG_LOG, FLAG_TRACE, FLAG_JSON, FLAG_FLIGHT_RECORDER};
enum { OUTPUTS = sizeof outputs / sizeof *outputs };

/* --save may replace the file of --resume, unless --verify reads it again at the end. */
static void check_resume(const Options *options)
{
    struct stat status;
    if (stat(options->resume, &status) != 0 || access(options->resume, R_OK) != 0)
        die("--resume: cannot read %s: %s", options->resume, strerror(errno));
    if (!S_ISREG(status.st_mode))
        die("--resume: %s is not a file; give one that --save wrote", options->resume);
    for (int i = 0; i < OUTPUTS; i++) {
        const char *path = options->text[outputs[i]];
        if (path == NULL || !atomic_same_file(path, options->resume))
            continue;
        if (outputs[i] != FLAG_SAVE)
            die("--%s: %s is the file of --resume, and would replace the checkpoint; name another file",
                flags[outputs[i]].name, path);
        if (options->verify != VERIFY_NONE)
            die("--save: %s is the file of --resume, which --verify reads again; save to another file", path);
    }
}

/* --data is a text file, or a directory with MNIST's four files. */
static void check_not_data(const Options *options, FlagId output)
{
    char path[PATH_MAX];
    bool same = atomic_same_file(options->text[output], options->data);
    for (int i = 0; i < IMAGE_FILES * IMAGE_NAMES && !same; i++)
        same = dataset_image_path(path, options->data, i / IMAGE_NAMES, i % IMAGE_NAMES) &&
               atomic_same_file(options->text[output], path);
    if (same)
        die("--%s: %s is a file of --data, and would replace it; name another file", flags[output].name,
            options->text[output]);
}

/* Every rank checks, although only rank 0 writes. Compares the targets of paths: a file has many names. */
void options_check_files(const Options *options)
{
    for (int i = 0; i < OUTPUTS; i++) {
        const char *path = options->text[outputs[i]], *name = flags[outputs[i]].name;
        if (path == NULL)
            continue;
        atomic_check_writable(name, path);
        for (int j = 0; j < i; j++)
            if (options->text[outputs[j]] != NULL && atomic_same_file(path, options->text[outputs[j]]))
                die("--%s: %s is also the file of --%s; name two files", name, path, flags[outputs[j]].name);
        if (options->data != NULL)
            check_not_data(options, outputs[i]);
    }
    if (options->resume != NULL)
        check_resume(options);
}

static void check_rank_samples(const Options *options, int world_size)
{
    int64_t all = 0;
    for (int rank = 0; rank < options->rank_samples_count; rank++)
        all += options->rank_samples[rank];
    if (options->rank_samples_count != world_size)
        die("--rank-samples: has %d number(s) for %d rank(s); give one for each rank", options->rank_samples_count,
            world_size);
    if (all == 0)
        die("--rank-samples: no rank has any sample; give one of them at least 1");
    if (options->batch_size % world_size != 0)
        die("--batch-size: with --rank-samples every rank takes equally many samples per step, and %lld is no multiple "
            "of %d ranks; give %lld", (long long)options->batch_size, world_size,
            (long long)(options->batch_size / world_size + 1) * world_size);
}

static void check_verify(const Options *options, const Resolved *resolved, int world_size)
{
    const bool norm = options->model.norm != NORM_NONE && world_size > 1, exact = options->verify == VERIFY_EXACT;
    if (norm && options->ddp.codec->rounds)
        die("--verify: not with --norm and --grad-dtype together: rounding needs the ranks' shares one after the "
            "other, and --norm all of them at once");
    if (!exact && options->ddp.codec->rounds)
        die("--verify: whole batches send nothing, so they lack --grad-dtype's rounding; compare with --verify exact");
    if (norm && options->model.norm == NORM_BATCH)
        die("--verify: with --norm batch each rank normalizes over its own samples, so the weights depend on the "
            "number of ranks, and there is nothing to compare; --norm sync-batch does not");
    if (exact && norm)
        die("--verify: exact computes one rank's share after the other, but --norm sync-batch needs those of all at "
            "once; give --verify without it");
    if (exact && !resolved->rank_order)
        die("--verify: exact needs --allreduce ordered, shm, root or hierarchical on %d ranks%s: this one adds in "
            "another order", world_size, resolved->backend == BACKEND_NCCL ? ", with --backend mpi" : "");
}

void options_check_world(const Options *options, const Resolved *resolved, int world_size)
{
    int64_t minimum = (int64_t)world_size * options->accumulate;
    if (options->batch_size < minimum)
        die("--batch-size: %lld samples are too few for %d ranks with --accumulate %d; give at least %lld",
            (long long)options->batch_size, world_size, options->accumulate, (long long)minimum);
    if (options->rank_samples_count > 0)
        check_rank_samples(options, world_size);
    if (options->sharding.shard_ranks > 0 && world_size % options->sharding.shard_ranks != 0)
        die("--shard-ranks: %d ranks are not a whole number of groups of %d", world_size, options->sharding.shard_ranks);
    if (options->group.ranks_per_host > 0 && world_size % options->group.ranks_per_host != 0)
        die("--ranks-per-host: %d ranks are not a whole number of hosts with %d", world_size,
            options->group.ranks_per_host);
    if (options->verify != VERIFY_NONE)
        check_verify(options, resolved, world_size);
}

/* ---- comparisons of ranks ---- */

/* note: same-flags
 * With different bucket caps, for example, ranks would add gradients of different parameters. Ranks compare the typed
 * words, not their values. So no flag has to be listed here, and none is forgotten. It is also an error if only one
 * rank was given a default: this function does not know the meaning of flags. The default of --backend depends on the
 * program. */
void options_check_agreement(const Options *options, ProcessGroup *pg, int stage)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    CHECK(stream != NULL, "out of memory for the text of the flags");
    for (int id = 0; id < FLAG_COUNT; id++) {
        const char *typed = options->given[id] ? options->text[id] : NULL;
        bool bare = typed != NULL && typed[0] == '\0';
        if (!flags[id].per_rank)
            fprintf(stream, "--%s is %s\n", flags[id].name, typed == NULL ? "not given" : bare ? "given" : typed);
    }
    fprintf(stream, "the program is that of stage %d (%s, %s)\n", stage, device_name(),
            options->text[FLAG_BACKEND]);
    fclose(stream);
    replicas_check_same_text(pg, text, "the ranks were started differently",
                             "give every rank the same program and flags");
    free(text);
}

typedef struct RankDevice { /* sent as int32 words */
    char identity[64], description[128];
} RankDevice;

/* note: other-kernels
 * OpenBLAS chooses its kernels by the processor, or by OPENBLAS_CORETYPE. Other kernels add in another order. The ranks
 * still train the same weights, because they add up their gradients. But rank 0 cannot repeat all bits. */
static void advise_of_other_kernels(const RankDevice *all, int world_size)
{
    for (int rank = 1; rank < world_size; rank++) {
        if (strcmp(all[rank].description, all[0].description) == 0)
            continue;
        advise("rank 0 computes with %s, rank %d with %s: they round differently, so --verify exact fails; does "
               "OPENBLAS_CORETYPE, or the processor, differ between them?", all[0].description, rank,
               all[rank].description);
        return; /* one line is enough */
    }
}

/* note: one-gpu-each
 * Ranks compare the UUIDs of their GPUs, because a launcher may show each rank only one GPU, GPU 0, which may be the
 * same for all. Two ranks on one GPU train correctly over MPI (NCCL refuses them), but each at half the speed. */
void options_check_devices(const Options *options, ProcessGroup *pg)
{
    const int world_size = pg_world_size(pg);
    RankDevice mine = {0};
    RankDevice *all = alloc_or_fault((size_t)world_size * sizeof *all);
    snprintf(mine.identity, sizeof mine.identity, "%s", device_identity());
    snprintf(mine.description, sizeof mine.description, "%s", device_description());
    pg_all_gather(pg, &mine, all, sizeof mine / sizeof(int32_t), DTYPE_I32, "devices");
    advise_of_other_kernels(all, world_size);
    for (int rank = 1; rank < world_size && !options->share_gpu; rank++) {
        const char *device = all[rank].identity;
        for (int other = 0; other < rank; other++)
            if (device[0] != '\0' && strcmp(device, all[other].identity) == 0)
                die("ranks %d and %d have the same GPU (UUID %s): start one rank per GPU, or let them share it with "
                    "--share-gpu (with --backend mpi, because NCCL refuses this)", other, rank, device);
    }
    free(all);
}
