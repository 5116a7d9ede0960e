/* rows_faults.c: what ends the job, and the line that says why. Each trial runs in a separate process. */
#include <stdio.h>
#include <string.h>

#include "world/contract.h"

static void run(const Mode *mode)
{
    trial_run(mode, NULL);
}

static void expect_end(void (*function)(const Mode *mode), const Mode *mode, const char *must_say, const char *problem)
{
    static char text[1 << 16];
    trial_mode = mode;
    const int status = run_apart(function, mode, text, sizeof text);
    if (status == 0)
        world_fault("%s, and the job did not end", problem);
    if (strstr(text, must_say) == NULL)
        world_fault("%s; the job ended, but no line says \"%s\"; it said: %.300s", problem, must_say, text);
}

/* ---- a missing gradient ---- */

static void leave_out(Mode *mode)
{
    mode->parameters += 3;
    mode->find_unused = mode->static_graph = mode->frozen = mode->buffer = false;
    mode->level = mode->level == 3 ? 2 : mode->level;
}

static bool is_missing_in_first_pass(const Mode *mode)
{
    for (int rank = 0; rank < mode->ranks; rank++)
        for (int p = 0; p < mode->parameters; p++)
            if (!toy_uses(mode, rank, 0, 0, p))
                return true;
    return false;
}

static void missing_gradient(const Mode *drawn)
{
    Mode mode = *drawn;
    mode.unused = true;
    if (is_missing_in_first_pass(&mode))
        expect_end(run, &mode, "got no gradient: layer", "backward gives a trained parameter no gradient on some rank");
}

static void leave_out_first(Mode *mode)
{
    leave_out(mode);
    mode->micro_batches = 2;
}

static void missing_in_first_micro_batch(const Mode *drawn)
{
    Mode mode = *drawn;
    mode.only_first = true;
    missing_gradient(&mode);
}

/* ---- different models ---- */

static void two_and_more(Mode *mode)
{
    mode->ranks = mode->ranks < 2 ? 2 : mode->ranks;
}

static void rename_one(Toy *toy)
{
    if (toy->rank == toy->mode->ranks - 1)
        snprintf(toy->list.items[0]->name, sizeof toy->list.items[0]->name, "another.weight");
}

static void freeze_one(Toy *toy)
{
    if (toy->rank == 0)
        toy->list.items[toy_always_used(toy->mode)]->tensor.requires_grad = false;
}

static void run_renamed(const Mode *mode)
{
    trial_run(mode, &(TrialHooks){.before_create = rename_one});
}

static void run_frozen(const Mode *mode)
{
    trial_run(mode, &(TrialHooks){.before_create = freeze_one});
}

static void different_models(const Mode *mode)
{
    char name[32];
    expect_end(run_renamed, mode, "another.weight", "one rank's parameter has another name");
    snprintf(name, sizeof name, "layer%d.weight", toy_always_used(mode));
    expect_end(run_frozen, mode, name, "one rank has frozen a parameter that the others train");
}

/* ---- static_graph ---- */

static void promise(Mode *mode)
{
    mode->parameters += 6;
    mode->steps = 4;
    mode->level = mode->level == 3 ? 1 : mode->level;
    mode->find_unused = mode->static_graph = mode->unused = true;
    mode->frozen = mode->buffer = false;
}

static bool passes_differ(const Mode *mode)
{
    for (int rank = 0; rank < mode->ranks; rank++)
        for (int pass = 1; pass < mode->steps * mode->micro_batches; pass++)
            for (int p = 0; p < mode->parameters; p++)
                if (toy_uses(mode, rank, pass / mode->micro_batches, pass % mode->micro_batches, p) !=
                    toy_uses(mode, rank, 0, 0, p))
                    return true;
    return false;
}

static void broken_promise(const Mode *drawn)
{
    Mode mode = *drawn;
    mode.breaks_promise = true;
    if (passes_differ(&mode))
        expect_end(run, &mode, "--static-graph", "with static_graph, a later pass uses other parameters");
}

const Row rows_faults[] = {
    {"missing_gradient", "If backward gives a trained parameter no gradient, the job ends and names it", 1, 5, 15,
     leave_out, missing_gradient},
    {"missing_in_first", "The job also ends if only the first micro-batch gives it no gradient", 4, 5, 10,
     leave_out_first, missing_in_first_micro_batch},
    {"different_models", "If the ranks have different models, the job ends and names the difference", 1, 5, 6,
     two_and_more, different_models},
    {"broken_promise", "With static_graph, the job ends if a later pass uses other parameters", 3, 5, 10, promise,
     broken_promise},
    {0}};
