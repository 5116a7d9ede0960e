/* test_device_losses.c: device.h's losses and accuracy against float64, on the device that this is linked with.
 * device_trial.h says what bounds mean. */
#include "device_trial.h"

/* ---- losses ---- */

static void call_cross_entropy(const Trial *trial, void **array)
{
    device_cross_entropy_forward(array[2], array[3], array[4], array[0], array[1], trial->shape[0], trial->shape[1]);
}

static void call_cross_entropy_backward(const Trial *trial, void **array)
{
    device_cross_entropy_backward(trial_gradient(trial, array, 5), array[0], array[1], array[2], array[3], array[4],
                                  trial->shape[0], trial->shape[1]);
}

static void call_mse(const Trial *trial, void **array)
{
    device_mse_forward(array[2], array[0], array[1], trial->shape[0], trial->shape[1]);
}

static void call_mse_backward(const Trial *trial, void **array)
{
    device_mse_backward(trial_gradient(trial, array, 3), array[0], array[1], array[2], trial->shape[0],
                        trial->shape[1]);
}

/* Cross-entropy's numbers for one row. */
typedef struct Softmax {
    double largest, sum; /* of exp(x - largest) */
    double range;        /* the largest distance from the largest; beyond 90, exp() is nothing */
} Softmax;

static Softmax softmax_of(const float *x, int64_t V)
{
    Softmax softmax = {.largest = -INFINITY};
    for (int64_t i = 0; i < V; i++)
        softmax.largest = fmax(softmax.largest, (double)x[i]);
    for (int64_t i = 0; i < V; i++) {
        const double distance = softmax.largest - (double)x[i];
        softmax.sum += exp(-distance);
        softmax.range = fmax(softmax.range, distance < 90 ? distance : 0);
    }
    return softmax;
}

/* Draws a target for each row, and masks the rows 1, 4, 7, ... */
static const int32_t *some_masked(int64_t V, int64_t rows)
{
    int32_t *targets = indices_below((int32_t)V, rows);
    for (int64_t row = 1; row < rows; row += 3)
        targets[row] = -1;
    return targets;
}

/* Relative error of exp(x - largest): U |x - largest| for the difference and 4 U for exp(); of the sum of V such: V U
 * more. loss = log(sum) - (x[target] - largest): the log changes by the sum's relative error, and has 4 U of its
 * own. */
static void check_cross_entropy(float scale, int64_t rows, int64_t V)
{
    const float *logits = normals_around(3, scale, rows * V);
    const int32_t *targets = some_masked(V, rows);
    double *largest = room_for_doubles(rows), *exactly = room_for_doubles(rows), loss = 0, loss_bound = 0, losses = 0;
    double *sum = room_for_doubles(rows), *sum_bound = room_for_doubles(rows);
    for (int64_t row = 0; row < rows; row++) {
        const Softmax softmax = softmax_of(logits + row * V, V);
        const double sum_is_off = U * (softmax.range + (double)V + 8); /* relative */
        largest[row] = softmax.largest;
        sum[row] = softmax.sum;
        sum_bound[row] = softmax.sum * sum_is_off + (double)V * TINY;
        if (targets[row] < 0)
            continue;
        const double at_target = (double)logits[row * V + targets[row]] - softmax.largest;
        loss += log(softmax.sum) - at_target;
        losses += fabs(log(softmax.sum) - at_target);
        loss_bound += sum_is_off + U * (4 * log(softmax.sum) + fabs(at_target)) + (double)V * TINY;
    }
    loss_bound += (double)(rows + 2) * U * losses;
    Trial trial = {.name = "cross entropy", .call = call_cross_entropy, .shape = {rows, V}};
    trial_input(&trial, logits, rows * V), trial_input(&trial, targets, rows);
    trial_output(&trial, "loss", NULL, 1), trial_output(&trial, "row_max", NULL, rows);
    trial_output(&trial, "row_sum", NULL, rows);
    trial_run(&trial);
    trial_expect(&trial, 2, &loss, &loss_bound,
                 "the loss is the SUM over rows of -log p[target], without masked rows (target -1); set, not added to");
    trial_expect(&trial, 3, largest, exactly, "the largest logit of each row, or exp() overflows");
    trial_expect(&trial, 4, sum, sum_bound,
                 "the sum of exp(logit - largest): a thread that finds a larger logit must scale its sum down to it");
}

