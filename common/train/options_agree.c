/* options_agree.c: the settings that must be equal on all ranks, compared before anything depends on them. With different
 * bucket caps, say, ranks would add up gradients that have nothing to do with each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "device/device.h"
#include "train/options.h"

typedef struct Setting {
    const char *flag;
    double value;
} Setting;

enum { SETTINGS = 35, IDENTITY_SIZE = 64 /* of a device; sent as int32 words */ };

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
        {"--rank-samples (a fingerprint)", options_rank_samples_fingerprint(o)},
        {"--join (its number)", o->join},
        {"--lr", (double)o->lr},
        {"--lr-schedule (its number)", o->lr_schedule},
        {"--warmup-steps", (double)o->warmup_steps},
        {"--optimizer (its number)", o->optimizer.kind},
        {"--momentum", (double)o->optimizer.momentum},
        {"--weight-decay", (double)o->optimizer.weight_decay},
        {"--clip-grad-norm", o->clip_grad_norm},
        {"--precision (its number)", o->precision},
        {"--tf32", o->tf32},
        {"--grad-dtype (its number)", o->ddp.grad_dtype},
        {"--loss-scale", (double)o->initial_loss_scale}, /* its default follows from the one before */
        {"--on-nan (its number)", o->on_nan},
        {"--allreduce (its number)", o->group.algorithm},
        {"--backend nccl", strcmp(o->backend, "nccl") == 0},
        {"--device cuda (the program)", strcmp(o->device, "cuda") == 0},
        {"--bucket-cap-mb, in bytes", (double)o->ddp.bucket_cap_bytes},
        {"--first-bucket-mb, in bytes", (double)o->ddp.first_bucket_cap_bytes},
        {"--rebuild-buckets", o->ddp.rebuild_buckets},
        {"--find-unused-parameters", o->ddp.find_unused_parameters},
        {"--check-every", (double)o->check_every},
        {"--debug-collectives", o->group.debug_collectives},
        {"--eval-samples", (double)o->eval_samples},
        {"--verify (its number)", o->verify},
        {"--trace (whether given)", o->trace != NULL},
        {"--resume (whether given)", o->resume != NULL},
        {"--save-every", (double)o->save_every},
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

/* note: one-gpu-each
 * Not by comparing numbers of ranks and GPUs: a launcher may show each rank one GPU only, its own or everyone's, and
 * call it GPU 0 either way. Two ranks on one GPU train correctly over MPI (NCCL refuses them), but halve each other's
 * speed, and nobody wants that by accident. */
void options_check_devices(const Options *options, ProcessGroup *pg)
{
    char mine[IDENTITY_SIZE] = "";
    char *all = alloc_or_fault((size_t)pg_world_size(pg) * IDENTITY_SIZE);
    snprintf(mine, sizeof mine, "%s", device_identity());
    pg_all_gather(pg, mine, all, IDENTITY_SIZE / sizeof(int32_t), DTYPE_I32, "devices");
    for (int rank = 1; rank < pg_world_size(pg) && !options->share_gpu; rank++) {
        const char *device = all + (size_t)rank * IDENTITY_SIZE;
        for (int other = 0; other < rank; other++)
            if (device[0] != '\0' && strcmp(device, all + (size_t)other * IDENTITY_SIZE) == 0)
                die("ranks %d and %d have the same GPU (UUID %s): start one rank per GPU, or let them share it with "
                    "--share-gpu (over --backend mpi, as NCCL refuses to)", other, rank, device);
    }
    free(all);
}
