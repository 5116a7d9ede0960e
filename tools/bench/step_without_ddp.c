/* step_without_ddp.c: the training step of one process with no DDP in it: no process group, no buckets, no all-reduce.
 * The difference to the time of `train` on one rank is the cost of DDP. Takes train's flags; prints one line of JSON.
 *
 *   step_without_ddp --model gpt --steps 50 --batch-size 16
 */
#include <stdio.h>

#include "base/check.h"
#include "base/clock.h"
#include "data/loader.h"
#include "device/device.h"
#include "train/loop/replica.h"
#include "train/report/stats.h"

static void open_dataset(Dataset *dataset, const Options *options)
{
    if (options->dataset == DATASET_TEXT)
        dataset_open_text(dataset, options->data, SPLIT_TRAIN, options->model.gpt.context, options->seed,
                          options->binary_data);
    else if (options->dataset == DATASET_IMAGES)
        dataset_open_images(dataset, options->data, SPLIT_TRAIN, options->model.mlp.inputs, options->model.mlp.outputs);
    else
        dataset_open_random(dataset, 1000, options->model.mlp.inputs, options->model.mlp.outputs, options->seed);
}

/* As in train/loop/trainer.c, without the ddp_ calls. */
static float step(Replica *replica, const Dataset *dataset, Loader *loader, long number, StepTimes *times)
{
    double start = now_seconds();
    const Batch *batch = loader_next(loader);
    float loss_value = 0;
    replica_set_samples(replica, batch->step, batch->places, batch->global_samples);
    Tensor *loss = replica_loss(replica, dataset, batch->inputs, batch->targets, batch->samples);
    device_to_host(&loss_value, loss->data, sizeof loss_value);
    replica_backward(replica, loss);
    device_synchronize();
    float scale = replica_gradient_scale(replica, batch->global_samples);
    for (int i = 0; i < replica->model.parameters.count; i++) {
        Tensor *tensor = &replica->model.parameters.items[i]->tensor;
        device_scale(tensor->grad, scale, tensor_count(tensor));
    }
    replica_update(replica, number);
    times->seconds[PART_STEP] = now_seconds() - start;
    return loss_value;
}

int main(int argc, char **argv)
{
    Options options;
    Dataset dataset;
    Sampler sampler;
    Replica replica;
    Stats stats = {0};
    job_set_program("step_without_ddp");
    if (!options_parse(&options, argc, argv, 4))
        return 0;
    if (options.steps == 0 || options.accumulate > 1)
        die("give --steps, and do not give --accumulate: this program has none");
    device_init(0, options.threads);
    device_allow_tf32(options.tf32);
    open_dataset(&dataset, &options);
    sampler_create(&sampler, dataset.size, 1, options.batch_size, options.seed, true, options.drop_last);
    replica_create(&replica, &options, options.seed, options.steps);
    void *gradients = parameters_allocate_gradients(&replica.model.parameters);
    Loader *loader = loader_start(&dataset, &sampler, 0, 1, 0);
    float loss = 0;
    for (long number = 0; number < options.steps; number++) {
        StepTimes times = {{0}};
        loss = step(&replica, &dataset, loader, number, &times);
        stats_add(&stats, &times);
    }
    printf("{\"model\": \"%s\", \"device\": \"%s\", \"step_ms\": {\"p50\": %.6f}, \"last_loss\": %.6f}\n",
           options.model.name, device_name(), 1e3 * stats_percentile(&stats, PART_STEP, 50),
           (double)loss / (double)model_loss_terms(&options.model, options.batch_size, replica.time));
    loader_stop(loader);
    device_free(gradients);
    replica_free(&replica);
    sampler_free(&sampler);
    dataset_close(&dataset);
    stats_free(&stats);
    return 0;
}