/* p = exp(x - largest) / sum is off by U |x - largest| for the difference, 4 U for exp(), 3 U for the quotient and the
 * sum as it is given; dlogits += dloss (p - 1 at the target) by four roundings. start NULL: the first contribution, =.
 */
static void check_cross_entropy_backward(float scale, const float *start, int64_t rows, int64_t V)
{
    const float *logits = normals_around(3, scale, rows * V), dloss = 0.37f;
    const int32_t *targets = some_masked(V, rows);
    float *row_max = room_for_floats(rows), *row_sum = room_for_floats(rows);
    double *dx = room_for_doubles(rows * V), *bound = room_for_doubles(rows * V);
    for (int64_t row = 0; row < rows; row++) {
        const Softmax softmax = softmax_of(logits + row * V, V);
        row_max[row] = (float)softmax.largest;
        row_sum[row] = (float)softmax.sum;
        for (int64_t i = row * V; i < (row + 1) * V; i++) {
            const double p = exp((double)logits[i] - softmax.largest) / softmax.sum;
            const double hit = i % V == targets[row] ? 1 : 0, d = targets[row] < 0 ? 0 : (double)dloss;
            dx[i] = start_at(start, i) + d * (p - hit);
            bound[i] = d * (p * (softmax.range + 8) * U + TINY) +
                       4 * U * (fabs(start_at(start, i)) + d * (p + hit));
            if (targets[row] < 0)
                bound[i] = 0; /* nothing is added, so nothing is rounded */
        }
    }
    Trial trial = {.name = "cross entropy backward", .call = call_cross_entropy_backward, .shape = {rows, V}};
    trial_input(&trial, &dloss, 1), trial_input(&trial, logits, rows * V), trial_input(&trial, row_max, rows);
    trial_input(&trial, row_sum, rows), trial_input(&trial, targets, rows);
    trial_output(&trial, "dlogits", start, rows * V);
    trial_run(&trial);
    trial_expect(&trial, 5, dx, bound,
                 "dlogits += dloss * (softmax - 1 at the target); a masked row (target -1) gets nothing");
}

/* The sum of rows n squares, each of a difference (three roundings), divided by n. start: as above. */
static void check_mse(const float *start, int64_t rows, int64_t n)
{
    const float *prediction = normals(rows * n), *target = normals(rows * n), dloss = 1.7f;
    double *dx = room_for_doubles(rows * n), *bound = room_for_doubles(rows * n), loss = 0;
    for (int64_t i = 0; i < rows * n; i++) {
        const double difference = (double)prediction[i] - (double)target[i];
        loss += difference * difference / (double)n;
        dx[i] = start_at(start, i) + (double)dloss * 2 / (double)n * difference;
        bound[i] = 5 * U * (fabs(start_at(start, i)) + (double)dloss * 2 / (double)n * fabs(difference));
    }
    const double loss_bound = (double)(rows * n + 5) * U * loss;
    Trial forward = {.name = "mse", .call = call_mse, .shape = {rows, n}};
    trial_input(&forward, prediction, rows * n), trial_input(&forward, target, rows * n);
    trial_output(&forward, "loss", NULL, 1);
    trial_run(&forward);
    trial_expect(&forward, 2, &loss, &loss_bound, "the mean over each row, summed over rows; set, not added to");
    Trial backward = {.name = "mse backward", .call = call_mse_backward, .shape = {rows, n}};
    trial_input(&backward, &dloss, 1), trial_input(&backward, prediction, rows * n);
    trial_input(&backward, target, rows * n), trial_output(&backward, "dprediction", start, rows * n);
    trial_run(&backward);
    trial_expect(&backward, 3, dx, bound, "dprediction += dloss * 2 (prediction - target) / n");
}

/* The last: a sum over more numbers than a GPU's threads take at once. */
static const int64_t loss_shapes[][2] = {{0, 7},    {1, 1},    {3, 2},    {1, 257},  {31, 33},
                                         {257, 10}, {33, 256}, {2, 5000}, {7, 10001}};

