/* peer_all_reduce.cpp: MPI_Allreduce of the MPI library that it is linked with, or with -DONECCL oneCCL's all-reduce.
 * collectives_vs_peers.sh builds it for several libraries, and runs it beside tools/bench/collectives.
 *
 *   mpiexec -n 2 peer_all_reduce BYTES...
 *
 * Measured as in collectives.c, with both kinds of samples. Rank 0 prints "BYTES FRESH LEFT": the medians in
 * microseconds per call with data that each rank has just written, and with data as the call before left it. A wrong
 * sum ends the run with status 3. */
#include <mpi.h>
#ifdef ONECCL
#include <oneapi/ccl.hpp>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

extern "C" {
#include "fresh.h"
#include "ranks.h"
}

static const double BUDGET = 0.25; /* seconds per size, with what is not timed */
static const int MOST_SAMPLES = 100;
static const int WRONG_SUM = 3; /* the exit status; launchers at times lose what a rank prints last */

using AllReduce = std::function<void(float *, size_t)>;
static int rank, ranks;
static void *arrivals;

static double slowest(double mine)
{
    double result;
    MPI_Allreduce(&mine, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return result;
}

static double call_with_fresh_data(const AllReduce &all_reduce, std::vector<float> &buffer)
{
    static unsigned number;
    fresh_write(buffer.data(), buffer.size(), rank, ++number);
    fresh_meet(arrivals, rank, ranks);
    const double start = MPI_Wtime();
    all_reduce(buffer.data(), buffer.size());
    const double seconds = MPI_Wtime() - start;
    fresh_meet(arrivals, rank, ranks);
    if (fresh_wrong(buffer.data(), 0, buffer.size(), 0, ranks, number) != 0) {
        fprintf(stderr, "peer_all_reduce: rank %d: the sum of %zu elements is wrong\n", rank, buffer.size());
        MPI_Abort(MPI_COMM_WORLD, WRONG_SUM);
    }
    return seconds;
}

/* A first call, which is not counted, in both kinds of samples. */
static double fresh_sample(const AllReduce &all_reduce, std::vector<float> &buffer, int calls)
{
    double seconds = 0;
    call_with_fresh_data(all_reduce, buffer);
    for (int i = 0; i < calls; i++)
        seconds += call_with_fresh_data(all_reduce, buffer);
    return slowest(seconds / calls);
}

static double left_sample(const AllReduce &all_reduce, std::vector<float> &buffer, int calls)
{
    std::fill(buffer.begin(), buffer.end(), 0.0f);
    MPI_Barrier(MPI_COMM_WORLD);
    all_reduce(buffer.data(), buffer.size());
    const double start = MPI_Wtime();
    for (int i = 0; i < calls; i++)
        all_reduce(buffer.data(), buffer.size());
    return slowest((MPI_Wtime() - start) / calls);
}

static double median(std::vector<double> &times)
{
    std::sort(times.begin(), times.end());
    return times[times.size() / 2] * 1e6;
}

static void measure(const AllReduce &all_reduce, size_t bytes)
{
    std::vector<float> buffer(bytes / 4);
    double start = MPI_Wtime();
    const double first = fresh_sample(all_reduce, buffer, 3), whole = slowest(MPI_Wtime() - start) / 4;
    const int calls = std::max(1, (int)std::min({1e-3 / first, BUDGET / 10 / whole, 200.0}));
    start = MPI_Wtime();
    fresh_sample(all_reduce, buffer, calls);
    left_sample(all_reduce, buffer, calls);
    const int samples = std::max(5, std::min(MOST_SAMPLES, (int)(BUDGET / slowest(MPI_Wtime() - start))));
    std::vector<double> fresh(samples), left(samples);
    for (int i = 0; i < samples; i++) {
        left[i] = left_sample(all_reduce, buffer, calls);
        fresh[i] = fresh_sample(all_reduce, buffer, calls);
    }
    if (rank == 0) {
        printf("%zu %.3f %.3f\n", bytes, median(fresh), median(left));
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    int threads;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads); /* as lockstep, which has a communication thread */
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ranks_print_processors();
    arrivals = ranks_create_meeting();
    if (arrivals == NULL) {
        fprintf(stderr, "peer_all_reduce: the ranks must be on one host\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    {
#ifdef ONECCL
        ccl::init();
        ccl::shared_ptr_class<ccl::kvs> store;
        ccl::kvs::address_type address;
        if (rank == 0) {
            store = ccl::create_main_kvs();
            address = store->get_address();
        }
        MPI_Bcast(address.data(), (int)address.size(), MPI_BYTE, 0, MPI_COMM_WORLD);
        if (rank != 0)
            store = ccl::create_kvs(address);
        auto group = ccl::create_communicator(ranks, rank, store);
        const AllReduce all_reduce = [&](float *x, size_t count) {
            ccl::allreduce(x, x, count, ccl::datatype::float32, ccl::reduction::sum, group).wait();
        };
#else
        const AllReduce all_reduce = [](float *x, size_t count) {
            MPI_Allreduce(MPI_IN_PLACE, x, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        };
#endif
        for (int i = 1; i < argc; i++)
            measure(all_reduce, strtoul(argv[i], NULL, 10));
    }
    ranks_free_meeting();
    MPI_Finalize();
    return 0;
}
