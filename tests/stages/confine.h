/* confine.h: for a grader: takes from a process what neither a test nor a stage needs. */
#ifndef LOCKSTEP_TESTS_CONFINE_H
#define LOCKSTEP_TESTS_CONFINE_H

/* Call it before MPI starts, and before there are threads. From here on this process starts no other process and no
 * program, and sends signals to itself only. In the grader's sandbox, it does not look into other processes either. Where
 * the kernel cannot do this, or under the address sanitizer, which needs some of it: only a part. Other than on Linux on
 * x86-64 and aarch64: nothing. */
void confine(void);

#endif
