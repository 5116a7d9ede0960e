/* phases.c: see phases.h. */
#include "train/report/phases.h"

#include "base/clock.h"
#include "comm/observer.h"
#include "device/device.h"

/* A part without a name is timed, but is no event and no range. */
static const char *const names[STEP_PARTS] = {
    [PART_FORWARD] = "forward", [PART_BACKWARD] = "backward", [PART_OPTIMIZER] = "optimizer"};

void phase_begin(Phases *phases, StepPart part)
{
    phases->since[part] = now_seconds();
    if (names[part] != NULL)
        device_range_begin("%s", names[part]);
}

void phase_end(Phases *phases, StepPart part)
{
    if (names[part] != NULL)
        device_range_end();
    double now = now_seconds();
    phases->times.seconds[part] += now - phases->since[part];
    if (names[part] != NULL)
        timeline_add(ROW_COMPUTE, phases->since[part], now, "%s", names[part]);
}

/* ---- collectives ---- */

static void begin_range(void *self, const Collective *collective)
{
    (void)self;
    device_range_begin("%s %s", operation_name(collective->operation), collective->carries);
}

static void end_range(void *self, const Collective *collective)
{
    (void)self, (void)collective;
    device_range_end();
}

static void add_event(void *self, const Collective *collective, double start, double end)
{
    if (pg_is_measuring(self))
        timeline_add(ROW_COMMUNICATION, start, end, "%s %s", operation_name(collective->operation),
                     collective->carries);
}

void phases_observe(ProcessGroup *pg)
{
    pg_observe(pg, &(GroupObserver){.self = pg, .ready = begin_range, .carried = end_range, .done = add_event});
}
