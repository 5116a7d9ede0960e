/* simulate.c: see simulate.h. One rank is replayed, the slowest one, for which all others wait. Two things happen at
 * the same time: the rank computes, and the communication thread carries out one all-reduce after the other. */
#include "simulate.h"

#include <stdbool.h>

static double recorded[RECORDING_COUNT], gradient_bytes[MOST_GRADIENTS], gradient_ready[MOST_GRADIENTS];
static double asked[QUESTION_COUNT], answers[ANSWER_COUNT];
static double phases[3 * MOST_PHASES], collectives[4 * MOST_COLLECTIVES];

double *recording(void) { return recorded; }
double *recording_bytes(void) { return gradient_bytes; }
double *recording_ready(void) { return gradient_ready; }
double *question(void) { return asked; }
double *answer(void) { return answers; }
double *answer_phases(void) { return phases; }
double *answer_collectives(void) { return collectives; }

static double larger(double x, double y)
{
    return x > y ? x : y;
}

static double smaller(double x, double y)
{
    return x < y ? x : y;
}

/* Also of what is no number: then it is the least. */
static int whole(double x, int least, int most)
{
    return x >= most ? most : x > least ? (int)x : least;
}

/* ---- the plan ---- */

typedef struct Plan {
    double bytes, ready; /* of a bucket: all its gradients; seconds after backward's beginning, as recorded */
} Plan;

static Plan buckets[MOST_GRADIENTS];
static int bucket_count;
static double all_bytes;

/* The rule of buckets_plan() in stage2_bucketed/buckets.c: a bucket is closed as soon as it holds its cap. A bucket is
 * launched only after all buckets before it, so it is ready no earlier than they are. */
static void plan_buckets(double first_cap, double cap)
{
    const int count = whole(recorded[RECORDED_GRADIENTS], 0, MOST_GRADIENTS);
    double ready = 0;
    bool closed = true;
    bucket_count = 0;
    all_bytes = 0;
    for (int g = 0; g < count; g++) {
        if (closed)
            buckets[bucket_count++] = (Plan){0, 0};
        Plan *bucket = &buckets[bucket_count - 1];
        ready = larger(ready, gradient_ready[g]);
        bucket->bytes += gradient_bytes[g];
        bucket->ready = ready;
        all_bytes += gradient_bytes[g];
        closed = bucket->bytes >= (bucket_count == 1 ? first_cap : cap);
    }
}

/* ---- how long things take ---- */

static int ranks;

double largest_of_ranks(int count)
{
    static const double of_2_to_the[] = {0,      0.5642, 1.0294, 1.4236, 1.7660, 2.0697, 2.3437, 2.5946, 2.8269,
                                         3.0439, 3.2482, 3.4418, 3.6261, 3.8023, 3.9714, 4.1341, 4.2911};
    int k = 0;
    while (k < 15 && (2 << k) < count)
        k++;
    double place = larger((double)count / (1 << k) - 1, 0); /* 1 at 2^(k+1) */
    return of_2_to_the[k] + place * (of_2_to_the[k + 1] - of_2_to_the[k]);
}

/* How many times as long a rank computes as it did alone: cores are crowded, and several ranks may share one. */
static double crowded(double crowding)
{
    const double cores = asked[ASK_CORES];
    if (!(cores >= 1))
        return 1;
    double busy = cores > 1 ? (ranks - 1) / (cores - 1) : ranks > 1;
    return (1 + crowding * (busy < 1 ? busy : 1)) * larger(1, ranks / cores);
}

/* Bytes that each rank's link carries in one direction: notes/allreduce.md. */
static double link_bytes(double bytes)
{
    return 2 * bytes * (ranks - 1) / ranks;
}

static double link_seconds(double bytes)
{
    int latencies = 0;
    for (int reached = 1; asked[ASK_PAIRWISE] != 0 && reached < ranks; reached *= 2)
        latencies += 2;
    if (!(asked[ASK_PAIRWISE] != 0))
        latencies = 2 * (ranks - 1);
    double carried = asked[ASK_BANDWIDTH] > 0 ? link_bytes(bytes) / asked[ASK_BANDWIDTH] : 0;
    return latencies * asked[ASK_LATENCY] + carried;
}

/* Where each rank has a core: by how much the slowest rank's computing is longer than the mean rank's, as a share of
 * it. With an emulated link, the distance of two ranks is a random walk between -allowed and +allowed. If `allowed` is
 * much longer than the walk's steps, the walk meets its ends rarely: the ranks then wait for (steps squared / 4
 * allowed). Between this and 0: a smooth line. */
