/* device_cpu_ranges.c: ranges on the CPU: there are none. What a call is to do is done when it returns, so the host's
 * clock, and any profiler of the host, see it as it is. */
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
