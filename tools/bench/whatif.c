/* whatif.c: how long would a training step take on other machines? Replays a recorded trace with bench/simulate.c. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "simulate.h"
#include "whatif_trace.h"

#define MIB (1024.0 * 1024)
#define AUTO (-1.0) /* of a cap */

static const char usage[] =
    "usage: whatif TRACE... [options]\n"
    "  TRACE              what train --trace wrote, best of stage 3 or 4 with --bucket-cap-mb 0 --first-bucket-mb 0:\n"
    "                     of one rank; and if wanted, of several ranks, which shows the link and the machine\n"
    "  --ranks 2,8,...    how many ranks (2,8,64,1024); each computes as much as the recorded one\n"
    "  --link GBPS,US     gigabit per second of each rank's link, microseconds per message; or a name from below\n"
    "                     (without it: as recorded)\n"
    "  --caps auto,25,... the buckets' caps in MiB; auto: what is best; 0: one gradient per bucket (auto,0,1,5,25)\n"
    "  --accumulate K     micro-batches per step, each as large as the recorded one (1)\n"
    "  --stage 1|2|3|4    (3)\n"
    "  --pairwise         all-reduces by halving and doubling, 2 log2 N latencies, in place of a ring with 2(N-1)\n"
    "  --slowdown S       share of its speed that computing loses while an all-reduce is in flight (0)\n"
    "  --cores C          all ranks share C cores, as the recorded ones did (each rank has its own)\n"
    "  --recorded-link L  the --wire of the recorded run of several ranks, or 'none'; needed with --link\n"
    "  --emulated         the link is train's --wire, over which ranks wait less for each other\n"
    "  --json             one JSON object per line\n"
    "  --against RUN      the trace of the run that is asked for: predicts each of its steps, for the speed of its\n"
    "                     ranks in this step, which their phases tell; one JSON object per step\n"
    "  --recording        what the traces tell, for tools/bench/simulate.h: its arrays, as JSON; no answers\n";

typedef struct Link {
    double gbps, us;
} Link;

/* Gigabit per second in one direction of one rank's link, and microseconds per step of a ring. Bandwidths are nominal:
 * programs reach some 80 to 95 % of them. Latencies are known roughly only: much depends on switches and library. */
static const struct {
    const char *name;
    Link link;
    const char *text;
} presets[] = {
    /* IEEE 802.3ab. The latency is a usual one of TCP through one switch: 30 to 100. Roughly known. */
    {"1gbe", {1, 50}, "Ethernet, TCP"},
    /* IEEE 802.3ae. TCP between two programs took 20 us: J. Hurwitz and W. Feng, "Initial End-to-End Performance
     * Evaluation of 10-Gigabit Ethernet", Hot Interconnects 11, 2003. Today's cards and processors are faster. */
    {"10gbe", {10, 20}, "Ethernet, TCP"},
    /* IEEE 802.3ba, over RDMA (RoCE). The latency is NCCL's, as for the network below. */
    {"100gbe", {100, 9.6}, "Ethernet, RoCE, as NCCL uses it"},
    /* NVIDIA ConnectX-7 user manual: NDR is 400 Gb/s per port. NCCL, src/graph/tuning.cc, hwLat: a ring's step over the
     * network with protocol Simple takes 9.6 us (2.7 us with LL, for short messages only). */
    {"ib-ndr", {400, 9.6}, "InfiniBand NDR, one port per GPU, as NCCL uses it"},
    /* PCI Express 4.0, x16: 16 GT/s, 16 lanes, 128b/130b is 252 Gbit/s. hwLat: 5.7 us for PCI. */
    {"pcie4", {252, 5.7}, "PCI Express 4.0 x16, as NCCL uses it"},
    /* NVIDIA A100 data sheet: 600 GB/s in both directions together. hwLat: 3.4 us for NVLink. */
    {"nvlink-a100", {2400, 3.4}, "NVLink of an A100, as NCCL uses it"},
    /* NVIDIA H100 (SXM) data sheet: 900 GB/s in both directions together. hwLat is older than it: roughly known. */
    {"nvlink-h100", {3600, 3.4}, "NVLink of an H100, as NCCL uses it; within a host of 8"},
};
enum { PRESETS = sizeof presets / sizeof *presets, MOST_LISTED = 32 };