static double slowest_behind(double computing_seconds, double allowed)
{
    const double distance = 1.4142 * recorded[RECORDED_SPREAD] * computing_seconds;
    double waits = recorded[RECORDED_SPREAD] * largest_of_ranks(ranks);
    return asked[ASK_EMULATED] != 0 && distance > 0 ? waits / (1 + 1.6 * allowed / distance) : waits;
}

/* ---- one step of the slowest rank ---- */

static double now;       /* of the training thread, from the beginning of the step */
static double computing; /* of it, without waiting */
static double in_flight; /* all all-reduces together */
static double behind;    /* the slowest rank computes this many times as long as the mean rank */
static double late;      /* ranks share cores: so much longer forward takes on the slowest rank, and backward shorter */

typedef struct Flight {
    double start, done, speed; /* speed: of computing while it is in flight; 1 as always */
} Flight;

static Flight flights[MOST_GRADIENTS]; /* of this micro-batch; one after the other */
static int launched, landed;

/* Carries out so much computing (in seconds of the recording). It is slower while an all-reduce is in flight. */
static void compute(double recorded_seconds, double crowding)
{
    const double begin = now;
    double seconds = recorded_seconds * behind * crowded(crowding);
    while (landed < launched && seconds > 0) {
        const Flight *flight = &flights[landed];
        const double speed = now < flight->start ? 1 : flight->speed; /* before its start: a thread wakes */
        const double until = now < flight->start ? flight->start : flight->done, possible = (until - now) * speed;
        if (possible > seconds)
            break;
        seconds -= larger(possible, 0);
        now = larger(now, until);
        landed += !(until < flight->done); /* also of what is no number */
    }
    const bool slow = landed < launched && now >= flights[landed].start;
    now += seconds / (slow ? flights[landed].speed : 1);
    computing += now - begin;
}

static void draw_phase(int kind, double begin)
{
    const int place = (int)answers[ANSWER_PHASES];
    if (place == MOST_PHASES)
        return;
    phases[3 * place] = kind;
    phases[3 * place + 1] = begin;
    phases[3 * place + 2] = now;
    answers[ANSWER_PHASES]++;
}

/* Queues a bucket's all-reduce. It starts when the one before it is done, or after `wake`. */
static void launch(const Plan *bucket, double wake)
{
    const double sent = link_bytes(bucket->bytes), shared = crowded(asked[ASK_CROWDING]);
    const bool busy = launched > 0 && flights[launched - 1].done > now;
    double start = busy ? flights[launched - 1].done : now + wake;
    double carried = larger(asked[ASK_BYTE_SECONDS] * sent * shared, link_seconds(bucket->bytes));
    double taken = (asked[ASK_CALL_PROCESSOR] + asked[ASK_BYTE_PROCESSOR] * sent) * shared;
    double seconds = ranks > 1 ? asked[ASK_CALL_SECONDS] * shared + carried : 0;
    double lost = seconds > 0 ? asked[ASK_SLOWDOWN] + taken / seconds : 0;
    flights[launched++] = (Flight){start, start + seconds, larger(1 - lost, 0.1)};
    in_flight += seconds;
    if (answers[ANSWER_COLLECTIVES] >= MOST_COLLECTIVES)
        return;
    double *drawn = &collectives[4 * (int)answers[ANSWER_COLLECTIVES]++];
    drawn[0] = now;
    drawn[1] = start;
    drawn[2] = start + seconds;
    drawn[3] = bucket->bytes;
}

static void wait_and_scale(int flight, const Plan *bucket, bool last)
{
    now = larger(now, flights[flight].done);
    if (last && all_bytes > 0)
        compute(recorded[RECORDED_SCALING] * bucket->bytes / all_bytes, asked[ASK_MEMORY_CROWDING]);
}

/* Stages 3 and 4 launch a bucket when it is ready. If training waits before the thread is awake, it takes its place. */
static void backward(bool overlaps)
{
    const double begin = now, faster = larger(1 - late / recorded[RECORDED_BACKWARD], 0);
    double progress = 0;
    for (int b = 0; overlaps && b < bucket_count; b++) {
        compute(faster * (buckets[b].ready - progress), asked[ASK_CROWDING]);
        progress = buckets[b].ready;
        const double wake = smaller(asked[b == 0 ? ASK_FIRST_WAKE : ASK_WAKE], recorded[RECORDED_BACKWARD] - progress);
        launch(&buckets[b], ranks > 1 ? wake * crowded(asked[ASK_CROWDING]) : 0);
    }
    compute(faster * larger(recorded[RECORDED_BACKWARD] - progress, 0), asked[ASK_CROWDING]);
    draw_phase(1, begin);
}

