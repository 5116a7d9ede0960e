/* test_device_operations.c: runs the table of operations (operation_check.h) on the device that this is linked with. */
#include "operation_check.h"

static void check_all(const Operation *operations)
{
    for (const Operation *operation = operations; operation->name != NULL; operation++)
        check_operation(operation);
}

static void test_elementwise(void **state)
{
    check_all(elementwise_operations);
}

static void test_updates(void **state)
{
    check_all(update_operations);
}

static void test_layers(void **state)
{
    check_all(layer_operations);
}

static void test_losses(void **state)
{
    check_all(loss_operations);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device_operations", cmocka_unit_test_teardown(test_elementwise, free_room),
                     cmocka_unit_test_teardown(test_updates, free_room),
                     cmocka_unit_test_teardown(test_layers, free_room),
                     cmocka_unit_test_teardown(test_losses, free_room));
}
