/* options_help.c: prints the table of flags, with their defaults. */
#include "train/cli/options_flags.h"

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"

#define HELP_COLUMN 34 /* where a flag's explanation begins */

/* "  --optimizer sgd|adamw     adamw: betas ..." */
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

static void print_flags(int stage)
{
    for (int id = 0; id < FLAG_COUNT; id++) {
        if (flags[id].title != NULL)
            printf("\n%s:\n", flags[id].title);
        if (stage >= flags[id].stage)
            print_flag(&flags[id]);
    }
}

/* A line for each flag: "sgd: --lr        0.02  ..." */
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
    print_flags(stage);
    print_model_defaults();
    printf("\nShapes:\n");
    print_shapes();
    printf("\nExit status: 0 done; 1 a failed check or a fault at run time; 2 wrong usage;\n"
           "75 SIGTERM or SIGUSR1 has stopped the run after a step that all ranks agree on, and --save is written.\n");
    fflush(stdout);
}
