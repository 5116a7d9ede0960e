/* alpha_beta.c: fits alpha and beta. */
#include "alpha_beta.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void find_errors(AlphaBeta *fit, const double *bytes, const double *seconds, int count)
{
    double *errors = alloc_or_fault((size_t)count * sizeof *errors);
    for (int i = 0; i < count; i++)
        errors[i] = fabs((fit->alpha + fit->beta * bytes[i]) / seconds[i] - 1);
    qsort(errors, (size_t)count, sizeof *errors, compare_doubles);
    fit->median_error = errors[(count - 1) / 2];
    fit->worst_error = errors[count - 1];
    free(errors);
}

AlphaBeta alpha_beta_fit(const double *bytes, const double *seconds, int count)
{
    /* Each point says alpha * x + beta * y = 1, with x = 1 / t and y = bytes / t. Least squares: the normal equations
     *   alpha xx + beta xy = x1        alpha xy + beta yy = y1 */
    double xx = 0, xy = 0, yy = 0, x1 = 0, y1 = 0;
    for (int i = 0; i < count; i++) {
        double x = 1 / seconds[i], y = bytes[i] / seconds[i];
        xx += x * x;
        xy += x * y;
        yy += y * y;
        x1 += x;
        y1 += y;
    }
    double determinant = xx * yy - xy * xy;
    AlphaBeta fit = {.alpha = (x1 * yy - y1 * xy) / determinant, .beta = (xx * y1 - xy * x1) / determinant};
    if (fit.alpha < 0)
        fit = (AlphaBeta){.alpha = 0, .beta = y1 / yy};
    if (fit.beta < 0)
        fit = (AlphaBeta){.alpha = x1 / xx, .beta = 0};
    find_errors(&fit, bytes, seconds, count);
    return fit;
}
