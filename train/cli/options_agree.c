/* options_agree.c: what must be equal on all ranks, compared before anything depends on it. With different bucket caps,
 * say, ranks would add up gradients that have nothing to do with each other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "train/cli/options_flags.h"

enum { IDENTITY_SIZE = 64 /* of a device; sent as int32 words */ };

/* note: same-flags
 * The words that were typed, not the values they stand for: so no flag has to be listed here, and none is forgotten.
 * They decide on the model, too. A default that one rank was given and another was not is refused as well: to know that
 * it means the same, one would need to know what each flag means. The program comes last, and with it what it decides
 * by how it was built: --backend's default. */
void options_check_agreement(const Options *options, ProcessGroup *pg)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    CHECK(stream != NULL, "out of memory: cannot write down the flags");
    for (int id = 0; id < FLAG_COUNT; id++) {
        const char *typed = options->typed[id];
        bool bare = typed != NULL && typed[0] == '\0';
        if (!flags[id].per_rank)
            fprintf(stream, "--%s is %s\n", flags[id].name, typed == NULL ? "not given" : bare ? "given" : typed);
    }
    fprintf(stream, "the program is that of stage %d (%s, %s)\n", ddp_stage_number, device_name(),
            options->backend);
    fclose(stream);
    replicas_check_same_text(pg, text, "the ranks were started differently",
                             "give every rank the same program and flags");
    free(text);
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
