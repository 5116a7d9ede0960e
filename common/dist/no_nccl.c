/* no_nccl.c: linked in the place of pg_nccl.c where there is no NCCL. */
#include "base/check.h"
#include "dist/process_group.h"

bool pg_has_nccl(void)
{
    return false;
}

void pg_use_nccl(ProcessGroup *pg)
{
    (void)pg;
    die("--backend: this program was built without NCCL; give mpi");
}
