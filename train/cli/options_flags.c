/* options_flags.c: every flag and every default of the command line, as tables; and --help, which prints them. */
#include "train/cli/options_flags.h"

#include <stdio.h>

#include "base/check.h"
#include "device/device.h"

/* Defaults that depend on the model. "0" disables warm-up and clipping, and evaluates all samples. */
const ModelDefault model_defaults[MODEL_DEFAULT_COUNT] = {
    /*                              mlp       mlp-toy     gpt       gpt2 */
    {FLAG_STEPS, NULL,             {NULL,     NULL,       "2800",   "20"}},
    {FLAG_EPOCHS, NULL,            {"10",     "10",       NULL,     NULL}},
    {FLAG_BATCH_SIZE, NULL,        {"128",    "100",      "8",      "4"}},
    {FLAG_OPTIMIZER, NULL,         {"sgd",    "sgd",      "adamw",  "adamw"}},
    {FLAG_LR_SCHEDULE, NULL,       {"cosine", "constant", "cosine", "cosine"}},
    {FLAG_WARMUP_STEPS, NULL,      {"0",      "0",        "100",    "100"}},
    {FLAG_CLIP_GRAD_NORM, NULL,    {"0",      "0",        "1",      "1"}},
    {FLAG_EVAL_SAMPLES, NULL,      {"0",      "0",        "0",      "8"}},
    {FLAG_LR, "sgd",               {"0.02",   "0.01",     "0.03",   "0.03"}},
    {FLAG_MOMENTUM, "sgd",         {"0.9",    "0",        "0.9",    "0.9"}},
    {FLAG_WEIGHT_DECAY, "sgd",     {"0",      "0",        "0",      "0"}},
    {FLAG_LR, "adamw",             {"1e-3",   "1e-3",     "1.4e-3", "6e-4"}},
    {FLAG_WEIGHT_DECAY, "adamw",   {"0.01",   "0.01",     "0.1",    "0.1"}},
};

static const Choice models[] = {{"mlp", 0}, {"mlp-toy", 1}, {"gpt", 2}, {"gpt2", 3}, {NULL, 0}};
static const Choice activations[] = {{"gelu", ACTIVATION_GELU}, {"relu", ACTIVATION_RELU}, {NULL, 0}};
static const Choice norms[] = {{"none", NORM_NONE}, {"batch", NORM_BATCH}, {"sync-batch", NORM_SYNC_BATCH}, {NULL, 0}};
static const Choice optimizers[] = {{"sgd", OPTIMIZER_SGD}, {"adamw", OPTIMIZER_ADAMW}, {NULL, 0}};
static const Choice schedules[] = {{"constant", LR_CONSTANT}, {"cosine", LR_COSINE}, {NULL, 0}};
static const Choice precisions[] = {{"fp32", DTYPE_F32}, {"bf16", DTYPE_BF16}, {"fp16", DTYPE_F16}, {NULL, 0}};
static const Choice gradient_codecs[] = {{"fp32", 0}, {"bf16", 0}, {"fp16", 0}, {"int8", 0}, {"noop", 0},
                                         {"powersgd", 0}, {NULL, 0}};
static const Choice backends[] = {{"mpi", BACKEND_MPI}, {"nccl", BACKEND_NCCL}, {NULL, 0}};
static const Choice algorithms[] = {
    {"auto", ALLREDUCE_AUTO}, {"shm", ALLREDUCE_SHM}, {"ordered", ALLREDUCE_ORDERED}, {"root", ALLREDUCE_ROOT},
    {"mpi", ALLREDUCE_MPI}, {"ring", ALLREDUCE_RING}, {"recursive-doubling", ALLREDUCE_DOUBLING},
    {"hierarchical", ALLREDUCE_HIERARCHICAL}, {NULL, 0}};
static const Choice zero_levels[] = {{"1", 1}, {"2", 2}, {"3", 3}, {NULL, 0}};
static const Choice on_nan[] = {{"stop", ON_NAN_STOP}, {"skip", ON_NAN_SKIP}, {NULL, 0}};
static const Choice join_modes[] = {{"", JOIN_ACTUAL}, {"initial", JOIN_INITIAL}, {NULL, 0}};
static const Choice verify_modes[] = {{"", VERIFY_WHOLE_BATCH}, {"exact", VERIFY_EXACT}, {NULL, 0}};

