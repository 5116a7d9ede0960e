/* pipeline.cpp: asynchronous copies to shared memory (cuda_pipeline.h). */
#include "emulator.h"

#include "cuda_pipeline.h"

#include <deque>
#include <vector>

namespace
{

struct Copy {
    void *to;
    const void *from;
    size_t bytes;
    long group;
};

/* One thread's copies that are started but not done, and the number of groups that it has committed. */
struct Started {
    std::deque<Copy> copies;
    long groups = 0;
};

std::vector<Started> threads(1024);

Started *own()
{
    return &threads[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
}

} // namespace

void emulator_start_copy(void *to, const void *from, size_t bytes, EmulatedPlace place)
{
    if ((bytes != 4 && bytes != 8 && bytes != 16) || (uintptr_t)to % bytes != 0 || (uintptr_t)from % bytes != 0)
        emulator_fail("%s (%s:%d): 4, 8 or 16 bytes, between addresses that are multiples of that", place.call,
                      place.file, place.line);
    if (emulator_setting("LOCKSTEP_EMULATED_LAZY", 0) == 0)
        memcpy(to, from, bytes);
    else
        own()->copies.push_back(Copy{to, from, bytes, own()->groups});
}

void emulator_commit_copies()
{
    own()->groups++;
}

void emulator_wait_for_copies(size_t but_groups)
{
    Started *started = own();
    while (!started->copies.empty() && started->copies.front().group < started->groups - (long)but_groups) {
        const Copy copy = started->copies.front();
        started->copies.pop_front();
        memcpy(copy.to, copy.from, copy.bytes);
    }
}

void pipeline_expect_empty()
{
    for (Started &started : threads)
        if (!started.copies.empty())
            emulator_fail("a block ends with copies to shared memory that no thread has waited for");
}