typedef struct Settings {
    double ranks[MOST_LISTED], caps[MOST_LISTED]; /* caps: MiB, or AUTO */
    int rank_count, cap_count, stage, accumulate;
    bool link_given, recorded_link_given, emulated, pairwise, json, only_recording;
    Link link, recorded_link;
    double cores, slowdown;
    const char *against; /* or NULL */
} Settings;

/* ---- the command line ---- */

static double parse_number(const char *flag, const char *text, double low, double high, bool whole)
{
    char *end = NULL;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !(value >= low && value <= high) || (whole && value != floor(value)))
        die("%s: '%s' is not a %snumber from %g to %g", flag, text, whole ? "whole " : "", low, high);
    return value;
}

/* A word between two commas may be empty: then it is refused. */
static int parse_list(const char *flag, char *list, double low, double high, bool whole, double *values)
{
    int count = 0;
    for (char *text; (text = strsep(&list, ",")) != NULL; count++) {
        if (count == MOST_LISTED)
            die("%s: %d values at most", flag, MOST_LISTED);
        const bool automatic = !whole && strcmp(text, "auto") == 0;
        values[count] = automatic ? AUTO : parse_number(flag, text, low, high, whole);
    }
    return count;
}

static Link parse_link(const char *flag, char *text)
{
    for (int i = 0; i < PRESETS; i++)
        if (strcmp(presets[i].name, text) == 0)
            return presets[i].link;
    char *comma = strchr(text, ',');
    if (comma == NULL || strchr(comma + 1, ',') != NULL)
        die("%s: '%s' is neither two numbers, such as 10,20, nor a name that --help lists", flag, text);
    *comma = '\0';
    return (Link){parse_number(flag, text, 1e-6, 1e6, false), parse_number(flag, comma + 1, 0, 1e7, false)};
}

static void print_help(void)
{
    fputs(usage, stdout);
    printf("Links (nominal bandwidths; tools/bench/whatif.c names the sources):\n");
    for (int i = 0; i < PRESETS; i++)
        printf("  %-12s %6g Gbit/s %5g us   %s\n", presets[i].name, presets[i].link.gbps, presets[i].link.us,
               presets[i].text);
}

static void set_option(Settings *settings, int letter, char *value)
{
    switch (letter) {
    case 'r': settings->rank_count = parse_list("--ranks N,N,...", value, 1, 65536, true, settings->ranks); break;
    case 'b': settings->cap_count = parse_list("--caps auto,MIB,...", value, 0, 1e6, false, settings->caps); break;
    case 'k': settings->accumulate = (int)parse_number("--accumulate", value, 1, 1024, true); break;
    case 's': settings->stage = (int)parse_number("--stage", value, 1, 4, true); break;
    case 'd': settings->slowdown = parse_number("--slowdown", value, 0, 0.9, false); break;
    case 'c': settings->cores = parse_number("--cores", value, 1, 65536, false); break;
    case 'p': settings->pairwise = true; break;
    case 'j': settings->json = true; break;
    case 'R': settings->only_recording = true; break;
    case 'l':
        settings->link = parse_link("--link GBPS,US", value);
        settings->link_given = true;
        break;
    case 'e': settings->emulated = true; break;
    case 'a': settings->against = value; break;
    case 'L':
        settings->recorded_link_given = true;
        if (strcmp(value, "none") != 0)
            settings->recorded_link = parse_link("--recorded-link GBPS,US", value);
        break;
    default: print_help(); exit(letter == 'h' ? 0 : 2);
    }
}

static Settings parse_options(int argc, char **argv)
{
    static const struct option options[] = {
        {"ranks", required_argument, NULL, 'r'},      {"link", required_argument, NULL, 'l'},
        {"caps", required_argument, NULL, 'b'},       {"accumulate", required_argument, NULL, 'k'},
        {"stage", required_argument, NULL, 's'},      {"pairwise", no_argument, NULL, 'p'},
        {"slowdown", required_argument, NULL, 'd'},   {"cores", required_argument, NULL, 'c'},
        {"recorded-link", required_argument, NULL, 'L'}, {"json", no_argument, NULL, 'j'},
        {"emulated", no_argument, NULL, 'e'},         {"against", required_argument, NULL, 'a'},
        {"recording", no_argument, NULL, 'R'},        {"help", no_argument, NULL, 'h'}, {0}};
    Settings settings = {.ranks = {2, 8, 64, 1024}, .rank_count = 4, .caps = {AUTO, 0, 1, 5, 25}, .cap_count = 5,
                         .stage = 3, .accumulate = 1};
    for (int letter; (letter = getopt_long(argc, argv, "", options, NULL)) != -1;)
        set_option(&settings, letter, optarg);
    if (optind == argc)
        die("no trace is given; --help tells more");
    return settings;
}

