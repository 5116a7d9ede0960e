/* start.h: what a run consists of: its set-up before the first step, with the checks of what would end the run later, or
 * make it wrong; and its end.
 */
#ifndef LOCKSTEP_TRAIN_START_H
#define LOCKSTEP_TRAIN_START_H

#include "data/loader.h"
#include "ddp/sync_batch_norm.h"
#include "train/loop/report.h"
#include "train/report/memory.h"

typedef struct Trainer {
    const Options *options; /* not owned, like pg; all else is owned */
    ProcessGroup *pg;
    Dataset train_set, eval_set;
    Sampler sampler;
    Loader *loader;
    Replica replica;
    Ddp *ddp;
    ProcessGroup *norm_group; /* with --norm: for statistics and buffers; NULL: this process is alone */
    RankGather norm_ranks;    /* --norm sync-batch: what the model hears of that group */
    float *initial_weights;   /* rank 0, for --verify: the weights after the broadcast */
    Progress progress;
    RunRecord record;
    MemoryWatch memory; /* started with --trace */
    /* Of the current step: */
    Phases phases;
    double loss;       /* of this rank, summed over its samples so far */
    double loss_scale; /* with which the step began */
    int64_t own_terms; /* of this rank's loss so far */
    Work *counting;    /* with --mask-tokens: the all-reduce of own_terms; NULL: none is pending */
} Trainer;

/* Reads the data, and creates all that the run needs; trainer has its options and pg, and must stay where it is. The
 * replica stands where the checkpoint of --resume was saved, if there is one. die()s if the data, the checkpoint or the
 * flags do not fit together. Collective. */
void start_run(Trainer *trainer, const Resolved *resolved);
void end_run(Trainer *trainer);

#endif
