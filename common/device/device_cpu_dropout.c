/* device_cpu_dropout.c: dropout; its masks are computed, not stored. */
#include "base/rng.h"
#include "device/device.h"

/* Multiplies instead of branching, so that a dropped NaN stays NaN and --on-nan sees it. */
void device_dropout(Gradient to, const float *x, const DropoutMask *mask, int64_t samples, int64_t elements)
{
    const uint32_t dropped_below = (uint32_t)((double)mask->probability * 0x1p32);
    const float scale = 1 / (1 - mask->probability);
    for (int64_t s = 0; s < samples; s++, x += elements, to.values += elements) {
        for (int64_t first = 0; first < elements; first += 4) {
            uint32_t numbers[4];
            const uint32_t counter[4] = {(uint32_t)(first / 4), mask->layer, (uint32_t)mask->places[s], mask->step};
            rng_philox(mask->seed, counter, numbers);
            for (int64_t i = first; i < first + 4 && i < elements; i++) {
                const float kept = x[i] * (numbers[i - first] < dropped_below ? 0 : scale);
                to.values[i] = to.add ? to.values[i] + kept : kept;
            }
        }
    }
}
