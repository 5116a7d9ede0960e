/* options_agree.c: compares what must be equal on all ranks, before anything depends on it. With different bucket caps,
 * for example, ranks would add gradients of different parameters. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "ddp/replicas.h"
#include "device/device.h"
#include "train/cli/options_flags.h"

enum { IDENTITY_SIZE = 64 /* of a device; sent as int32 words */ };

/* note: same-flags
 * Ranks compare the words that were typed, not their values. So no flag has to be listed here, and none is forgotten.
 * The words determine the model, too. If one rank was given a default and another was not, this is an error as well,
 * although it means the same: to know that, this function would need to know each flag's meaning. The program comes
 * last, with the default of --backend, which depends on how the program was built. */
void options_check_agreement(const Options *options, ProcessGroup *pg)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    CHECK(stream != NULL, "out of memory for the text of the flags");
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
 * Ranks compare the UUIDs of their GPUs. The number of GPUs does not tell: a launcher may show each rank only one GPU,
 * its own or the same to all, and both are called GPU 0. Two ranks on one GPU train correctly over MPI (NCCL refuses
 * them), but each at half the speed, so this must be asked for. */
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
                    "--share-gpu (with --backend mpi, because NCCL refuses this)", other, rank, device);
    }
    free(all);
}