/* name, argument, choices, default, low, high, stage, feature, help, per_rank, bits, title
 *
 * note: per-rank
 * Ranks compare all flags except those marked per_rank (options_check.c): hosts may keep data and checkpoints in
 * different places, so ranks compare the contents of these files. */
const Flag flags[FLAG_COUNT] = {
    [FLAG_MODEL] = {"model", NULL, models, "mlp", 0, 0, 1, NULL, "the model; sizes and defaults: see below",
                    .title = "Model and data"},
    [FLAG_HIDDEN] = {"hidden", "H1,H2", NULL, NULL, 1, 65536, 1, NULL, "mlp, mlp-toy: sizes of the hidden layers"},
    [FLAG_ACTIVATION] = {"activation", NULL, activations, "gelu", 0, 0, 1, NULL,
                         "mlp, mlp-toy: between the layers; with relu, rounding errors may grow (notes/equality.md)"},
    [FLAG_NORM] = {"norm", NULL, norms, "none", 0, 0, 1, NULL,
                   "mlp, mlp-toy: before each activation; batch: over a rank's own samples, sync-batch: over all "
                   "ranks'",
                   .bits = true},
    [FLAG_LAYERS] = {"layers", "N", NULL, NULL, 1, GPT_MAX_LAYERS, 1, NULL, "gpt, gpt2: number of blocks"},
    [FLAG_HEADS] = {"heads", "N", NULL, NULL, 1, 256, 1, NULL, "gpt, gpt2: attention heads; must divide the width"},
    [FLAG_WIDTH] = {"width", "N", NULL, NULL, 1, 16384, 1, NULL, "gpt, gpt2: channels"},
    [FLAG_CONTEXT] = {"context", "N", NULL, NULL, 1, 16384, 1, NULL, "gpt, gpt2: tokens in a sample"},
    [FLAG_DATA] = {"data", "PATH", NULL, NULL, 0, 0, 1, NULL,
                   "mlp: directory of MNIST-format files; gpt: a text (default: Debian's data packages)", true},
    [FLAG_BINARY_DATA] = {"binary-data", NULL, NULL, NULL, 0, 0, 1, NULL,
                          "gpt, gpt2: --data may be any file, and need not be plain text"},
    [FLAG_MASK_TOKENS] = {"mask-tokens", "F", NULL, "0", 0, 0.9999, 1, NULL,
                          "gpt, gpt2: leave each target token out of the training loss with this probability",
                          .bits = true},
    [FLAG_DROPOUT] = {"dropout", "P", NULL, "0", 0, 0.9999, 1, NULL,
                      "drop activations with this probability, the same ones on any number of ranks", .bits = true},
    [FLAG_SKIP_LAYER] = {"skip-layer", "K", NULL, "0", 0, GPT_MAX_LAYERS, 1, NULL,
                         "leave out block K, or an MLP's layer 2, so that parameters are unused (0: none)",
                         .bits = true},
    [FLAG_RECOMPUTE] = {"recompute", NULL, NULL, NULL, 0, 0, 1, NULL,
                        "gpt, gpt2: keep a block's input only, and compute the block again in backward"},

    [FLAG_STEPS] = {"steps", "N", NULL, NULL, 1, 1e9, 1, NULL, "train this many optimizer steps, or ...",
                    .title = "Length and batches"},
    [FLAG_EPOCHS] = {"epochs", "N", NULL, NULL, 1, 1e6, 1, NULL, "... this many times through the data"},
    [FLAG_BATCH_SIZE] = {"batch-size", "GLOBAL", NULL, NULL, 1, 1e9, 1, NULL,
                         "samples per step: all ranks and micro-batches together", .bits = true},
    [FLAG_ACCUMULATE] = {"accumulate", "K", NULL, "1", 1, 1e6, 4, "gradient accumulation", "micro-batches per step",
                        .bits = true},
    [FLAG_DROP_LAST] = {"drop-last", NULL, NULL, NULL, 0, 0, 1, NULL,
                        "drop the epoch's tail instead of repeating samples", .bits = true},
    [FLAG_RANK_SAMPLES] = {"rank-samples", "N0,N1,...", NULL, NULL, 0, 1e12, 1, NULL,
                           "samples on each rank, as if each rank read files of its own", .bits = true},
    [FLAG_JOIN] = {"join", "[initial]", join_modes, NULL, 0, 0, 1, NULL,
                   "a rank without data continues with empty batches; initial: still divide by the full batch",
                   .bits = true},
    [FLAG_SEED] = {"seed", "S", NULL, "42", 0, 4294967295.0, 1, NULL, "seeds the weights and the shuffling",
                   .bits = true},
    [FLAG_SAME_INIT] = {"same-init", NULL, NULL, NULL, 0, 0, 1, NULL,
                        "every rank draws its initial weights from seed, not from seed + rank"},

    [FLAG_OPTIMIZER] = {"optimizer", NULL, optimizers, NULL, 0, 0, 1, NULL, "adamw: betas 0.9, 0.95, eps 1e-8",
                        .title = "Update"},
    [FLAG_LR] = {"lr", "X", NULL, NULL, 1e-12, 1000, 1, NULL, "learning rate", .bits = true},
    [FLAG_LR_SCHEDULE] = {"lr-schedule", NULL, schedules, NULL, 0, 0, 1, NULL,
                          "cosine: down to a tenth at the last step"},
    [FLAG_WARMUP_STEPS] = {"warmup-steps", "N", NULL, NULL, 0, 1e9, 1, NULL,
                           "the learning rate rises over these steps (default: at most a tenth of the run)"},
    [FLAG_MOMENTUM] = {"momentum", "X", NULL, NULL, 0, 0.9999, 1, NULL, "sgd only", .bits = true},
    [FLAG_WEIGHT_DECAY] = {"weight-decay", "X", NULL, NULL, 0, 100, 1, NULL,
                           "sgd: added to the gradient; adamw: decoupled, matrices only", .bits = true},
    [FLAG_CLIP_GRAD_NORM] = {"clip-grad-norm", "X", NULL, NULL, 0, 1e9, 1, NULL,
                             "scale gradients down to this norm (0: never)", .bits = true},
    [FLAG_PRECISION] = {"precision", NULL, precisions, "fp32", 0, 0, 1, NULL,
                        "of matrix products (bf16, fp16: from stage 4 on)", .bits = true},
    [FLAG_TF32] = {"tf32", NULL, NULL, NULL, 0, 0, 1, NULL,
                   "train_cuda: fp32 matrix products on tensor cores, which round their operands to TF32",
                   .bits = true},
    [FLAG_LOSS_SCALE] = {"loss-scale", "X", NULL, "1024", 1, (double)LOSS_SCALER_MAX, 4, "loss scaling",
                         "the first scale, at most 2^24, with --precision fp16 (and --grad-dtype fp16: "
                         LOSS_SCALE_FP16_ON_THE_WIRE ")"},

    [FLAG_SHARE_GPU] = {"share-gpu", NULL, NULL, NULL, 0, 0, 1, NULL,
                        "train_cuda: several ranks may compute on one GPU (with --backend mpi)",
                        .title = "Ranks and communication"},
    [FLAG_THREADS] = {"threads", "N", NULL, "1", 1, 1024, 1, NULL, "BLAS threads of each rank", .bits = true},
    [FLAG_BACKEND] = {"backend", NULL, backends, NULL, 0, 0, 1, NULL,
                      "the library that sends messages (default: mpi; train_cuda: nccl, with --share-gpu mpi)"},
    [FLAG_ALLREDUCE] = {"allreduce", NULL, algorithms, "auto", 0, 0, 1, NULL,
                        "auto: shm on one host, else mpi; shm, ordered, root: same bits in all stages; hierarchical: "
                        "the same, but each host adds its own ranks first"},
    [FLAG_RANKS_PER_HOST] = {"ranks-per-host", "L", NULL, NULL, 1, 1e6, 1, NULL,
                             "with --allreduce hierarchical: treat every L ranks as one host (default: the real hosts)",
                             .bits = true},
    [FLAG_WIRE] = {"wire", "GBPS,LATENCY_US", NULL, NULL, 0, 1e6, 1, NULL,
                   "emulate a slower network: gigabit per second, microseconds per message"},
    [FLAG_TIMEOUT] = {"timeout", "SECONDS", NULL, "300", 0.001, 1e6, 1, NULL,
                      "a collective that takes longer, also because of --wire, ends the run"},
    [FLAG_BUCKET_CAP_MB] = {"bucket-cap-mb", "X", NULL, "1", 0, 1e6, 2, "buckets",
                            "a bucket is closed at this size, in MiB (0: one per parameter; stage 5: without this "
                            "flag and the next, one per layer)"},
    [FLAG_FIRST_BUCKET_MB] = {"first-bucket-mb", "X", NULL, "1", 0, 1e6, 2, "buckets",
                              "the same for the first bucket alone"},
    [FLAG_REBUILD_BUCKETS] = {"rebuild-buckets", NULL, NULL, NULL, 0, 0, 3, "rebuilding of buckets",
                              "stages 3, 4: after step 1, fill buckets in the order in which gradients became ready"},
    [FLAG_FIND_UNUSED_PARAMETERS] = {"find-unused-parameters", NULL, NULL, NULL, 0, 0, 3,
                                     "search for unused parameters", "allow parameters that a step does not use"},
    [FLAG_STATIC_GRAPH] = {"static-graph", NULL, NULL, NULL, 0, 0, 3, "search for unused parameters",
                           "the same, searched in step 1 only: all steps use the same parameters"},
    [FLAG_GRAD_DTYPE] = {"grad-dtype", NULL, gradient_codecs, "fp32", 0, 0, 4, "gradients in half precision",
                         "the type in which gradients are sent; noop: they are not sent", .bits = true},
    [FLAG_POWERSGD_RANK] = {"powersgd-rank", "R", NULL, "4", 1, 1024, 4, "gradients in half precision",
                            "with --grad-dtype powersgd: matrices are sent as two of R columns"},
    [FLAG_ZERO] = {"zero", NULL, zero_levels, "2", 0, 0, 5, "sharding",
                   "ZeRO level: shard the optimizer's state (1), also gradients (2), also weights (3)"},
    [FLAG_SHARD_RANKS] = {"shard-ranks", "R", NULL, NULL, 1, 1e6, 5, "sharding",
                          "shard within groups of R ranks, each with a copy (default: all ranks in one)", .bits = true},

    [FLAG_VERIFY] = {"verify", "[exact]", verify_modes, NULL, 0, 0, 1, NULL,
                     "compare with one process on whole batches; exact: every bit, on the ranks' shares",
                     .title = "Checks and files"},
    [FLAG_CHECK_EVERY] = {"check-every", "K", NULL, "0", 0, 1e9, 1, NULL,
                          "compare the ranks' weights every K steps (0: only at the end)"},
    [FLAG_EVAL_SAMPLES] = {"eval-samples", "N", NULL, NULL, 0, 1e9, 1, NULL,
                           "held-out samples to evaluate (0: all)"},
    [FLAG_EVAL_EVERY] = {"eval-every", "K", NULL, "0", 0, 1e9, 1, NULL,
                         "also evaluate every K steps; all results are in --json (0: only at the end)"},
    [FLAG_DEBUG_COLLECTIVES] = {"debug-collectives", NULL, NULL, NULL, 0, 0, 1, NULL,
                                "before each collective, check that all ranks call the same one"},
    [FLAG_ON_NAN] = {"on-nan", NULL, on_nan, "stop", 0, 0, 1, NULL,
                     "if a loss or gradient is not finite: end the run, or skip the step (fp16 always skips); if most "
                     "steps were skipped, the status is 1"},
    [FLAG_SAVE] = {"save", "FILE", NULL, NULL, 0, 0, 1, NULL, "write weights and optimizer state (safetensors)"},
    [FLAG_SAVE_EVERY] = {"save-every", "N", NULL, "0", 0, 1e9, 1, NULL, "also save every N steps (0: only at the end)"},
    [FLAG_SAVE_BEST] = {"save-best", "FILE", NULL, NULL, 0, 0, 1, NULL,
                        "with --eval-every: keep the state with the lowest loss on held-out data"},
    [FLAG_RESUME] = {"resume", "FILE", NULL, NULL, 0, 0, 1, NULL,
                     "continue from a file of --save, at its place in the data", true},
    [FLAG_GENERATE] = {"generate", "N", NULL, "0", 0, 1e6, 1, NULL, "gpt: print N bytes of text at the end"},
    [FLAG_LOG] = {"log", "FILE", NULL, NULL, 0, 0, 1, NULL,
                  "write a CSV row per step: loss, learning rate, norm, times; each row costs an all-reduce of one "
                  "number, the loss"},
    [FLAG_LOG_EVERY] = {"log-every", "K", NULL, "1", 1, 1e9, 1, NULL, "with --log: a row every K steps"},
    [FLAG_TRACE] = {"trace", "FILE", NULL, NULL, 0, 0, 1, NULL, "write a timeline of all ranks (Chrome trace)"},
    [FLAG_JSON] = {"json", "FILE", NULL, NULL, 0, 0, 1, NULL, "write the summary of the run"},
    [FLAG_FLIGHT_RECORDER] = {"flight-recorder", "FILE", NULL, NULL, 0, 0, 1, NULL,
                              "if the run hangs, write each rank's latest 32 collectives"},
    [FLAG_HELP] = {"help", NULL, NULL, NULL, 0, 0, 1, NULL, "print this help"},
};

