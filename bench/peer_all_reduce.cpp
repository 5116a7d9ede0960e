/* peer_all_reduce.cpp: MPI_Allreduce of the MPI library that it is linked with, or with -DONECCL oneCCL's all-reduce.
 * collectives_vs_peers.sh builds it for several libraries, and runs it beside bench/collectives.
 *
 *   mpiexec -n 2 peer_all_reduce BYTES...
 *
 * Measured as in collectives.c: a sample is some calls in a row after one that is not counted; its value is the slowest
 * rank's time per call. Rank 0 prints "BYTES P50" with P50 in microseconds. A wrong sum ends the run. */
#include <mpi.h>
#ifdef ONECCL
#include <oneapi/ccl.hpp>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

static const double BUDGET = 0.5; /* seconds per size */
static const int MOST_SAMPLES = 100;

using AllReduce = std::function<void(float *, size_t)>;

static double seconds_per_call(const AllReduce &all_reduce, std::vector<float> &buffer, int calls)
{
    MPI_Barrier(MPI_COMM_WORLD);
    all_reduce(buffer.data(), buffer.size());
    const double start = MPI_Wtime();
    for (int i = 0; i < calls; i++)
        all_reduce(buffer.data(), buffer.size());
    double mine = (MPI_Wtime() - start) / calls, slowest;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

/* Small integers, which float32 adds exactly. */
static void check_sum(const AllReduce &all_reduce, int rank, int ranks, size_t count)
{
    std::vector<float> buffer(count);
    for (size_t i = 0; i < count; i++)
        buffer[i] = (float)(i % 1000) + (float)rank;
    all_reduce(buffer.data(), count);
    for (size_t i = 0; i < count; i++)
        if (buffer[i] != (float)(i % 1000) * (float)ranks + (float)(ranks * (ranks - 1) / 2)) {
            fprintf(stderr, "peer_all_reduce: rank %d: the sum of %zu elements is wrong\n", rank, count);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
}

static void measure(const AllReduce &all_reduce, int rank, int ranks, size_t bytes)
{
    check_sum(all_reduce, rank, ranks, bytes / 4);
    std::vector<float> buffer(bytes / 4);
    const double first = seconds_per_call(all_reduce, buffer, 3);
    const int calls = std::max(1, std::min(200, (int)(BUDGET / MOST_SAMPLES / first)));
    const int samples = std::max(5, std::min(MOST_SAMPLES, (int)(BUDGET / (calls * first))));
    std::vector<double> times(samples);
    for (double &time : times)
        time = seconds_per_call(all_reduce, buffer, calls);
    std::sort(times.begin(), times.end());
    if (rank == 0)
        printf("%zu %.3f\n", bytes, times[times.size() / 2] * 1e6);
}

int main(int argc, char **argv)
{
    int rank, ranks, threads;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads); /* as lockstep, which has a communication thread */
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
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
            measure(all_reduce, rank, ranks, strtoul(argv[i], NULL, 10));
    }
    MPI_Finalize();
    return 0;
}