/* Stage 1 takes the parameters in the order of registration, which is the reverse. */
static void after_backward(int stage, bool last)
{
    for (int i = 0; i < bucket_count; i++) {
        const Plan *bucket = &buckets[stage == 1 ? bucket_count - 1 - i : i];
        if (stage <= 2)
            launch(bucket, 0); /* by the training thread itself */
        wait_and_scale(i, bucket, last);
    }
}

static void micro_batch(int stage, bool last)
{
    const bool synchronises = stage < 4 || last;
    const double begin = now;
    launched = landed = 0;
    compute(recorded[RECORDED_FORWARD] + late, asked[ASK_CROWDING]);
    draw_phase(0, begin);
    backward(synchronises && stage >= 3);
    if (synchronises)
        after_backward(stage, last);
    compute(recorded[RECORDED_LEFT], asked[ASK_CROWDING]);
}

/* What one rank takes that has nothing to wait for. */
static double alone(int accumulate)
{
    return accumulate * (recorded[RECORDED_FORWARD] + recorded[RECORDED_BACKWARD] + recorded[RECORDED_LEFT]) +
           recorded[RECORDED_SCALING] + recorded[RECORDED_OPTIMIZER];
}

void simulate(void)
{
    const int stage = whole(asked[ASK_STAGE], 1, 4), accumulate = whole(asked[ASK_ACCUMULATE], 1, 1024);
    ranks = whole(asked[ASK_RANKS], 1, 1 << 16);
    now = computing = in_flight = 0;
    for (int i = 0; i < ANSWER_COUNT; i++)
        answers[i] = 0;
    plan_buckets(stage == 1 ? 0 : asked[ASK_FIRST_CAP], stage == 1 ? 0 : asked[ASK_CAP]);
    const Plan *last = &buckets[stage == 1 || bucket_count == 0 ? 0 : bucket_count - 1];
    const bool share_cores = asked[ASK_CORES] >= 1 && ranks > asked[ASK_CORES];
    late = share_cores ? recorded[RECORDED_SPREAD] * largest_of_ranks(ranks) * recorded[RECORDED_FORWARD] : 0;
    behind = 1;
    if (!share_cores)
        behind += slowest_behind(alone(accumulate) * crowded(asked[ASK_CROWDING]), link_seconds(last->bytes));
    for (int k = 0; k < accumulate; k++)
        micro_batch(stage, k + 1 == accumulate);
    const double begin = now;
    compute(recorded[RECORDED_OPTIMIZER], asked[ASK_MEMORY_CROWDING]);
    draw_phase(2, begin);
    answers[ANSWER_STEP] = now;
    answers[ANSWER_COMPUTE] = computing / behind; /* of the mean rank: the others wait */
    answers[ANSWER_COMMUNICATION] = in_flight;
    answers[ANSWER_EXPOSED] = now - answers[ANSWER_COMPUTE];
    answers[ANSWER_HIDDEN] = larger(in_flight - answers[ANSWER_EXPOSED], 0);
    answers[ANSWER_EFFICIENCY] = now > 0 ? alone(accumulate) / now : 1;
    answers[ANSWER_BUCKETS] = bucket_count;
}

/* ---- the best buckets ---- */

#define WORTH_A_BUCKET 0.999 /* more buckets must make the step shorter by 0.1 % at least */
#define SMALLEST_CAP 16384.0 /* bytes */

/* All pairs of powers of two, the largest first. */
void simulate_best_caps(void)
{
    double best_step = 0, best[2] = {0, 0}, largest = SMALLEST_CAP;
    plan_buckets(0, 0);
    while (largest < all_bytes)
        largest *= 2;
    for (double cap = largest; cap >= SMALLEST_CAP; cap /= 2)
        for (double first = largest; first >= SMALLEST_CAP; first /= 2) {
            asked[ASK_FIRST_CAP] = first;
            asked[ASK_CAP] = cap;
            simulate();
            if (best_step <= 0 || answers[ANSWER_STEP] < WORTH_A_BUCKET * best_step) {
                best_step = answers[ANSWER_STEP];
                best[0] = first;
                best[1] = cap;
            }
        }
    asked[ASK_FIRST_CAP] = best[0];
    asked[ASK_CAP] = best[1];
    simulate();
}
