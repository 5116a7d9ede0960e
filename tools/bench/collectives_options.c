/* collectives_options.c: the command line of tools/bench/collectives. */
#include "collectives_options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "train/gpu.h"

const Contender contenders[CONTENDERS] = {
    {"MPI_Allreduce", ALLREDUCE_MPI, true, false, false},
    {"mpi", ALLREDUCE_MPI, false, false, false},
    {"root", ALLREDUCE_ROOT, false, false, false},
    {"ring", ALLREDUCE_RING, false, false, false},
    {"recursive-doubling", ALLREDUCE_DOUBLING, false, false, false},
    {"ordered", ALLREDUCE_ORDERED, false, false, false},
    {"shm", ALLREDUCE_SHM, false, true, false},
    {"shm-staged", ALLREDUCE_SHM, false, false, false},
    {"nccl", ALLREDUCE_MPI, false, false, true},
};
const char *const operation_names[OPERATIONS] = {"all-reduce", "reduce-scatter", "all-gather"};
const char collectives_usage[] =
    "usage: mpiexec -n N collectives [options]\n"
    "  --min BYTES, --max BYTES   the range of sizes (4, 256M); K, M, G: times 1024\n"
    "  --factor F                 from one size to the next (4)\n"
    "  --sizes A,B,...            these sizes instead\n"
    "  --algorithms A,B,...       MPI_Allreduce mpi root ring recursive-doubling ordered shm shm-staged, and in\n"
    "                             collectives_cuda nccl (all)\n"
    "  --operations A,B,...       all-reduce reduce-scatter all-gather (all-reduce); sizes are of the longer buffer\n"
    "  --samples N                per algorithm and size, of each kind (100; fewer where the budget is short)\n"
    "  --budget SECONDS           per algorithm and size, with what is not timed (0.5)\n"
    "  --wire GBPS,LATENCY_US     emulate a slower network, as train does (not for MPI_Allreduce)\n"
    "  --csv FILE                 write the table as CSV\n";

static size_t parse_bytes(const char *flag, const char *text)
{
    char *end = NULL;
    double value = strtod(text, &end);
    const char *units = "KMG";
    const char *unit = *end != '\0' ? strchr(units, *end) : NULL;
    if (unit != NULL)
        end++;
    for (const char *u = units; unit != NULL && u <= unit; u++)
        value *= 1024;
    if (end == text || *end != '\0' || !(value >= 4 && value <= 8e9))
        die("%s: %s is no size; give bytes, at least 4 and at most 7G, for example 4, 64K or 13M", flag, text);
    return (size_t)value / sizeof(float) * sizeof(float);
}

static void parse_sizes(Settings *settings, char *list)
{
    settings->size_count = 0;
    for (char *text = strtok(list, ","); text != NULL; text = strtok(NULL, ",")) {
        if (settings->size_count == MAX_SIZES)
            die("--sizes: %d sizes at most", MAX_SIZES);
        settings->sizes[settings->size_count++] = parse_bytes("--sizes", text);
    }
    if (settings->size_count == 0)
        die("--sizes: give at least one");
}

static void parse_algorithms(Settings *settings, char *list)
{
    memset(settings->wanted, 0, sizeof settings->wanted);
    for (char *text = strtok(list, ","); text != NULL; text = strtok(NULL, ",")) {
        int i = 0;
        while (i < CONTENDERS && strcmp(contenders[i].name, text) != 0)
            i++;
        if (i == CONTENDERS)
            die("--algorithms: there is no %s; --help lists them", text);
        if (contenders[i].on_device && !gpu_has_nccl())
            die("--algorithms: this program was built without NCCL; collectives_cuda has %s", text);
        settings->wanted[i] = true;
    }
}

static void parse_operations(Settings *settings, char *list)
{
    memset(settings->operations, 0, sizeof settings->operations);
    for (char *text = strtok(list, ","); text != NULL; text = strtok(NULL, ",")) {
        int i = 0;
        while (i < OPERATIONS && strcmp(operation_names[i], text) != 0)
            i++;
        if (i == OPERATIONS)
            die("--operations: there is no %s; --help lists them", text);
        settings->operations[i] = true;
    }
}

static double parse_number(const char *flag, const char *text, double low, double high)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= low && value <= high))
        die("%s: %s is not a number from %g to %g", flag, text, low, high);
    return value;
}

static void parse_wire(Settings *settings, const char *text)
{
    char rest;
    if (sscanf(text, "%lf,%lf%c", &settings->wire_gbps, &settings->wire_microseconds, &rest) != 2 ||
        !(settings->wire_gbps >= 1e-6 && settings->wire_microseconds >= 0))
        die("--wire: %s is no link; give gigabit per second, and microseconds per message, for example 1,50", text);
}

static void fill_sizes(Settings *settings, size_t low, size_t high, double factor)
{
    if (low > high)
        die("--min: larger than --max");
    for (double size = (double)low; size <= (double)high * 1.0001 && settings->size_count < MAX_SIZES; size *= factor)
        settings->sizes[settings->size_count++] = (size_t)size / sizeof(float) * sizeof(float);
}

Settings collectives_options(int argc, char **argv)
{
    static const struct option options[] = {
        {"min", required_argument, NULL, 'm'},        {"max", required_argument, NULL, 'M'},
        {"factor", required_argument, NULL, 'f'},     {"sizes", required_argument, NULL, 's'},
        {"algorithms", required_argument, NULL, 'a'}, {"samples", required_argument, NULL, 'n'},
        {"budget", required_argument, NULL, 'b'},     {"csv", required_argument, NULL, 'c'},
        {"operations", required_argument, NULL, 'o'}, {"help", no_argument, NULL, 'h'},
        {"wire", required_argument, NULL, 'w'},       {0}};
    Settings settings = {.samples = 100, .budget = 0.5, .operations = {[ALL_REDUCE] = true}};
    size_t low = 4, high = (size_t)256 << 20;
    double factor = 4;
    opterr = 0; /* die() prints the message, once for all ranks */
    for (int i = 0; i < CONTENDERS; i++)
        settings.wanted[i] = !contenders[i].on_device || gpu_has_nccl();
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        switch (option) {
        case 'm': low = parse_bytes("--min", optarg); break;
        case 'M': high = parse_bytes("--max", optarg); break;
        case 'f': factor = parse_number("--factor", optarg, 1.1, 1e9); break;
        case 's': parse_sizes(&settings, optarg); break;
        case 'a': parse_algorithms(&settings, optarg); break;
        case 'o': parse_operations(&settings, optarg); break;
        case 'n': settings.samples = (int)parse_number("--samples", optarg, 1, MAX_SAMPLES); break;
        case 'b': settings.budget = parse_number("--budget", optarg, 0.001, 3600); break;
        case 'c': settings.csv = optarg; break;
        case 'w': parse_wire(&settings, optarg); break;
        case 'h': settings.help = true; break;
        default: die("%s: no such option, or its value is missing; --help lists them", argv[optind - 1]);
        }
    }
    if (optind < argc)
        die("%s: what is this? --help lists the options", argv[optind]);
    if (settings.size_count == 0)
        fill_sizes(&settings, low, high, factor);
    return settings;
}