static const char *const stage_directories[] = {"stage1_naive", "stage2_bucketed", "stage3_overlap",
                                                "stage4_accumulation", "stage5_sharded"};

const char *stage_directory(int stage)
{
    return stage_directories[stage - 1];
}

const char *stage_name(int stage)
{
    return stage_directories[stage - 1] + sizeof "stage1_" - 1;
}

#define HELP_COLUMN 34 /* where a flag's explanation begins */

static void print_flag(const Flag *flag)
{
    int width = printf("  --%s", flag->name);
    if (flag->argument != NULL)
        width += printf(" %s", flag->argument);
    for (const Choice *one = flag->choices; flag->argument == NULL && one != NULL && one->name != NULL; one++)
        width += printf("%c%s", one == flag->choices ? ' ' : '|', one->name);
    printf("%*s %s", width < HELP_COLUMN ? HELP_COLUMN - width : 0, "", flag->help);
    if (flag->default_value != NULL)
        printf(" [%s]", flag->default_value);
    if (flag->per_rank)
        printf(" (per rank)");
    putchar('\n');
}

static void print_model_defaults(void)
{
    printf("\nDefaults that depend on the model:\n  %-24s", "");
    for (int model = 0; model < MODEL_COUNT; model++)
        printf(" %-12s", flags[FLAG_MODEL].choices[model].name);
    putchar('\n');
    for (int i = 0; i < MODEL_DEFAULT_COUNT; i++) {
        const ModelDefault *row = &model_defaults[i];
        char title[32];
        snprintf(title, sizeof title, "%s%s--%s", row->optimizer != NULL ? row->optimizer : "",
                 row->optimizer != NULL ? ": " : "", flags[row->flag].name);
        printf("  %-24s", title);
        for (int model = 0; model < MODEL_COUNT; model++)
            printf(" %-12s", row->by_model[model] != NULL ? row->by_model[model] : "-");
        putchar('\n');
    }
}

