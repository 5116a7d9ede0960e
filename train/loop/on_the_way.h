/* on_the_way.h: what a run does beside training: it evaluates, saves, and writes its log after some of its steps.
 *
 * Interface: way_begin(); after each step way_log(), way_evaluate(), way_save(), where they are due; way_end().
 * Nothing of it changes a bit of the training, or counts as a step's communication.
 */
#ifndef LOCKSTEP_TRAIN_ON_THE_WAY_H
#define LOCKSTEP_TRAIN_ON_THE_WAY_H

#include "train/loop/evaluate.h"
#include "train/report/output.h"
#include "train/report/step_log.h"

typedef struct OnTheWay {
    /* Set by the caller; not owned. */
    const Options *options;
    ProcessGroup *pg;
    Ddp *ddp;
    Replica *replica;
    const Dataset *eval_set;
    const Sampler *sampler;
    Progress *progress;
    /* The curve: after steps[i] steps the evaluation was evaluations[i]. Owned. */
    Evaluation *evaluations;
    long *steps;
    int count;
    StepLog log;           /* rank 0's, with --log */
    bool best_is_missing;  /* the last --save-best has failed */
    bool save_is_missing;  /* rank 0: so has the last --save; a note has said so */
} OnTheWay;

/* True after every `every` steps; never if every <= 0. step counts from 0. */
bool is_due(long step, long every);

/* Begins the progress and the log. first_step: of the run. */
void way_begin(OnTheWay *way, long first_step);

/* Adds a row about `step` to the log. loss: the mean over the global batch; loss_scale: before the step's update. */
void way_log(OnTheWay *way, long step, double loss, double loss_scale, int64_t global_samples, const StepTimes *times);

/* Evaluates after `done` steps, adds the result to the curve, and, if it is the best one of the training, writes
 * --save-best. Collective; leaves the group measuring as it was. */
Evaluation way_evaluate(OnTheWay *way, long done);

/* Writes --save, if it is given, after `done` steps. last: the run ends here; if the file cannot be written, it is rescued, and the run faults.
 * Else a note says so, and training goes on. Collective. */
void way_save(OnTheWay *way, long done, bool last);

/* The curve as an array of objects; NULL without --eval-every. Owned by the caller. */
cJSON *way_curve(const OnTheWay *way);

/* Returns false, and rank 0 says so, if --save-best could not be written, or, on rank 0 alone, a row of --log. */
bool way_end(OnTheWay *way);

#endif
