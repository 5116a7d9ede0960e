/* options_check.c: mistakes that show only when flags are seen together, or when one looks at the disk or at the
 * number of ranks. All of them are found before training starts: an hour of it should not end in a typing error. */
#include "train/options_flags.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "device/device.h"
#include "train/atomic_file.h"

/* The sizes of a GPT are not sizes of an MLP. */
static void check_model(const Options *options, const FlagValues *values)
{
    static const FlagId gpt_sizes[] = {FLAG_LAYERS, FLAG_HEADS, FLAG_WIDTH, FLAG_CONTEXT, FLAG_GENERATE};
    const char *model = options->model.name;
    if (options->model.kind == MODEL_GPT) {
        if (values->given[FLAG_HIDDEN])
            die("--hidden: model %s has none; --model mlp and mlp-toy do (%s has --width)", model, model);
        if (options->model.gpt.width % options->model.gpt.heads != 0)
            die("--heads: %d heads cannot share a width of %d evenly; choose a --width that is a multiple",
                options->model.gpt.heads, options->model.gpt.width);
        return;
    }
    for (size_t i = 0; i < sizeof gpt_sizes / sizeof gpt_sizes[0]; i++)
        if (values->given[gpt_sizes[i]])
            die("--%s: not for model %s; --model gpt and gpt2 have it", flags[gpt_sizes[i]].name, model);
    if (options->dataset == DATASET_RANDOM && options->data != NULL)
        die("--data: model %s trains on random numbers; --model mlp, gpt and gpt2 read files", model);
}

static void check_training(const Options *options, const FlagValues *values, int stage)
{
    if (values->given[FLAG_STEPS] && values->given[FLAG_EPOCHS])
        die("--epochs: not together with --steps; give one of them");
    if (options->steps > 0 && options->warmup_steps > options->steps)
        die("--warmup-steps: %ld are more than the %ld steps of the run (--steps)", options->warmup_steps,
            options->steps);
    if (values->given[FLAG_MOMENTUM] && options->optimizer.kind != OPTIMIZER_SGD)
        die("--momentum: only --optimizer sgd has it");
    if (options->precision != DTYPE_F32 && stage < 4)
        die("--precision: stage %d (%s) computes in fp32; %s has %s", stage, stage_name(stage), stage_directory(4),
            values->text[FLAG_PRECISION]);
    if (values->given[FLAG_LOSS_SCALE] && options->precision != DTYPE_F16)
        die("--loss-scale: only --precision fp16 needs it");
}

static void check_device(const Options *options)
{
    if (strcmp(options->device, device_name()) != 0)
        die("--device: this program computes on the %s; train is the CPU program, train_cuda the CUDA program",
            device_name());
    if (strcmp(options->backend, "nccl") == 0 && strcmp(device_name(), "cuda") != 0)
        die("--backend: nccl carries GPU memory only and needs train_cuda; give mpi");
}

void options_check_flags(const Options *options, const FlagValues *values, int stage)
{
    check_model(options, values);
    check_training(options, values, stage);
    check_device(options);
    if (values->given[FLAG_WIRE] && options->group.wire_gbps <= 0)
        die("--wire: the bandwidth must be more than 0 gigabit per second (the latency may be 0)");
    if (values->given[FLAG_SAVE_EVERY] && options->save == NULL)
        die("--save-every: needs --save FILE to know where to");
}

/* Every rank looks, though only rank 0 writes: on one host, or with a shared file system, all see the same. */
void options_check_files(const Options *options)
{
    const struct {
        const char *flag, *path;
    } outputs[] = {{"--save", options->save}, {"--trace", options->trace}, {"--json", options->json}};
    for (int i = 0; i < 3; i++) {
        if (outputs[i].path == NULL)
            continue;
        atomic_check_writable(outputs[i].flag, outputs[i].path);
        for (int j = 0; j < i; j++)
            if (outputs[j].path != NULL && strcmp(outputs[i].path, outputs[j].path) == 0)
                die("%s: %s is also the file of %s; name two files", outputs[i].flag, outputs[i].path,
                    outputs[j].flag);
    }

    struct stat status;
    if (options->resume == NULL)
        return;
    if (stat(options->resume, &status) != 0 || access(options->resume, R_OK) != 0)
        die("--resume: cannot read %s: %s", options->resume, strerror(errno));
    if (!S_ISREG(status.st_mode))
        die("--resume: %s is not a file; give one that --save wrote", options->resume);
}

void options_check_world(const Options *options, int world_size)
{
    int64_t least = (int64_t)world_size * options->accumulate;
    if (options->batch_size < least)
        die("--batch-size: %lld samples are too few for %d ranks with --accumulate %d; give at least %lld",
            (long long)options->batch_size, world_size, options->accumulate, (long long)least);
    if (options->verify == VERIFY_WHOLE_BATCH && options->ddp.grad_dtype != DTYPE_F32)
        die("--verify: whole batches send nothing, so they lack --grad-dtype's rounding; compare with --verify exact");
    AllReduceAlgorithm algorithm = options->group.algorithm;
    bool rank_order = algorithm == ALLREDUCE_ORDERED || algorithm == ALLREDUCE_SHM || algorithm == ALLREDUCE_ROOT;
    if (options->verify == VERIFY_EXACT && world_size > 2 && !rank_order)
        die("--verify: exact needs --allreduce ordered, shm or root on %d ranks: the others add in another order",
            world_size);
}