static void print_shapes(void)
{
    for (int model = 0; model < MODEL_COUNT; model++) {
        const char *name = flags[FLAG_MODEL].choices[model].name;
        ModelSpec spec;
        CHECK(model_spec_by_name(name, &spec), "nn/ has no model named %s", name);
        if (spec.kind == MODEL_MLP)
            printf("  %-8s %d-%d-%d-%d, --hidden %d,%d\n", name, spec.mlp.inputs, spec.mlp.hidden1, spec.mlp.hidden2,
                   spec.mlp.outputs, spec.mlp.hidden1, spec.mlp.hidden2);
        else
            printf("  %-8s --layers %d --heads %d --width %d --context %d, vocabulary %d\n", name, spec.gpt.layers,
                   spec.gpt.heads, spec.gpt.width, spec.gpt.context, spec.gpt.vocabulary);
    }
}

void options_print_help(int stage)
{
    const char *program = device_kind() == DEVICE_CUDA ? "train_cuda" : "train";
    printf("%s: distributed data parallel training, stage %d (%s)\n\n", program, stage, stage_name(stage));
    printf("usage: %s [FLAGS]                  one rank\n", program);
    printf("       mpiexec -n 2 %s [FLAGS]     two ranks\n", program);
    printf("\nDefaults are in brackets. --flag VALUE and --flag=VALUE mean the same. If a flag is repeated, the "
           "last one counts.\n"
           "All ranks need the same flags, typed alike; those marked (per rank) may differ.\n");
    for (int id = 0; id < FLAG_COUNT; id++) {
        if (flags[id].title != NULL)
            printf("\n%s:\n", flags[id].title);
        if (stage >= flags[id].stage)
            print_flag(&flags[id]);
    }
    print_model_defaults();
    printf("\nShapes:\n");
    print_shapes();
    printf("\nExit status: 0 done; 1 a failed check or a fault at run time; 2 wrong usage;\n"
           "75 SIGTERM or SIGUSR1 has stopped the run after a step that all ranks agree on, and --save is written.\n");
    fflush(stdout);
}
