/* device_cpu_ranges.c: ranges on the CPU do nothing. A kernel's work is done when it returns, so the host's clock and
 * the host's profilers already show where time goes. */
#include "device/device.h"

void device_range_begin(const char *format, ...)
{
    (void)format;
}

void device_range_begin_on(void *stream, const char *format, ...)
{
    (void)stream;
    (void)format;
}

void device_range_end(void)
{
}

void device_mark(const char *format, ...)
{
    (void)format;
}

void device_timeline_begin(void)
{
}

void device_timeline_end(void)
{
}
