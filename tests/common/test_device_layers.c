/* test_device_layers.c: device.h's layernorm and embedding against float64, on the device that this is linked with.
 * device_trial.h says what bounds mean. */
#include "device_trial.h"

/* ---- layernorm ---- */

static void call_layernorm(const Trial *trial, void **array)
{
    const int64_t rows = trial->shape[0], n = trial->shape[1];
    device_layernorm_forward(array[3], array[4], array[5], array[0], array[1], array[2], rows, n);
}

static const char *layernorm_hint = "eps is 1e-5, the variance is divided by n, and it is the mean of (x - mean)^2: "
                                    "mean(x^2) - mean^2 cancels";

/* A mean of n numbers is off by (n + 1) U mean(|x|). The variance then: every (x - mean)^2 by that and by two
 * roundings, and the mean of n such. rstd = 1 / sqrt(variance + eps): half the relative error, and 4 U. Then x - mean,
 * and three products or sums more. */
static void check_layernorm(float middle, float scale, int64_t rows, int64_t n)
{
    const float *x = normals_around(middle, scale, rows * n), *weight = normals(n), *bias = normals(n);
    double *out = room_for_doubles(rows * n), *out_bound = room_for_doubles(rows * n), *mean = room_for_doubles(rows),
           *mean_bound = room_for_doubles(rows), *rstd = room_for_doubles(rows), *rstd_bound = room_for_doubles(rows);
    for (int64_t row = 0; row < rows; row++) {
        double m = 0, size = 0, variance = 0, variance_off = 0;
        for (int64_t i = 0; i < n; i++) {
            m += (double)x[row * n + i] / (double)n;
            size += fabs((double)x[row * n + i]) / (double)n;
        }
        const double m_off = (double)(n + 1) * U * size;
        for (int64_t i = 0; i < n; i++) {
            const double distance = fabs((double)x[row * n + i] - m), off = m_off + U * distance;
            variance += distance * distance / (double)n;
            variance_off += (2 * distance + off) * off / (double)n;
        }
        variance_off += (double)(n + 3) * U * variance;
        const double r = 1 / sqrt(variance + (double)1e-5f), r_off = variance_off / (variance + 1e-5) / 2 + 4 * U;
        mean[row] = m;
        mean_bound[row] = m_off;
        rstd[row] = r;
        rstd_bound[row] = r * r_off;
        for (int64_t i = 0; i < n; i++) {
            const double distance = (double)x[row * n + i] - m, w = (double)weight[i], b = (double)bias[i];
            const double norm_off = r * (m_off + U * fabs(distance)) + fabs(distance) * r * (r_off + 2 * U);
            out[row * n + i] = distance * r * w + b;
            out_bound[row * n + i] = fabs(w) * norm_off + 3 * U * (fabs(distance * r * w) + fabs(b));
        }
    }
    Trial trial = {.name = "layernorm", .call = call_layernorm, .shape = {rows, n}};
    trial_input(&trial, x, rows * n), trial_input(&trial, weight, n), trial_input(&trial, bias, n);
    trial_output(&trial, "out", NULL, rows * n), trial_output(&trial, "mean", NULL, rows);
    trial_output(&trial, "rstd", NULL, rows);
    trial_run(&trial);
    trial_expect(&trial, 3, out, out_bound, layernorm_hint);
    trial_expect(&trial, 4, mean, mean_bound, layernorm_hint);
    trial_expect(&trial, 5, rstd, rstd_bound, layernorm_hint);
}

static void call_layernorm_backward(const Trial *trial, void **array)
{
    device_layernorm_backward(trial_gradient(trial, array, 5), trial_gradient(trial, array, 6),
                              trial_gradient(trial, array, 7), array[0], array[1], array[2], array[3], array[4],
                              trial->shape[0], trial->shape[1]);
}

/* The inputs of a backward pass, on the host; mean and rstd are inputs, too. */
typedef struct Norm {
    const float *dout, *x, *weight;
    float *mean, *rstd;
    int64_t rows, n;
} Norm;

static Norm random_norm(int64_t rows, int64_t n)
{
    Norm norm = {normals(rows * n), normals_around(2, 3, rows * n), normals(n), normals(rows), normals(rows), rows, n};
    for (int64_t row = 0; row < rows; row++) {
        norm.mean[row] += 2;
        norm.rstd[row] = 0.3f + fabsf(norm.rstd[row]);
    }
    return norm;
}

/* With norm = (x - mean) rstd (two roundings) and dnorm = dout weight (one): dx = rstd (dnorm - mean(dnorm) - norm
 * mean(dnorm norm)); the means are off by n + 3 and n + 6 roundings, and five more follow. */
