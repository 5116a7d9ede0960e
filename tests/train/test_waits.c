/* test_waits.c: counts how often the host waits for the device in a training step. On a GPU, each copy between host and
 * device, and each device_synchronize(), waits until all queued work is done. The calls can be counted on the CPU, too:
 * the linker replaces the device's functions by those below (-Wl,--wrap). */
#include <stdlib.h>

#include "device/device.h"
#include "expect.h"
#include "toy_models.h"
#include "train/loop/replica.h"

static int waits;

void __real_device_to_host(void *host, const void *device, size_t bytes);
void __real_device_from_host(void *device, const void *host, size_t bytes);
void __real_device_synchronize(void);

void __wrap_device_to_host(void *host, const void *device, size_t bytes)
{
    waits++;
    __real_device_to_host(host, device, bytes);
}

void __wrap_device_from_host(void *device, const void *host, size_t bytes)
{
    waits++;
    __real_device_from_host(device, host, bytes);
}

void __wrap_device_synchronize(void)
{
    waits++;
    __real_device_synchronize();
}

static void expect_waits(const char *what, int expected)
{
    if (waits != expected)
        fail_msg("%s: the host waits for the device %d time(s), not %d; usual cause: something is looked at on the "
                 "host that the next kernel could read on the device", what, waits, expected);
    waits = 0;
}

static void check_step(DType precision, OptimizerKind kind, double clip_grad_norm, bool overflow)
{
    enum { SAMPLES = 6 };
    Options options = toy_options("gpt");
    options.precision = precision;
    options.optimizer.kind = kind;
    options.clip_grad_norm = clip_grad_norm;
    options.initial_loss_scale = overflow ? 1e30f : 64;
    options.on_nan = ON_NAN_SKIP;
    Dataset dataset = toy_dataset(&options, 100);
    Replica replica;
    replica_create(&replica, &options, 1, 10);
    void *gradients = parameters_allocate_gradients(&replica.model.parameters);
    void *inputs = calloc(SAMPLES, dataset.input_bytes), *targets = calloc(SAMPLES, dataset.target_bytes);
    const int64_t indices[SAMPLES] = {0, 1, 2, 3, 4, 5};
    dataset_get(&dataset, 0, indices, SAMPLES, inputs, targets);
    for (long step = 0; step < 3; step++) {
        waits = 0;
        Tensor *loss = replica_loss(&replica, &dataset, inputs, targets, SAMPLES);
        expect_waits("forward: the batch comes in two copies", 2);
        replica_backward(&replica, loss);
        expect_waits("backward", 0);
        for (int i = 0; i < replica.model.parameters.count; i++) { /* in the place of ddp.c */
            const Tensor *tensor = &replica.model.parameters.items[i]->tensor;
            device_scale(tensor->grad, replica_gradient_scale(&replica, SAMPLES), tensor_count(tensor));
        }
        const bool overflows = precision == DTYPE_F16 && overflow;
        assert_true(replica_update(&replica, step) == !overflows);
        expect_waits("update: its end is all that is waited for", 1);
    }
    device_free(gradients);
    replica_free(&replica);
    dataset_close(&dataset);
    free(inputs);
    free(targets);
}

static void test_one_wait_per_update(void **state)
{
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int p = 0; p < 3; p++) {
        for (int clip = 0; clip < 2; clip++) {
            check_step(precisions[p], OPTIMIZER_SGD, clip * 0.01, false);
            check_step(precisions[p], OPTIMIZER_ADAMW, clip * 0.01, false);
            check_step(precisions[p], OPTIMIZER_ADAMW, clip * 0.01, true);
        }
    }
}

int main(void)
{
    device_init(0, 1);
    return run_cases("waits", cmocka_unit_test(test_one_wait_per_update));
}
