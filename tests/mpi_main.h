/* mpi_main.h: cmocka under mpiexec. Knows nothing of MPI: the test's main() says which rank it is.
 *
 * Interface:
 *   int main(int argc, char **argv)
 *   {
 *       ... start MPI ...
 *       tests_run_as_rank(rank);
 *       int failures = cmocka_run_group_tests(tests, NULL, NULL);
 *       ... end MPI ...
 *       return failures != 0;
 *   }
 */
#ifndef LOCKSTEP_TESTS_MPI_MAIN_H
#define LOCKSTEP_TESTS_MPI_MAIN_H

/* From now on a failing test ends its process, so that mpiexec ends all ranks: the others would wait for it in
 * their next collective for ever. Rank 0 alone prints cmocka's report; what fails on another rank is on stderr,
 * with a line that names the rank. */
void tests_run_as_rank(int rank);

#endif