static void norm_dx(const Norm *in, const float *start, double *dx, double *bound)
{
    const int64_t n = in->n;
    for (int64_t row = 0; row < in->rows; row++) {
        const double r = (double)in->rstd[row], m = (double)in->mean[row];
        double sum = 0, size = 0, dot = 0, dot_size = 0;
        for (int64_t i = 0; i < n; i++) {
            const double dnorm = (double)in->dout[row * n + i] * (double)in->weight[i];
            const double norm = ((double)in->x[row * n + i] - m) * r;
            sum += dnorm / (double)n;
            size += fabs(dnorm) / (double)n;
            dot += dnorm * norm / (double)n;
            dot_size += fabs(dnorm * norm) / (double)n;
        }
        for (int64_t i = 0; i < n; i++) {
            const int64_t k = row * n + i;
            const double dnorm = (double)in->dout[k] * (double)in->weight[i], norm = ((double)in->x[k] - m) * r;
            const double sizes = fabs(dnorm) + fabs(sum) + fabs(norm * dot) + r * TINY;
            dx[k] = start_at(start, k) + r * (dnorm - sum - norm * dot);
            bound[k] = r * U * (6 * sizes + (double)(n + 3) * size + fabs(norm) * (double)(n + 6) * dot_size) +
                       U * fabs(dx[k]);
        }
    }
}

/* dweight = sum over rows of dout norm (three roundings each), dbias = sum over rows of dout. */
static void norm_dparameters(const Norm *in, const float *wstart, const float *bstart, double *dweight, double *wbound,
                             double *dbias, double *bbound)
{
    for (int64_t i = 0; i < in->n; i++) {
        double wsize = fabs(start_at(wstart, i)), bsize = fabs(start_at(bstart, i));
        dweight[i] = start_at(wstart, i);
        dbias[i] = start_at(bstart, i);
        for (int64_t row = 0; row < in->rows; row++) {
            const double d = (double)in->dout[row * in->n + i];
            const double product = d * ((double)in->x[row * in->n + i] - (double)in->mean[row]) * (double)in->rstd[row];
            dweight[i] += product;
            wsize += fabs(product);
            dbias[i] += d;
            bsize += fabs(d);
        }
        wbound[i] = (double)(in->rows + 5) * U * wsize;
        bbound[i] = (double)(in->rows + 2) * U * bsize;
    }
}

/* wanted: bit 0 for dx, 1 for dweight, 2 for dbias. The others are NULL. added: the same bits; contributions of the
 * others are first ones, which are set. */
static void check_layernorm_backward(int64_t rows, int64_t n, unsigned wanted, unsigned added)
{
    const Norm in = random_norm(rows, n);
    const char *names[] = {"dx", "dweight", "dbias"};
    const int64_t counts[] = {rows * n, n, n};
    float *start[3];
    double *expected[3], *bound[3];
    Trial trial = {.name = "layernorm backward", .call = call_layernorm_backward, .shape = {rows, n}};
    trial_input(&trial, in.dout, rows * n), trial_input(&trial, in.x, rows * n), trial_input(&trial, in.mean, rows);
    trial_input(&trial, in.rstd, rows), trial_input(&trial, in.weight, n);
    for (int i = 0; i < 3; i++) {
        start[i] = added >> i & 1 ? normals(counts[i]) : NULL;
        expected[i] = room_for_doubles(counts[i]);
        bound[i] = room_for_doubles(counts[i]);
        if (wanted >> i & 1)
            trial_output(&trial, names[i], start[i], counts[i]);
        else
            trial_null(&trial);
    }
    trial_run(&trial);
    norm_dx(&in, start[0], expected[0], bound[0]);
    norm_dparameters(&in, start[1], start[2], expected[1], bound[1], expected[2], bound[2]);
    for (int i = 0; i < 3; i++)
        if (wanted >> i & 1)
            trial_expect(&trial, 5 + i, expected[i], bound[i],
                         "the mean and the variance depend on x, too; dweight and dbias "
                         "are sums over all rows");
}

static const int64_t norm_shapes[][2] = {{1, 1},    {1, 33},   {3, 3},    {31, 257}, {257, 31},
                                         {5, 1000}, {130, 64}, {2, 4097}, {0, 5},    {5, 0}};