/* ---- from traces to a recording and a question ---- */

/* Bytes that a ring sends over each link, for one byte of the buffer. */
static double ring_share(int ranks)
{
    return 2.0 * (ranks - 1) / ranks;
}

static void fill_recording(const Recorded *alone, double spread)
{
    double *r = recording();
    if (alone->gradients == 0)
        die("%s: no all-reduce was queued during backward, so it does not show when gradients are ready: record stage "
            "3 or 4, with --bucket-cap-mb 0 --first-bucket-mb 0", alone->path);
    r[RECORDED_GRADIENTS] = alone->gradients;
    r[RECORDED_FORWARD] = alone->forward;
    r[RECORDED_BACKWARD] = alone->backward;
    r[RECORDED_SCALING] = alone->scaling;
    r[RECORDED_OPTIMIZER] = alone->optimizer;
    r[RECORDED_LEFT] = alone->left;
    r[RECORDED_SPREAD] = spread;
    memcpy(recording_bytes(), alone->bytes, (size_t)alone->gradients * sizeof(double));
    memcpy(recording_ready(), alone->ready, (size_t)alone->gradients * sizeof(double));
}

/* By how much more than alone, as a share, for the ranks that the run of several ranks had. If it had more ranks than
 * cores, they shared them, too. */
static double crowding(double several, double alone, int ranks, double cores)
{
    const double busy = cores > 1 ? fmin((ranks - 1) / (cores - 1), 1) : 1;
    return (several / alone / fmax(1, ranks / cores) - 1) / busy;
}

/* What the run of several ranks shows about the machine: how much longer computing takes there, and how much of it the
 * all-reduces take away. The latter is what backward, which they overlap, takes longer than forward does. */
static void fill_machine(const Recorded *alone, const Recorded *several, double cores)
{
    double *q = question();
    q[ASK_CORES] = cores;
    if (!(cores >= 1) || several->ranks == alone->ranks)
        return;
    const double longer = several->forward / alone->forward;
    if (longer < 0.8)
        fprintf(stderr, "whatif: warning: %s: a rank's forward pass takes %.0f %% of that of %s: has each rank as many "
                        "samples in both runs? (--batch-size is that of all ranks)\n", several->path, 100 * longer,
                alone->path);
    const double taken = trace_taken(several, alone->backward / alone->forward);
    const double carried = several->overlapped * ring_share(several->ranks);
    q[ASK_CROWDING] = crowding(several->forward, alone->forward, several->ranks, cores);
    q[ASK_MEMORY_CROWDING] = crowding(several->optimizer, alone->optimizer, several->ranks, cores);
    if (carried > 0)
        q[ASK_BYTE_PROCESSOR] = fmax(taken, 0) / carried / longer;
}

/* The link that was asked for, and what an all-reduce costs besides. Or the recorded link. What was measured on crowded
 * cores is divided by what that makes of it, because the simulator multiplies by it. */
static void fill_link(const Recorded *alone, const Recorded *several, const Settings *settings)
{
    double *q = question();
    const bool crowded = settings->cores >= 1 && several->ranks > alone->ranks;
    const double longer = crowded ? several->forward / alone->forward : 1;
    const double latencies = 2 * (several->ranks - 1), share = ring_share(several->ranks);
    q[ASK_WAKE] = several->wake / longer;
    q[ASK_FIRST_WAKE] = several->first_wake / longer;
    q[ASK_EMULATED] = settings->emulated;
    q[ASK_LATENCY] = 1e-6 * settings->link.us;
    q[ASK_BANDWIDTH] = 1e9 / 8 * settings->link.gbps;
    if (several->ranks == 1 && !settings->link_given && !settings->only_recording)
        die("--link: one rank's trace shows no link; give one, or a trace of several ranks");
    if (several->ranks == 1)
        return;
    if (!settings->link_given) {
        q[ASK_LATENCY] = several->alpha / latencies;
        q[ASK_BANDWIDTH] = share / several->beta;
        return;
    }
    if (!settings->recorded_link_given)
        die("--recorded-link: %s has %d ranks; say over which link they were connected, or 'none'", several->path,
            several->ranks);
    q[ASK_CALL_SECONDS] = fmax(several->alpha - 1e-6 * settings->recorded_link.us * latencies, 0) / longer;
    if (!(settings->recorded_link.gbps > 0))
        q[ASK_BYTE_SECONDS] = several->beta / share / longer;
}

