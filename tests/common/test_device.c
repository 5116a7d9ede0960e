/* test_device.c: device.h, on the device that this is linked with: memory, order, operands, TF32. (Operations:
 * test_device_operations.c and its table; the rest: test_device_half.c, _attention.c, _optimizer.c, _ranges.c.) */
#include "device_numbers.h"

#include <pthread.h>

/* Less than a vector register or a warp, one more, several blocks, none at all. */
static const int64_t sizes[] = {0, 1, 3, 4, 31, 33, 257, 1000, 1025, 70001};
#define SIZES (int)(sizeof sizes / sizeof *sizes)

/* ---- the device and its memory ---- */

static void test_names(void **state)
{
    assert_true(strncmp(device_description(), device_name(), strlen(device_name())) == 0);
    assert_true(strlen(device_identity()) < 64);
    assert_true((device_identity()[0] == '\0') == (device_kind() == DEVICE_CPU));
}

static void test_memory_is_zeroed_and_aligned(void **state)
{
    for (int round = 0; round < 2; round++) { /* the second round gets memory that was used before */
        for (int i = 0; i < SIZES; i++) {
            const size_t bytes = (size_t)sizes[i];
            char *memory = device_alloc(bytes), *host = malloc(bytes + 1);
            assert_int_equal((uintptr_t)memory % 64, 0);
            device_to_host(host, memory, bytes);
            for (size_t k = 0; k < bytes; k++)
                if (host[k] != 0)
                    fail_msg("device_alloc(%zu): byte %zu is %d, not 0", bytes, k, host[k]);
            memset(host, 0x77, bytes);
            device_from_host(memory, host, bytes);
            device_free(memory);
            free(host);
        }
    }
    device_free(NULL);
}

/* Copies `bytes` bytes from one place to another, and checks that no other byte changes. */
static void check_copies(size_t from, size_t to, size_t bytes)
{
    unsigned char host[2000], expected[2000], got[2000];
    for (size_t i = 0; i < sizeof host; i++)
        expected[i] = host[i] = (unsigned char)(i * 7 + i / 256);
    char *a = device_copy_of(host, sizeof host), *b = device_copy_of(host, sizeof host);
    memcpy(expected + to, host + from, bytes);
    device_copy(b + to, a + from, bytes);
    device_to_host(got, b, sizeof got);
    assert_memory_equal(got, expected, sizeof got);

    memset(expected + to, 0, bytes);
    device_zero(b + to, bytes);
    device_to_host(got, b, sizeof got);
    assert_memory_equal(got, expected, sizeof got);

    memcpy(expected + to, host + from, bytes);
    device_from_host(b + to, host + from, bytes);
    device_to_host(got + 1, b + 1, sizeof got - 1);
    assert_memory_equal(got + 1, expected + 1, sizeof got - 1);
    device_free(a);
    device_free(b);
}

/* The copy of a buffer is right even if the buffer is overwritten at once. */
static void check_that_copies_are_done(size_t bytes)
{
    char *source = calloc(2, bytes), *target = source + bytes, *memory = device_alloc(bytes);
    memset(source, 1, bytes);
    device_from_host(memory, source, bytes);
    memset(source, 2, bytes);
    device_to_host(target, memory, bytes);
    if (target[0] != 1 || target[bytes - 1] != 1)
        fail_msg("%zu bytes: device_from_host() returned before it had read the host's memory, or device_to_host() "
                 "before it "
                 "had written it",
                 bytes);
    device_free(memory);
    free(source);
}

static void test_copies(void **state)
{
    check_that_copies_are_done(4);
    check_that_copies_are_done(1000000);
    check_copies(0, 0, 2000);
    check_copies(0, 0, 0);
    check_copies(64, 128, 1);
    check_copies(3, 1000, 257);
    check_copies(1999, 0, 1);
}

static void test_who_owns_memory(void **state)
{
    const bool apart = device_kind() == DEVICE_CUDA; /* the CPU's device memory is the host's */
    char on_stack = 0, *memory = device_alloc(100), *host = malloc(10), *pinned = device_alloc_host(1000);
    assert_true(device_owns(memory) == apart);
    assert_true(device_owns(memory + 99) == apart); /* also within */
    assert_false(device_owns(host));
    assert_false(device_owns(&on_stack));
    assert_false(device_owns(pinned));
    assert_false(device_owns(NULL));
    memset(pinned, 3, 1000); /* host memory: this thread may write it */
    device_from_host(memory, pinned + 900, 100);
    device_to_host(pinned, memory, 100);
    assert_int_equal(pinned[99], 3);
    device_free(memory);
    device_free_host(pinned);
    device_free_host(device_alloc_host(0));
    device_free_host(NULL);
    free(host);
}

/* ---- order ---- */

enum { LONG = 100000, TIMES = 20 };

typedef struct Handover {
    float *x, *copy; /* device */
    DeviceEvent *event;
    float *host;
} Handover;