static void test_layernorm(void **state)
{
    for (size_t s = 0; s < sizeof norm_shapes / sizeof *norm_shapes; s++) {
        const int64_t rows = norm_shapes[s][0], n = norm_shapes[s][1];
        if (n > 0) /* the mean of no numbers is undefined; but it must not crash, see below */
            check_layernorm(0.5f, 1, rows, n);
        check_layernorm_backward(rows, n, 7, 7);
        check_layernorm_backward(rows, n, 7, 0);
        free_room(NULL);
    }
    check_layernorm(1000, 1, 5, 300); /* mean(x^2) - mean^2 would lose all digits */
    check_layernorm(3, 0, 5, 40);     /* all equal: eps alone keeps rstd finite */
    for (unsigned wanted = 0; wanted < 8; wanted++)
        check_layernorm_backward(37, 50, wanted, 5 * wanted);
    Trial empty = {.name = "layernorm of empty rows", .call = call_layernorm, .shape = {5, 0}};
    for (int i = 0; i < 6; i++)
        trial_output(&empty, "any", room_for_floats(5), i < 4 ? 0 : 5);
    trial_run(&empty);
}

/* ---- embedding ---- */

static void call_embedding(const Trial *trial, void **array)
{
    device_embedding_forward(array[3], array[0], array[1], array[2], trial->shape[0], trial->shape[1], trial->shape[2]);
}

static void call_embedding_backward(const Trial *trial, void **array)
{
    device_embedding_backward(array[2], array[3], array[0], array[1], trial->shape[0], trial->shape[1],
                              trial->shape[2]);
}

/* Forward adds two numbers. Backward: a row's gradient is the sum over all places where its token, or position, is. */
static void check_embedding(int64_t B, int64_t T, int64_t C, int32_t V, unsigned wanted)
{
    const int32_t *tokens = indices_below(V, B * T);
    const float *table = normals(V * C), *positions = normals(T * C), *dout = normals(B * T * C);
    const float *start[] = {normals(V * C), normals(T * C)};
    const int64_t counts[] = {V * C, T * C};
    double *out = room_for_doubles(B * T * C), *nothing = room_for_doubles(B * T * C), *expected[2], *size[2],
           *terms[2];
    for (int k = 0; k < 2; k++) {
        expected[k] = room_for_doubles(counts[k]);
        size[k] = room_for_doubles(counts[k]);
        terms[k] = room_for_doubles(counts[k]);
        for (int64_t i = 0; i < counts[k]; i++) {
            expected[k][i] = (double)start[k][i];
            size[k][i] = fabs(expected[k][i]);
        }
    }
    for (int64_t i = 0; i < B * T * C; i++) {
        const int64_t row[] = {tokens[i / C], i / C % T};
        out[i] = (double)(table[row[0] * C + i % C] + positions[row[1] * C + i % C]);
        for (int k = 0; k < 2; k++) {
            expected[k][row[k] * C + i % C] += (double)dout[i];
            size[k][row[k] * C + i % C] += fabs((double)dout[i]);
            terms[k][row[k] * C + i % C]++;
        }
    }
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < counts[k]; i++)
            size[k][i] *= terms[k][i] * U; /* a row that does not occur must stay as it is, to the bit */
    Trial forward = {.name = "embedding", .call = call_embedding, .shape = {B, T, C, V}};
    trial_input(&forward, tokens, B * T), trial_input(&forward, table, V * C), trial_input(&forward, positions, T * C);
    trial_output(&forward, "out", NULL, B * T * C);
    trial_run(&forward);
    trial_expect(&forward, 3, out, nothing, "out = token_table[token] + position_table[t]");
    Trial backward = {.name = "embedding backward", .call = call_embedding_backward, .shape = {B, T, C, V}};
    trial_input(&backward, dout, B * T * C), trial_input(&backward, tokens, B * T);
    for (int k = 0; k < 2; k++)
        if (wanted >> k & 1)
            trial_output(&backward, k == 0 ? "dtoken_table" : "dposition_table", start[k], counts[k]);
        else
            trial_null(&backward);
    trial_run(&backward);
    for (int k = 0; k < 2; k++)
        if (wanted >> k & 1)
            trial_expect(&backward, 2 + k, expected[k], size[k],
                         "a token that occurs many times gets the sum of all its "
                         "gradients; one that does not keeps what it had");
}

static void test_embedding(void **state)
{
    check_embedding(1, 1, 1, 1, 3);
    check_embedding(2, 5, 3, 7, 3);
    check_embedding(3, 33, 31, 256, 3);
    check_embedding(4, 65, 20, 2, 3); /* the same tokens again and again */
    check_embedding(1, 257, 257, 300, 3);
    check_embedding(40, 3, 33, 50, 3);
    for (unsigned wanted = 0; wanted < 4; wanted++)
        check_embedding(2, 9, 5, 11, wanted);
    check_embedding(0, 4, 3, 7, 3);
    check_embedding(4, 0, 3, 7, 3);
    check_embedding(3, 4, 0, 7, 3);
}

int main(void)
{
    device_init(0, 1);
    return run_cases("device_layers", cmocka_unit_test_teardown(test_layernorm, free_room),
                     cmocka_unit_test_teardown(test_embedding, free_room));
}