/* ---- the table ---- */

static void print_head(const Settings *settings)
{
    const double *q = question();
    printf("stage %d, %d micro-batch(es) per step; link: %.4g Gbit/s, %.4g us per message, %.0f us for each call;\n"
           "%.0f us to wake a thread, %.0f us for the first bucket; ",
           settings->stage, settings->accumulate, 8e-9 * q[ASK_BANDWIDTH], 1e6 * q[ASK_LATENCY],
           1e6 * q[ASK_CALL_SECONDS], 1e6 * q[ASK_WAKE], 1e6 * q[ASK_FIRST_WAKE]);
    printf("an all-reduce takes %.2f ms of computing for each MB; ranks differ by %.1f %%", 1e9 * q[ASK_BYTE_PROCESSOR],
           100 * recording()[RECORDED_SPREAD]);
    if (q[ASK_CORES] > 0)
        printf("; %g cores, full: forward and backward %+.0f %%, optimizer %+.0f %%", q[ASK_CORES],
               100 * q[ASK_CROWDING], 100 * q[ASK_MEMORY_CROWDING]);
    printf("\ntimes in ms; exposed: training waits for communication or for slower ranks\n\n");
    printf("%6s %20s %8s %10s %10s %10s %10s %11s\n", "ranks", "caps (first, others)", "buckets", "step", "compute",
           "in flight", "exposed", "efficiency");
}

static void print_row(const Settings *settings, bool best)
{
    const double *q = question(), *a = answer();
    char caps[40];
    snprintf(caps, sizeof caps, "%s%.4g, %.4g", best ? "best: " : "", q[ASK_FIRST_CAP] / MIB, q[ASK_CAP] / MIB);
    if (settings->json)
        printf("{\"stage\": %d, \"ranks\": %.0f, \"accumulate\": %d, \"best\": %s, \"first_bucket_mb\": %.17g, "
               "\"bucket_cap_mb\": %.17g, \"buckets\": %.0f, \"step_ms\": %.17g, \"compute_ms\": %.17g, "
               "\"comm_ms\": %.17g, \"exposed_comm_ms\": %.17g, \"efficiency\": %.17g}\n",
               settings->stage, q[ASK_RANKS], settings->accumulate, best ? "true" : "false", q[ASK_FIRST_CAP] / MIB,
               q[ASK_CAP] / MIB, a[ANSWER_BUCKETS], 1e3 * a[ANSWER_STEP], 1e3 * a[ANSWER_COMPUTE],
               1e3 * a[ANSWER_COMMUNICATION], 1e3 * a[ANSWER_EXPOSED], a[ANSWER_EFFICIENCY]);
    else
        printf("%6.0f %20s %8.0f %10.3f %10.3f %10.3f %10.3f %9.1f %%\n", q[ASK_RANKS],
               settings->stage == 1 ? "one per gradient" : caps, a[ANSWER_BUCKETS], 1e3 * a[ANSWER_STEP],
               1e3 * a[ANSWER_COMPUTE], 1e3 * a[ANSWER_COMMUNICATION], 1e3 * a[ANSWER_EXPOSED],
               100 * a[ANSWER_EFFICIENCY]);
}

static void print_array(const char *name, const double *values, int count, const char *end)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < count; i++)
        printf("%s%.17g", i > 0 ? ", " : "", values[i]);
    printf("]%s", end);
}

static void print_recording(void)
{
    const int gradients = (int)recording()[RECORDED_GRADIENTS];
    printf("{");
    print_array("recording", recording(), RECORDING_COUNT, ",\n ");
    print_array("bytes", recording_bytes(), gradients, ",\n ");
    print_array("ready", recording_ready(), gradients, ",\n ");
    print_array("question", question(), QUESTION_COUNT, "}\n");
}

