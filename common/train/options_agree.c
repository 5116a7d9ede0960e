/* options_agree.c: the settings that must be equal on all ranks, compared before anything depends on them. With different
 * bucket caps, say, ranks would add up gradients that have nothing to do with each other. */
#include <stdlib.h>

#include "base/check.h"
#include "train/options.h"

typedef struct Setting {
    const char *flag;
    double value;
} Setting;

enum { SETTINGS = 19 };

static void collect(const Options *o, Setting settings[SETTINGS])
{
    const Setting all[SETTINGS] = {
        {"the stage (program)", ddp_stage_number},
        {"--steps", (double)o->steps},
        {"--epochs", (double)o->epochs},
        {"--batch-size", (double)o->batch_size},
        {"--accumulate", o->accumulate},
        {"--seed", (double)o->seed},
        {"--drop-last", o->drop_last},
        {"--lr", (double)o->lr},
        {"--optimizer (its number)", o->optimizer.kind},
        {"--clip-grad-norm", o->clip_grad_norm},
        {"--precision (its number)", o->precision},
        {"--grad-dtype (its number)", o->ddp.grad_dtype},
        {"--allreduce (its number)", o->group.algorithm},
        {"--bucket-cap-mb, in bytes", (double)o->ddp.bucket_cap_bytes},
        {"--first-bucket-mb, in bytes", (double)o->ddp.first_bucket_cap_bytes},
        {"--rebuild-buckets", o->ddp.rebuild_buckets},
        {"--find-unused-parameters", o->ddp.find_unused_parameters},
        {"--check-every", (double)o->check_every},
        {"--debug-collectives", o->group.debug_collectives},
    };
    for (int i = 0; i < SETTINGS; i++)
        settings[i] = all[i];
}

void options_check_agreement(const Options *options, ProcessGroup *pg)
{
    Setting settings[SETTINGS];
    double mine[SETTINGS];
    double *all = alloc_or_fault((size_t)pg_world_size(pg) * sizeof mine);
    collect(options, settings);
    for (int i = 0; i < SETTINGS; i++)
        mine[i] = settings[i].value;
    pg_all_gather(pg, mine, all, SETTINGS, DTYPE_F64, "settings");
    for (int i = 0; i < SETTINGS; i++)
        for (int rank = 1; rank < pg_world_size(pg); rank++)
            if (all[rank * SETTINGS + i] != all[i])
                die("the ranks were started differently: %s is %.12g on rank 0, but %.12g on rank %d; give every rank the "
                    "same flags", settings[i].flag, all[i], all[rank * SETTINGS + i], rank);
    free(all);
}
