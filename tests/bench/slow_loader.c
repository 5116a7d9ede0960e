/* slow_loader.c: planted into a train program, in place of dataset_get(): reading a sample takes 100 ms more, as from a
 * slow disk. (This project's data are in memory, so that nothing outside of the program can slow its loader down so much.)
 * diagnose_planted.sh sees that scripts/diagnose.sh names the loader. */
#include <unistd.h>

#include "data/dataset.h"

void __real_dataset_get(const Dataset *dataset, long epoch, const int64_t *indices, int64_t count, void *inputs,
                        void *targets);
void __wrap_dataset_get(const Dataset *dataset, long epoch, const int64_t *indices, int64_t count, void *inputs,
                        void *targets);

void __wrap_dataset_get(const Dataset *dataset, long epoch, const int64_t *indices, int64_t count, void *inputs,
                        void *targets)
{
    usleep((useconds_t)count * 100000);
    __real_dataset_get(dataset, epoch, indices, count, inputs, targets);
}
