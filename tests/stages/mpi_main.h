/* mpi_main.h: cmocka under mpiexec.
 *
 * Interface:
 *   int main(int argc, char **argv)
 *   {
 *       tests_choose_case(argc, argv, tests, sizeof tests / sizeof *tests);
 *       ProcessGroup *pg = tests_start_group(&argc, &argv, &options);
 *       int failures = cmocka_run_group_tests(tests, NULL, NULL);
 *       job_close(pg);
 *       return failures != 0;
 *   }
 */
#ifndef LOCKSTEP_TESTS_MPI_MAIN_H
#define LOCKSTEP_TESTS_MPI_MAIN_H

#include "choose_case.h"
#include "comm/process_group.h"

/* Seconds that a collective may take in a test: 60, or the value of LOCKSTEP_TEST_TIMEOUT. */
double tests_timeout(void);

/* From now on a failing test ends its process, so that mpiexec ends all ranks, which would otherwise wait for it in
 * their next collective. Only rank 0 prints cmocka's report. A failure on another rank is printed on stderr, with a
 * line that names the rank. */
void tests_run_as_rank(int rank);

/* Ends the process if it still runs after this many seconds. Each collective of the group starts the count again. */
void tests_end_if_idle(unsigned seconds);

/* Starts MPI, guards the group of all ranks, initializes the device, and calls tests_run_as_rank() and
 * tests_end_if_idle(): most tests of several ranks begin with it. End it with job_close(). */
ProcessGroup *tests_start_group(int *argc, char ***argv, const ProcessGroupOptions *options);

#endif
