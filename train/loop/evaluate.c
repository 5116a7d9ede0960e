/* evaluate.c: see evaluate.h. */
#include "train/loop/evaluate.h"

#include <math.h>
#include <stdlib.h>

#include "autograd/ops.h"
#include "base/check.h"
#include "device/device.h"

enum { SUM_LOSS, SUM_CORRECT, SUM_TERMS, SUMS };

static void add_batch(Replica *replica, const Dataset *dataset, const void *inputs, const void *targets,
                      int64_t samples, double sums[SUMS])
{
    bool classes = replica->model.spec.loss == LOSS_CROSS_ENTROPY;
    float loss_value = 0;
    tape_begin(&replica->tape, false);
    replica_load(replica, dataset, inputs, targets, samples);
    Tensor *output = model_forward(&replica->model, &replica->tape, replica->inputs, samples, replica->time);
    Tensor *loss = classes ? op_cross_entropy(&replica->tape, output, replica->targets)
                           : op_mse(&replica->tape, output, replica->targets);
    device_to_host(&loss_value, loss->data, sizeof loss_value);
    sums[SUM_LOSS] += (double)loss_value;
    sums[SUM_TERMS] += (double)model_loss_terms(&replica->model.spec, samples, replica->time);
    if (classes)
        sums[SUM_CORRECT] += (double)device_count_correct(output->data, replica->targets, tensor_rows(output),
                                                          tensor_last(output));
}

Evaluation evaluate(Replica *replica, const Dataset *dataset, ProcessGroup *pg, int64_t limit)
{
    int64_t size = limit > 0 && limit < dataset->size ? limit : dataset->size;
    /* As large as the run's largest micro-batch, so that evaluation needs no more memory than training. */
    const int64_t shares = (int64_t)pg_world_size(pg) * replica->options->accumulate;
    const int64_t largest = (replica->options->batch_size - 1) / shares + 1, batch = largest < size ? largest : size;
    int64_t *indices = alloc_or_fault((size_t)batch * sizeof *indices);
    void *inputs = alloc_or_fault((size_t)batch * dataset->input_bytes);
    void *targets = alloc_or_fault((size_t)batch * dataset->target_bytes);
    double sums[SUMS] = {0};
    for (int64_t next = pg_rank(pg); next < size;) {
        int64_t samples = 0;
        for (; samples < batch && next < size; next += pg_world_size(pg))
            indices[samples++] = next;
        dataset_get(dataset, 0, indices, samples, inputs, targets);
        add_batch(replica, dataset, inputs, targets, samples, sums);
    }
    pg_all_reduce(pg, sums, sums, SUMS, DTYPE_F64, REDUCE_SUM, "evaluation");
    free(indices);
    free(inputs);
    free(targets);
    bool classes = replica->model.spec.loss == LOSS_CROSS_ENTROPY;
    return (Evaluation){.loss = sums[SUM_LOSS] / sums[SUM_TERMS],
                        .accuracy = classes ? sums[SUM_CORRECT] / sums[SUM_TERMS] : (double)NAN,
                        .terms = (int64_t)sums[SUM_TERMS]};
}
