/* test_device.c: device.h, on the device that this is linked with: memory, order, element-wise operations. (The rest
 * is in test_device_half.c, _linear.c, _layers.c, _attention.c, _losses.c, _optimizer.c and _contributions.c.) */
#include "device_trial.h"

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

/* ---- element-wise. Sums and products of two numbers are rounded once, and no larger error is allowed. ---- */

static void call_add(const Trial *trial, void **array)
{
    device_add(array[2], array[0], array[1], trial->shape[0]);
}

static void call_accumulate(const Trial *trial, void **array)
{
    device_accumulate(array[1], array[0], trial->shape[0]);
}

static void call_scale(const Trial *trial, void **array)
{
    device_scale(array[0], 0.7f, trial->shape[0]);
}

static void call_fill(const Trial *trial, void **array)
{
    device_fill(array[0], 0.7f, trial->shape[0]);
}

static void call_scale_by(const Trial *trial, void **array)
{
    device_scale_by(array[1], array[0], trial->shape[0]);
}

static void call_relu(const Trial *trial, void **array)
{
    device_relu_forward(array[1], array[0], trial->shape[0]);
}

static void call_relu_backward(const Trial *trial, void **array)
{
    device_relu_backward(trial_gradient(trial, array, 2), array[0], array[1], trial->shape[0]);
}

static void call_contribute(const Trial *trial, void **array)
{
    device_contribute(trial_gradient(trial, array, 1), array[0], trial->shape[0]);
}

static void check_scale_by(const float *x, float factor, int64_t n)
{
    double *product = room_for_doubles(n), *filled = room_for_doubles(n), *nothing = room_for_doubles(n);
    for (int64_t i = 0; i < n; i++) {
        product[i] = (double)(factor * x[i]);
        filled[i] = (double)0.7f;
    }
    Trial scale = {.name = "scale by", .call = call_scale_by, .shape = {n}};
    trial_input(&scale, &factor, 1), trial_output(&scale, "x", x, n);
    trial_run(&scale);
    trial_expect(&scale, 1, product, nothing, "x *= factor, which lies on the device");
    Trial fill = {.name = "fill", .call = call_fill, .shape = {n}};
    trial_output(&fill, "x", NULL, n);
    trial_run(&fill);
    trial_expect(&fill, 0, filled, nothing, "x = value");
}

/* start NULL: the first contribution to a gradient. */
static void check_contributions(const float *x, const float *dout, const float *start, int64_t n)
{
    double *dx = room_for_doubles(n), *drelu = room_for_doubles(n), *nothing = room_for_doubles(n);
    for (int64_t i = 0; i < n; i++) {
        dx[i] = (double)((float)start_at(start, i) + x[i]);
        drelu[i] = (double)((float)start_at(start, i) + (x[i] > 0 ? dout[i] : 0));
    }
    Trial contribute = {.name = "contribute", .call = call_contribute, .shape = {n}};
    trial_input(&contribute, x, n), trial_output(&contribute, "dx", start, n);
    trial_run(&contribute);
    trial_expect(&contribute, 1, dx, nothing, "the first contribution is set, whatever lies there; others are added");
    Trial backward = {.name = "relu backward", .call = call_relu_backward, .shape = {n}};
    trial_input(&backward, x, n), trial_input(&backward, dout, n), trial_output(&backward, "dx", start, n);
    trial_run(&backward);
    trial_expect(&backward, 2, drelu, nothing, "dx is dout where x > 0, not at 0");
}

static void check_simple(int64_t n)
{
    float *x = normals(n), *y = normals(n);
    double *sum = room_for_doubles(n), *product = room_for_doubles(n), *relu = room_for_doubles(n),
           *nothing = room_for_doubles(n);
    for (int64_t i = 0; i < n; i += 9)
        x[i] = i % 2 ? 0.0f : -0.0f; /* relu's kink */
    for (int64_t i = 0; i < n; i++) {
        sum[i] = (double)(x[i] + y[i]);
        product[i] = (double)(0.7f * x[i]);
        relu[i] = x[i] > 0 ? (double)x[i] : 0;
    }
    Trial add = {.name = "add", .call = call_add, .shape = {n}};
    trial_input(&add, x, n), trial_input(&add, y, n), trial_output(&add, "out", NULL, n);
    trial_run(&add);
    trial_expect(&add, 2, sum, nothing, "out = a + b");
    Trial accumulate = {.name = "accumulate", .call = call_accumulate, .shape = {n}};
    trial_input(&accumulate, x, n), trial_output(&accumulate, "out", y, n);
    trial_run(&accumulate);
    trial_expect(&accumulate, 1, sum, nothing, "out += x");
    Trial scale = {.name = "scale", .call = call_scale, .shape = {n}};
    trial_output(&scale, "x", x, n);
    trial_run(&scale);
    trial_expect(&scale, 0, product, nothing, "x *= factor");
    check_scale_by(x, 1, n);
    check_scale_by(x, 0.7f, n);
    Trial forward = {.name = "relu", .call = call_relu, .shape = {n}};
    trial_input(&forward, x, n), trial_output(&forward, "out", NULL, n);
    trial_run(&forward);
    trial_expect(&forward, 1, relu, nothing, "out = x where x > 0");
    check_contributions(x, y, normals(n), n);
    check_contributions(x, y, NULL, n);
}

