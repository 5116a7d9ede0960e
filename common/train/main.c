/* main.c: `train`, the same for every stage: the stage comes in through ddp.h at link time. */
#include "base/check.h"
#include "device/device.h"
#include "dist/supervise.h"
#include "train/trainer.h"

int main(int argc, char **argv)
{
    Options options;
    int status = 0;
    supervise_rank();
    pg_initialize(&argc, &argv);
    bool asked_to_train = options_parse(&options, argc, argv, ddp_stage_number);
    ProcessGroup *pg = pg_create(&options.group);
    if (asked_to_train) {
        options_check_agreement(&options, pg);
        options_check_world(&options, pg_world_size(pg));
        device_init(pg_local_rank(pg), options.threads);
        status = train(&options, pg);
    }
    pg_destroy(pg);
    return status;
}
