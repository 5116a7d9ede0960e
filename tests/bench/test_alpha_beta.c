/* test_alpha_beta.c: the fit of bench/collectives: exact on exact data, the best one on any, and never negative. */
#include <math.h>
#include <stdio.h>

#include "alpha_beta.h"
#include "expect.h"

enum { POINTS = 6 };
static const double sizes[POINTS] = {4, 1024, 65536, 1048576, 13631488, 268435456};

static void expect_number(const char *name, double actual, double expected, double relative)
{
    /* A NaN compares false with everything, so the test must be for "is close". */
    if (!(fabs(actual - expected) <= relative * fabs(expected)))
        fail_msg("%s: expected %.17g, got %.17g", name, expected, actual);
}

static double squared_errors(double alpha, double beta, const double *seconds)
{
    double sum = 0;
    for (int i = 0; i < POINTS; i++)
        sum += pow((alpha + beta * sizes[i]) / seconds[i] - 1, 2);
    return sum;
}

/* From shared memory to a slow network. The doubles of the normal equations leave a few digits. */
static void test_exact_data(void **state)
{
    const double alphas[] = {1e-7, 5e-5, 0}, betas[] = {1e-10, 8e-9, 1e-9};
    for (int k = 0; k < 3; k++) {
        double seconds[POINTS];
        for (int i = 0; i < POINTS; i++)
            seconds[i] = alphas[k] + betas[k] * sizes[i];
        AlphaBeta fit = alpha_beta_fit(sizes, seconds, POINTS);
        if (!(fabs(fit.alpha - alphas[k]) <= 1e-8 * alphas[k] + 1e-20))
            fail_msg("alpha of exact data: expected %g s, got %g s", alphas[k], fit.alpha);
        expect_number("beta of exact data", fit.beta, betas[k], 1e-8);
        if (!(fit.median_error <= 1e-7 && fit.worst_error <= 1e-7))
            fail_msg("exact data has no errors, but the fit's are %g and %g", fit.median_error, fit.worst_error);
    }
}

/* A fifth too long or too short in turns: nothing near the fit has a smaller sum of squared RELATIVE errors. A fit of
 * absolute errors would look at the largest size alone. */
static void test_least_relative_squares(void **state)
{
    double seconds[POINTS];
    for (int i = 0; i < POINTS; i++)
        seconds[i] = (5e-5 + 1e-9 * sizes[i]) * (i % 2 == 0 ? 1.2 : 0.8);
    AlphaBeta fit = alpha_beta_fit(sizes, seconds, POINTS);
    double least = squared_errors(fit.alpha, fit.beta, seconds);
    for (int k = 0; k < 4; k++) {
        double alpha = fit.alpha * (k < 2 ? 0.99 + 0.02 * k : 1);
        double beta = fit.beta * (k >= 2 ? 0.99 + 0.02 * (k - 2) : 1);
        if (squared_errors(alpha, beta, seconds) < least)
            fail_msg("alpha %g, beta %g has smaller relative errors than the fit's %g and %g", alpha, beta, fit.alpha,
                     fit.beta);
    }
    double worst = 0;
    for (int i = 0; i < POINTS; i++)
        worst = fmax(worst, fabs((fit.alpha + fit.beta * sizes[i]) / seconds[i] - 1));
    expect_number("the worst error", fit.worst_error, worst, 1e-12);
    assert_true(fit.median_error <= fit.worst_error);
}

/* Noise can ask for a latency or a bandwidth below 0. Then that one is 0, and the other one is the best there is. */
static void test_never_negative(void **state)
{
    const double bytes[] = {1000, 2000}, steep[] = {1e-6, 4e-6}, falling[] = {4e-6, 1e-6};
    AlphaBeta fit = alpha_beta_fit(bytes, steep, 2);
    assert_true(fit.alpha == 0);
    expect_number("beta without alpha", fit.beta, (1e9 + 5e8) / (1e18 + 2.5e17), 1e-9);
    fit = alpha_beta_fit(bytes, falling, 2);
    assert_true(fit.beta == 0);
    expect_number("alpha without beta", fit.alpha, (2.5e5 + 1e6) / (6.25e10 + 1e12), 1e-9);
}

int main(void)
{
    return run_cases("alpha_beta", cmocka_unit_test(test_exact_data), cmocka_unit_test(test_least_relative_squares),
                     cmocka_unit_test(test_never_negative));
}
