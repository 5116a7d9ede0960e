/* main.c: `train`, the same for every stage, which is linked in behind ddp.h. */
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "base/check.h"
#include "device/device.h"
#include "train/gpu.h"
#include "train/guard/guard.h"
#include "train/report/trace.h"
#include "train/loop/trainer.h"

/* If stdin, stdout or stderr is closed, the next file would get its descriptor, and output would go into that file. So
 * this opens /dev/null in its place, read-only: printing then fails, and report_check_stdout() reports it. */
static void fill_standard_streams(void)
{
    int descriptor;
    do
        descriptor = open("/dev/null", O_RDONLY);
    while (descriptor >= 0 && descriptor <= STDERR_FILENO);
    close(descriptor);
}

int main(int argc, char **argv)
{
    Options options;
    int status = 0;
    device_choose_kernels(argv);
    fill_standard_streams();
    signal(SIGXFSZ, SIG_IGN); /* beyond `ulimit -f` a write fails, as on a full disk, instead of ending the process */
    job_set_program(device_kind() == DEVICE_CUDA ? "train_cuda" : "train");
    supervise_rank();
    ProcessGroup *pg = job_open(&argc, &argv);
    guard_job(pg);
    CHECK(ddp_stage_number == LOCKSTEP_STAGE, "ddp.c says that it is stage %d, but this is stage %d's program: if "
          "you copied it from there, change ddp_stage_number and ddp_stage_name", ddp_stage_number, LOCKSTEP_STAGE);
    bool asked_to_train = options_parse(&options, argc, argv, ddp_stage_number);
    /* Until ranks have compared their flags, use only --timeout: other flags would change how they compare. */
    pg_set_options(pg, &(ProcessGroupOptions){.timeout = options.group.timeout});
    if (asked_to_train) {
        device_init(pg_local_rank(pg), options.threads); /* first: every collective asks if its memory is on a device */
        device_allow_tf32(options.tf32);
        options_check_agreement(&options, pg, ddp_stage_number);
        pg_set_options(pg, &options.group);
        const Resolved resolved = options_resolve(&options, pg_algorithm(pg), pg_world_size(pg));
        options_check_world(&options, &resolved, pg_world_size(pg));
        options_check_devices(&options, pg);
        gpu_join_group(pg, resolved.backend == BACKEND_NCCL);
        if (options.flight_recorder != NULL)
            guard_record_flight(pg, options.flight_recorder);
        timeline_observe(pg); /* last: comparing calls is not part of a collective's range */
        status = train(&options, &resolved, pg);
    }
    if (pg_rank(pg) == 0)
        report_check_stdout();
    job_set_status(status);
    job_close(pg);
    return status;
}