static void *take_over(void *argument)
{
    Handover *handover = argument;
    device_init_thread();
    device_event_wait(handover->event);
    device_copy(handover->copy, handover->x, LONG * sizeof(float));
    device_scale(handover->copy, 2, LONG);
    handover->event = device_event_record();
    return NULL;
}

/* Work of this thread, then of another, then of this one again: two events order it. */
static void test_events_order_threads(void **state)
{
    float *ones = room_for_floats(LONG), *expected = room_for_floats(LONG), *got = room_for_floats(LONG);
    for (int i = 0; i < LONG; i++) {
        ones[i] = 1;
        expected[i] = 2 * TIMES + 1;
    }
    float *one = device_copy_of(ones, LONG * sizeof(float));
    Handover handover = {device_alloc(LONG * sizeof(float)), device_alloc(LONG * sizeof(float)), NULL, got};
    pthread_t thread;
    for (int i = 0; i < TIMES; i++)
        device_accumulate(handover.x, one, LONG);
    handover.event = device_event_record();
    assert_int_equal(pthread_create(&thread, NULL, take_over, &handover), 0);
    pthread_join(thread, NULL);
    device_event_wait(handover.event);
    device_accumulate(handover.copy, one, LONG);
    device_synchronize();
    device_to_host(got, handover.copy, LONG * sizeof(float));
    expect_bits_equal("x after two handovers", got, expected, LONG,
                      "what a thread queues after device_event_wait() must come after the work that the event marks");
    device_free(one);
    device_free(handover.x);
    device_free(handover.copy);
}

/* ---- operands and products ---- */

static void test_operand_bytes(void **state)
{
    const DType precisions[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (int p = 0; p < 3; p++) {
        assert_int_equal(device_rounded_bytes(precisions[p], 0), 0);
        assert_true(device_rounded_bytes(precisions[p], 33) >= 33 * (p == 0 ? 4u : 2u));
        device_free(operand_of(NULL, precisions[p], 0));
    }
}

/* The relative error, as a root of sums of squares, of products of 1024 numbers. Errors of both signs cancel, so it is
 * about 2^-20 in float32 and 2^-12 in TF32. */
static double error_of_products(void)
{
    enum { ROWS = 16, N = 1024 };
    const float *x = normals(ROWS * N), *weight = normals(N * N);
    float *on_device[] = {device_copy_of(x, ROWS * N * sizeof *x), device_copy_of(weight, N * N * sizeof *weight),
                          device_alloc(ROWS * N * sizeof *x)};
    float *out = room_for_floats(ROWS * N);
    device_linear_forward(on_device[2], on_device[0], on_device[1], NULL, ROWS, N, N, DTYPE_F32);
    device_to_host(out, on_device[2], ROWS * N * sizeof *out);
    double squares_off = 0, squares = 0;
    for (int64_t i = 0; i < ROWS * N; i++) {
        double exact = 0;
        for (int64_t k = 0; k < N; k++)
            exact += (double)x[i / N * N + k] * (double)weight[i % N * N + k];
        squares_off += ((double)out[i] - exact) * ((double)out[i] - exact);
        squares += exact * exact;
    }
    for (int i = 0; i < 3; i++)
        device_free(on_device[i]);
    return sqrt(squares_off / squares);
}

/* TF32 keeps 11 significant bits. It has an effect on CUDA only, until it is forbidden again. It is only a permission:
 * cuBLAS still multiplies small matrices in float32. On an H100 (CUDA 12.8) it uses TF32 if both sides of the weight are
 * 512 or more, according to PyTorch's pull request 183355. */
static void test_tf32(void **state)
{
    device_allow_tf32(true);
    const double allowed = error_of_products();
    device_allow_tf32(false);
    const double forbidden = error_of_products();
    if (forbidden > 0x1p-16)
        fail_msg("TF32 is forbidden, but products are off by %.3g of themselves: does device_allow_tf32(false) do "
                 "anything?", forbidden);
    if (allowed > 0x1p-10 || (device_kind() == DEVICE_CPU && allowed > 0x1p-16))
        fail_msg("TF32 is allowed, and products are off by %.3g of themselves: more than by the 13 bits that it leaves "
                 "out", allowed);
    if (device_kind() == DEVICE_CUDA && allowed < 0x1p-16)
        fail_msg("TF32 is allowed, but all is as exact as float32 is: is cuBLAS asked for another compute type? (Or "
                 "does the environment say NVIDIA_TF32_OVERRIDE=0, or does cuBLAS prefer float32 at this size?)");
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device", cmocka_unit_test_teardown(test_names, free_room),
                     cmocka_unit_test_teardown(test_memory_is_zeroed_and_aligned, free_room),
                     cmocka_unit_test_teardown(test_copies, free_room),
                     cmocka_unit_test_teardown(test_who_owns_memory, free_room),
                     cmocka_unit_test_teardown(test_events_order_threads, free_room),
                     cmocka_unit_test_teardown(test_operand_bytes, free_room),
                     cmocka_unit_test_teardown(test_tf32, free_room));
}
