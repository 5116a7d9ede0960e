/* algorithms.c: the names of the all-reduce algorithms, and which one runs for which type. They do not depend on
 * MPI. The algorithms themselves are in the table of pg_mpi.c. */
#include "comm/combine.h"

/* Fields that a row leaves out are false. */
static const struct {
    const char *name;
    bool rank_order;         /* its sum is part0 + part1 + part2 + ..., to the bit */
    bool sends_partial_sums; /* so it is not used for types that would round them: half-precision-sums, below */
} algorithms[] = {
    [ALLREDUCE_MPI] = {"mpi", .sends_partial_sums = true},
    [ALLREDUCE_ROOT] = {"root", .rank_order = true},
    [ALLREDUCE_RING] = {"ring", .sends_partial_sums = true},
    [ALLREDUCE_DOUBLING] = {"recursive-doubling", .sends_partial_sums = true},
    [ALLREDUCE_ORDERED] = {"ordered", .rank_order = true},
    [ALLREDUCE_SHM] = {"shm", .rank_order = true},
    [ALLREDUCE_HIERARCHICAL] = {"hierarchical", .sends_partial_sums = true},
};

/* note: half-precision-sums
 * A 16-bit partial sum would be rounded at every step, and small parts would be lost: 256 + 1 + 1 + 1 + 1 is 256 in
 * bf16. Algorithms that collect all PARTS in one place add them in float32 and round once. Algorithms that send partial
 * SUMS would have to send them as float32. So types of 16 and 8 bits use the ordered algorithm instead, which sends no
 * more bytes than a ring. MPI itself has no 16-bit floating point. */
AllReduceAlgorithm all_reduce_algorithm(AllReduceAlgorithm wanted, DType dtype)
{
    return adds_in_float32(dtype) && algorithms[wanted].sends_partial_sums ? ALLREDUCE_ORDERED : wanted;
}

const char *all_reduce_name(AllReduceAlgorithm algorithm)
{
    return algorithms[algorithm].name;
}

bool all_reduce_in_rank_order(AllReduceAlgorithm wanted, DType dtype)
{
    return algorithms[all_reduce_algorithm(wanted, dtype)].rank_order;
}
