/* freed.c: see freed.h. */
#include "freed.h"

#include <stdlib.h>

#include "comm/group.h"
#include "comm/shared_memory.h"
#include "expect.h"
#include "given.h"

/* The linker calls the functions below instead of pg_alloc_shared() and C's free(). */
bool memory_is_graded;
static ProcessGroup *group;                   /* that gave memory; not owned */
static _Thread_local void *of_the_group[256]; /* what it gave to this thread */

void *__real_pg_alloc_shared(ProcessGroup *pg, size_t bytes);
void *__wrap_pg_alloc_shared(ProcessGroup *pg, size_t bytes)
{
    int i = 0;
    while (i < 255 && of_the_group[i] != NULL)
        i++;
    group = pg;
    return of_the_group[i] = __real_pg_alloc_shared(pg, bytes);
}

/* True once for each, and only if it is to be freed as it should have been. */
static bool take_from_the_group(const void *memory)
{
    int i = 0;
    while (i < 256 && of_the_group[i] != memory)
        i++;
    if (memory == NULL || i == 256)
        return false;
    of_the_group[i] = NULL;
    return is_given("memory") && !memory_is_graded;
}

void __real_free(void *memory);
void __wrap_free(void *memory)
{
    if (memory == group)
        group = NULL; /* the job ends */
    const bool shared = group != NULL && group->shared != NULL &&
                        shared_window_of(group->shared, pg_rank(group), memory, 1) != NULL;
    if (take_from_the_group(memory))
        pg_free_shared(group, memory); /* if that is who calls, it finds nothing more to do, and calls free() again */
    else if (shared)
        fail_msg("free() or device_free() was given what pg_alloc_shared() gave: only pg_free_shared() knows how to "
                 "free it");
    else
        __real_free(memory);
}