static void test_losses(void **state)
{
    for (size_t s = 0; s < sizeof loss_shapes / sizeof *loss_shapes; s++) {
        const int64_t rows = loss_shapes[s][0], n = loss_shapes[s][1];
        check_cross_entropy(1, rows, n);
        check_cross_entropy(3000, rows, n); /* probabilities of 0, exp() of thousands */
        check_cross_entropy_backward(1, normals(rows * n), rows, n);
        check_cross_entropy_backward(3000, NULL, rows, n);
        check_mse(normals(rows * n), rows, n);
        check_mse(NULL, rows, n);
        free_room(NULL);
    }
    check_mse(NULL, 3, 0);
}

static void test_losses_keep_nan(void **state)
{
    const int64_t at[] = {0, 40, 299};
    for (int i = 0; i < 3; i++) {
        float *x = normals(300);
        x[at[i]] = NAN;
        Trial entropy = {.name = "cross entropy of NaN", .call = call_cross_entropy, .shape = {3, 100}};
        trial_input(&entropy, x, 300), trial_input(&entropy, indices_below(100, 3), 3);
        trial_output(&entropy, "loss", room_for_floats(1), 1), trial_output(&entropy, "row_max", room_for_floats(3), 3);
        trial_output(&entropy, "row_sum", room_for_floats(3), 3);
        trial_run(&entropy);
        trial_expect_nan(&entropy, 2, 0, "a maximum drops NaN, but the sum of exp() must not");
        Trial mse = {.name = "mse of NaN", .call = call_mse, .shape = {3, 100}};
        trial_input(&mse, x, 300), trial_input(&mse, normals(300), 300),
            trial_output(&mse, "loss", room_for_floats(1), 1);
        trial_run(&mse);
        trial_expect_nan(&mse, 2, 0, "a comparison dropped it");
    }
}

/* ---- accuracy ---- */

/* If several logits are largest, the first one counts. A row with a NaN is wrong. */
static int64_t correct_rows(const float *logits, const int32_t *targets, int64_t rows, int64_t V)
{
    int64_t correct = 0;
    for (int64_t row = 0; row < rows; row++) {
        const float *x = logits + row * V;
        int64_t answer = 0;
        bool has_nan = false;
        for (int64_t i = 0; i < V; i++) {
            answer = x[i] > x[answer] ? i : answer;
            has_nan |= isnan(x[i]);
        }
        correct += !has_nan && answer == targets[row];
    }
    return correct;
}

static void check_count_correct(int64_t rows, int64_t V, bool with_nan)
{
    float *logits = normals(rows * V);
    int32_t *targets = indices_below((int32_t)V, rows);
    for (int64_t i = 0; i < rows * V; i++)
        logits[i] = roundf(logits[i]); /* many are equal */
    for (int64_t row = 0; row < rows && with_nan; row += 3)
        logits[row * V + (row % 2 ? targets[row] : row % V)] = NAN;
    for (int64_t row = 0; row < rows; row += 2) /* half of the rows would be right, but for ties and NaN */
        logits[row * V + targets[row]] += row % 4 ? 5 : 2;
    float *x = device_copy_of(logits, (size_t)(rows * V) * sizeof *x);
    int32_t *t = device_copy_of(targets, (size_t)rows * sizeof *t);
    const int64_t got = device_count_correct(x, t, rows, V), expected = correct_rows(logits, targets, rows, V);
    device_free(x);
    device_free(t);
    if (got != expected)
        fail_msg(
            "device_count_correct of %lld x %lld logits%s: %lld, not %lld: of equal logits the first counts, and a row "
            "with a NaN is wrong",
            (long long)rows, (long long)V, with_nan ? " with NaN" : "", (long long)got, (long long)expected);
}

static void test_count_correct(void **state)
{
    const int64_t shapes[][2] = {{0, 3}, {1, 1}, {3, 2}, {31, 33}, {2100, 10}, {257, 256}, {40, 1025}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        check_count_correct(shapes[s][0], shapes[s][1], false);
        check_count_correct(shapes[s][0], shapes[s][1], true);
    }
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device_losses", cmocka_unit_test_teardown(test_losses, free_room),
                     cmocka_unit_test_teardown(test_losses_keep_nan, free_room),
                     cmocka_unit_test_teardown(test_count_correct, free_room));
}
