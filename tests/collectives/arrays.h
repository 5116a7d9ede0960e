/* arrays.h: the ranks' arrays send and receive, and their stacks. As all ranks are in one process, memory protection keeps them apart:
 * only the rank whose turn it is can use its arrays. */
#ifndef LOCKSTEP_TESTS_ARRAYS_H
#define LOCKSTEP_TESTS_ARRAYS_H

#include <stdbool.h>
#include <stddef.h>

enum { EVERYBODY = -1 };

typedef enum ArrayName { RECEIVE, SEND, ARRAY_NAMES } ArrayName;

/* Memory of `bytes` (less than 16 MiB) for one array of a rank, which is there until the next call for the same one.
 * Its bytes are not set. Owned by arrays.c. */
unsigned char *array_new(int rank, ArrayName name, size_t bytes);

/* Now only `rank` can use its arrays; EVERYBODY: all arrays can be used. keep_send: it cannot write to send. Any other
 * use ends the process with a message. (Under the address sanitizer, with the sanitizer's.) */
void arrays_turn(int rank, bool keep_send);

/* The rank's stack, of STACK_BYTES, always the same. A use beyond its end ends the process with a message. Owned by
 * arrays.c. */
#define STACK_BYTES ((size_t)4 << 20)
void *array_stack(int rank);

/* Fails if a rank has written to the bytes before or behind its array. */
void array_expect_guards(int rank, ArrayName name);

#endif
