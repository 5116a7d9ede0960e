/* played_device.c: for bench/collectives with the fake NCCL: host memory from device_alloc() counts as a GPU's. */
#include <stdbool.h>
#include <stddef.h>

static const unsigned char *start;
static size_t length;

void *__real_device_alloc(size_t bytes);
void *__wrap_device_alloc(size_t bytes);
bool __wrap_device_owns(const void *memory);

/* The program asks for one buffer on the device. */
void *__wrap_device_alloc(size_t bytes)
{
    void *memory = __real_device_alloc(bytes);
    start = memory;
    length = bytes;
    return memory;
}

bool __wrap_device_owns(const void *memory)
{
    const unsigned char *address = memory;
    return address >= start && address < start + length;
}