static void test_simple_operations(void **state)
{
    for (int i = 0; i < SIZES; i++)
        check_simple(sizes[i]);
}

static void call_gelu(const Trial *trial, void **array)
{
    device_gelu_forward(array[1], array[0], trial->shape[0]);
}

static void call_gelu_backward(const Trial *trial, void **array)
{
    device_gelu_backward(trial_gradient(trial, array, 2), array[0], array[1], trial->shape[0]);
}

/* out = x s, s = sigmoid(v), v = 2 sqrt(2/pi) (x + 0.044715 x^3). Six roundings make v, constants included, so exp(-v)
 * is off by a factor of 7 |v| U, and 4 U for exp() itself; that moves s by (1 - s) times as much, plus a sum and a
 * quotient. dout' = s + x s (1 - s) v': there 1 - s is off by as much as s, and by U. start: of the gradient;
 * NULL: this is its first contribution. */
static void check_gelu(float scale, const float *start, int64_t n)
{
    float *x = normals_around(0, scale, n), *dout = normals(n);
    double *out = room_for_doubles(n), *bound = room_for_doubles(n), *dx = room_for_doubles(n),
           *dbound = room_for_doubles(n);
    const double slope = 2 * sqrt(2 / 3.14159265358979323846), cubic = 0.044715;
    for (int64_t i = 0; i < n; i++) {
        const double a = (double)x[i], v = slope * (a + cubic * a * a * a), dv = slope * (1 + 3 * cubic * a * a);
        const double s = 1 / (1 + exp(-v)), rest = 1 / (1 + exp(v)); /* rest = 1 - s */
        const double off = s * (rest * (7 * fabs(v) + 4) + 3) * U + TINY;
        out[i] = a * s;
        bound[i] = fabs(a) * off + U * fabs(out[i]) + TINY;
        const double slope_here = s + a * s * rest * dv;
        const double slope_off = off + fabs(a * dv) * (off * rest + s * (off + U)) + 8 * U * fabs(a * s * rest * dv);
        dx[i] = start_at(start, i) + (double)dout[i] * slope_here;
        dbound[i] = fabs((double)dout[i]) * (slope_off + 2 * U * fabs(slope_here)) + U * fabs(dx[i]) + TINY;
    }
    const char *hint = "GPT-2's GELU is the tanh form; its derivative has two terms; exp() must not overflow to NaN";
    Trial forward = {.name = "gelu", .call = call_gelu, .shape = {n}};
    trial_input(&forward, x, n), trial_output(&forward, "out", NULL, n);
    trial_run(&forward);
    trial_expect(&forward, 1, out, bound, hint);
    Trial backward = {.name = "gelu backward", .call = call_gelu_backward, .shape = {n}};
    trial_input(&backward, x, n), trial_input(&backward, dout, n), trial_output(&backward, "dx", start, n);
    trial_run(&backward);
    trial_expect(&backward, 2, dx, dbound, hint);
}

static void test_gelu(void **state)
{
    for (int i = 0; i < SIZES; i++) {
        check_gelu(1, NULL, sizes[i]);
        check_gelu(30, normals(sizes[i]), sizes[i]);
    }
}

/* A NaN among the activations must stay NaN: otherwise a diverged run would look healthy. */
static void test_activations_keep_nan(void **state)
{
    float *x = normals(257);
    x[5] = x[256] = NAN;
    Trial relu = {.name = "relu of NaN", .call = call_relu, .shape = {257}};
    trial_input(&relu, x, 257), trial_output(&relu, "out", room_for_floats(257), 257);
    trial_run(&relu);
    Trial gelu = {.name = "gelu of NaN", .call = call_gelu, .shape = {257}};
    trial_input(&gelu, x, 257), trial_output(&gelu, "out", room_for_floats(257), 257);
    trial_run(&gelu);
    for (int64_t i = 5; i < 257; i += 251) {
        trial_expect_nan(&relu, 1, i, "max(x, 0) by fmaxf drops NaN; x < 0 ? 0 : x keeps it");
        trial_expect_nan(&gelu, 1, i, "a comparison chose the other side");
    }
    assert_false(isnan(relu.array[1].result[6]) || isnan(gelu.array[1].result[6]));
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device", cmocka_unit_test_teardown(test_names, free_room),
                     cmocka_unit_test_teardown(test_memory_is_zeroed_and_aligned, free_room),
                     cmocka_unit_test_teardown(test_copies, free_room),
                     cmocka_unit_test_teardown(test_who_owns_memory, free_room),
                     cmocka_unit_test_teardown(test_events_order_threads, free_room),
                     cmocka_unit_test_teardown(test_simple_operations, free_room),
                     cmocka_unit_test_teardown(test_gelu, free_room),
                     cmocka_unit_test_teardown(test_activations_keep_nan, free_room));
}