static void answer_all(const Settings *settings)
{
    double *q = question();
    for (int r = 0; r < settings->rank_count; r++)
        for (int c = 0; c < (settings->stage == 1 ? 1 : settings->cap_count); c++) { /* stage 1 has no buckets */
            const bool best = settings->caps[c] < 0;
            q[ASK_RANKS] = settings->ranks[r];
            q[ASK_FIRST_CAP] = q[ASK_CAP] = best ? 0 : settings->caps[c] * MIB;
            if (best && settings->stage > 1)
                simulate_best_caps();
            else
                simulate();
            print_row(settings, best);
        }
}

/* ---- a run that was recorded, step by step ---- */

/* From now on all computing takes `times` times as long. */
static void change_speed(double times)
{
    for (int part = RECORDED_FORWARD; part <= RECORDED_LEFT; part++)
        recording()[part] *= times;
    for (int g = 0; g < (int)recording()[RECORDED_GRADIENTS]; g++)
        recording_ready()[g] *= times;
}

/* Of the simulated step: the mean length of forward, and of backward if `both`, of a micro-batch. */
static double mean_length(bool both)
{
    double sum = 0, forward_passes = 0;
    const double *phase = answer_phases(), *end = phase + 3 * (int)answer()[ANSWER_PHASES];
    for (; phase < end; phase += 3) {
        sum += phase[0] < (both ? 2 : 1) ? phase[2] - phase[1] : 0; /* its kind: 0 forward, 1 backward */
        forward_passes += phase[0] < 1;
    }
    return sum / forward_passes;
}

/* How fast the ranks computed in a step shows in their forward passes, in which nothing is communicated. Ranks that
 * share cores take turns. So backward counts, too, and how late the last rank's first gradients are. */
static void answer_against(const Settings *settings, const Recorded *alone)
{
    Recorded run = trace_read(settings->against);
    const bool share_cores = settings->cores >= 1 && run.ranks > settings->cores;
    question()[ASK_RANKS] = run.ranks;
    question()[ASK_FIRST_CAP] = question()[ASK_CAP] = fmax(settings->caps[0], 0) * MIB;
    for (int i = 0; i < run.step_count; i++) {
        const RecordedStep *step = &run.steps[i];
        fill_recording(alone, 0);
        simulate();
        change_speed((step->forward + (share_cores ? step->backward : 0)) / mean_length(share_cores));
        const double behind = share_cores && step->late > 0 ? step->late : step->slowest;
        recording()[RECORDED_SPREAD] = run.ranks > 1 ? behind / step->forward / largest_of_ranks(run.ranks) : 0;
        simulate();
        printf("{\"predicted_ms\": %.17g, \"measured_ms\": %.17g, \"forward_ms\": %.17g}\n",
               1e3 * answer()[ANSWER_STEP], 1e3 * step->seconds, 1e3 * step->forward);
    }
    trace_free(&run);
}

int main(int argc, char **argv)
{
    job_set_program("whatif");
    Settings settings = parse_options(argc, argv);
    const int count = argc - optind;
    Recorded *traces = alloc_or_fault((size_t)count * sizeof *traces);
    const Recorded *alone = traces, *several = traces; /* with the fewest ranks, and with the most */
    for (int i = 0; i < count; i++) {
        traces[i] = trace_read(argv[optind + i]);
        if (traces[i].ranks < alone->ranks)
            alone = &traces[i];
        if (traces[i].ranks > several->ranks)
            several = &traces[i];
    }
    question()[ASK_STAGE] = settings.stage;
    question()[ASK_ACCUMULATE] = settings.accumulate;
    question()[ASK_PAIRWISE] = settings.pairwise;
    question()[ASK_SLOWDOWN] = settings.slowdown;
    fill_recording(alone, several->spread);
    fill_machine(alone, several, settings.cores);
    fill_link(alone, several, &settings);
    if (settings.only_recording) {
        print_recording();
    } else if (settings.against != NULL) {
        answer_against(&settings, alone);
    } else {
        if (!settings.json)
            print_head(&settings);
        answer_all(&settings);
    }
    for (int i = 0; i < count; i++)
        trace_free(&traces[i]);
    free(traces);
    return 0;
}
