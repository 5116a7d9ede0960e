/* options_help.c: prints the table of flags, with their defaults. */
#include "train/cli/options_flags.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"

/* "--optimizer sgd|adamw" */
static void write_usage(const Flag *flag, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "--%s", flag->name);
    if (flag->argument != NULL) {
        snprintf(text + used, size - used, " %s", flag->argument);
        return;
    }
    for (const Choice *one = flag->choices; one != NULL && one->name != NULL && used < size; one++)
        used += (size_t)snprintf(text + used, size - used, "%c%s", one == flag->choices ? ' ' : '|', one->name);
}

static void print_flag(const Flag *flag)
{
    char usage[64];
    write_usage(flag, usage, sizeof usage);
    printf("  %-32s %s", usage, flag->help);
    if (flag->default_value != NULL)
        printf(" [%s]", flag->default_value);
    if (flag->per_rank)
        printf(" (per rank)");
    putchar('\n');
}

static void print_flags(int stage)
{
    static const struct {
        FlagId first;
        const char *title;
    } groups[] = {{FLAG_MODEL, "Model and data"},
                  {FLAG_STEPS, "Length and batches"},
                  {FLAG_OPTIMIZER, "Update"},
                  {FLAG_SHARE_GPU, "Ranks and communication"},
                  {FLAG_VERIFY, "Checks and files"},
                  {FLAG_COUNT, NULL}};
    for (int id = 0, group = 0; id < FLAG_COUNT; id++) {
        if (groups[group].first == (FlagId)id)
            printf("\n%s:\n", groups[group++].title);
        if (stage >= flags[id].stage)
            print_flag(&flags[id]);
    }
}

/* One line of the table of defaults by model. */
static void print_default(const char *title, FlagId flag, OptimizerKind optimizer)
{
    printf("  %-24s", title);
    for (int model = 0; model < MODEL_COUNT; model++) {
        const char *text = flag_model_default(flag, model, optimizer);
        printf(" %-12s", text != NULL ? text : "-");
    }
    putchar('\n');
}

static void print_shapes(void)
{
    for (int model = 0; model < MODEL_COUNT; model++) {
        const char *name = model_defaults[model].model;
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
    const char *program = strcmp(device_name(), "cuda") == 0 ? "train_cuda" : "train";
    printf("%s: distributed data parallel training, stage %d (%s)\n\n", program, stage, stage_name(stage));
    printf("usage: %s [FLAGS]                  one rank\n", program);
    printf("       mpiexec -n 2 %s [FLAGS]     two ranks\n", program);
    printf("\nDefaults are in brackets. --flag VALUE and --flag=VALUE mean the same. If a flag is repeated, the "
           "last one counts.\n"
           "All ranks need the same flags, typed alike; those marked (per rank) may differ.\n");
    print_flags(stage);

    printf("\nDefaults that depend on the model:\n  %-24s", "");
    for (int model = 0; model < MODEL_COUNT; model++)
        printf(" %-12s", model_defaults[model].model);
    putchar('\n');
    print_default("--steps", FLAG_STEPS, OPTIMIZER_SGD);
    print_default("--epochs", FLAG_EPOCHS, OPTIMIZER_SGD);
    print_default("--batch-size", FLAG_BATCH_SIZE, OPTIMIZER_SGD);
    print_default("--optimizer", FLAG_OPTIMIZER, OPTIMIZER_SGD);
    print_default("--lr-schedule", FLAG_LR_SCHEDULE, OPTIMIZER_SGD);
    print_default("--warmup-steps", FLAG_WARMUP_STEPS, OPTIMIZER_SGD);
    print_default("--clip-grad-norm", FLAG_CLIP_GRAD_NORM, OPTIMIZER_SGD);
    print_default("--eval-samples", FLAG_EVAL_SAMPLES, OPTIMIZER_SGD);
    print_default("sgd: --lr", FLAG_LR, OPTIMIZER_SGD);
    print_default("sgd: --momentum", FLAG_MOMENTUM, OPTIMIZER_SGD);
    print_default("sgd: --weight-decay", FLAG_WEIGHT_DECAY, OPTIMIZER_SGD);
    print_default("adamw: --lr", FLAG_LR, OPTIMIZER_ADAMW);
    print_default("adamw: --weight-decay", FLAG_WEIGHT_DECAY, OPTIMIZER_ADAMW);

    printf("\nShapes:\n");
    print_shapes();
    printf("\nExit status: 0 done; 1 a failed check or a fault at run time; 2 wrong usage.\n");
    fflush(stdout);
}
