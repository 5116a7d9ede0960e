/* mpi_main.h: cmocka under mpiexec. Knows nothing of MPI: the test's main() says which rank it is.
 *
 * Interface:
 *   int main(int argc, char **argv)
 *   {
 *       tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
 *       ProcessGroup *pg = tests_start_group(&argc, &argv, &options);
 *       int failures = cmocka_run_group_tests(tests, NULL, NULL);
 *       pg_destroy(pg);
 *       return failures != 0;
 *   }
 */
#ifndef LOCKSTEP_TESTS_MPI_MAIN_H
#define LOCKSTEP_TESTS_MPI_MAIN_H

#include "comm/process_group.h"
#include "expect.h"

/* Understands "--list" (prints the names of the cases, and ends) and "--case NAME" (runs that one only); anything else
 * ends the program with status 2. The cases are independent: as a failing one ends all ranks, running each of them by
 * itself is how to learn which ones pass. Before MPI is started. Faults name the test program from now on. */
void tests_choose_case(int argc, char **argv, const struct CMUnitTest *tests, size_t count);

/* Seconds that a collective may take in a test: 60, or what LOCKSTEP_TEST_TIMEOUT says. */
double tests_timeout(void);

/* From now on a failing test ends its process, so that mpiexec ends all ranks: the others would wait for it in
 * their next collective for ever. Rank 0 alone prints cmocka's report; what fails on another rank is on stderr,
 * with a line that names the rank. */
void tests_run_as_rank(int rank);

/* Starts MPI, makes a guarded group of all ranks, initializes the device, and runs as a rank: what most tests of several
 * ranks begin with. Free with pg_destroy(). */
ProcessGroup *tests_start_group(int *argc, char ***argv, const ProcessGroupOptions *options);

#endif
