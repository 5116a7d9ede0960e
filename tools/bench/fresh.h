/* fresh.h: what all contenders of an all-reduce share when they are measured with freshly written data: the numbers
 * that a rank writes before each call, the meeting of the ranks then, and the check of what the call made of them.
 *
 * bench/collectives, peer_all_reduce.cpp and torch_collectives.py (through ctypes) call these, so that no contender's
 * data is other than another's, and none waits in its own library's barrier before its time starts.
 *
 * Interface: fresh_write(), fresh_meet(), then the call, which alone is timed; fresh_meet() again, then fresh_wrong().
 * (Without the second meeting, where ranks share a core, one would check its sum in another's time.) */
#ifndef LOCKSTEP_BENCH_FRESH_H
#define LOCKSTEP_BENCH_FRESH_H

#include <stddef.h>

/* Writes `rank`'s numbers for call number `call` into values[0..count-1]: small integers, which float32 adds exactly,
 * on up to 500 ranks. They differ between ranks, elements and calls, so that a part which is left out, added twice, at
 * another place, or left by the call before makes a wrong sum. */
void fresh_write(float *values, size_t count, int rank, unsigned call);

/* The number of values[0..count-1] that are not the sum of what the ranks from..to-1 wrote into the elements
 * first..first+count-1. */
long fresh_wrong(const float *values, size_t first, size_t count, int from, int to, unsigned call);

/* Returns when all ranks have called it. `arrivals` is memory that all of them see: FRESH_ARRIVAL bytes for each rank,
 * zeros before the first meeting. A rank that waits leaves within some 0.1 us of the last one; it yields its core at
 * once if there are more ranks than processors, and after some microseconds if not. */
enum { FRESH_ARRIVAL = 64 };
void fresh_meet(void *arrivals, int rank, int ranks);

/* The seconds of a meeting: the fastest of some rounds of many. All ranks must call this. In a virtual machine the
 * processors may share less than it says they do, and other things at other times: this time shows it. */
double fresh_seconds_of_a_meeting(void *arrivals, int rank, int ranks);

#endif
