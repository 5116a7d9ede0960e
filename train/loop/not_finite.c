/* not_finite.c: --on-nan stop: finds the rank that an infinity or NaN comes from. */
#include "train/loop/trainer.h"

#include <math.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/clock.h"
#include "device/device.h"

#define TIME_TO_REPORT 1 /* seconds for the other ranks to print their lines before the job ends */

/* note: not-finite
 * A loss belongs to one rank, and is checked before anything is sent, so the rank that finds it is the cause. A
 * gradient is different: after the all-reduce, one rank's NaN is on all ranks. Checking every gradient before it is
 * sent would take a pass over memory in every step. Instead, ranks compute only the failing step again, and send
 * nothing. This needs no copy of the weights, because a skipped step does not change them. */

static const char how_to_skip[] = "; --on-nan skip skips such steps";

void not_finite_check_loss(float loss, const Batch *batch, double forward_seconds)
{
    if (isfinite(loss))
        return;
    job_say_fault("this rank's own loss is %f (micro-batch %d), before its gradients are sent: if no other rank "
                  "reports this, check this rank's data; if all do, a lower --lr or --clip-grad-norm may help%s",
                  (double)loss, batch->micro_batch, how_to_skip);
    sleep_seconds(fmax(TIME_TO_REPORT, 2 * forward_seconds));
    job_abort(1);
}

/* Computes the step again. Returns this rank's first gradient, in the order of backward, that is not finite; NULL: all
 * are finite. Backward goes from the last layer to the first, and a NaN spreads to all gradients after it. */
static const Parameter *find_in_own_gradients(Trainer *trainer, long step)
{
    Replica *replica = &trainer->replica;
    ParameterList *parameters = &replica->model.parameters;
    Optimizer *optimizer = &replica->optimizer;
    const Parameter *found = NULL;
    Loader *again = loader_start(&trainer->train_set, &trainer->sampler, pg_rank(trainer->pg),
                                 trainer->options->accumulate, step);
    tape_listen(&replica->tape, (TapeListener){0}); /* so nothing is sent, and DDP frees no gradients */
    optimizer->partition = NULL;
    parameters_allocate_gradients(parameters); /* the job ends before they could be freed */
    for (int k = 0; k < replica->options->accumulate; k++) {
        const Batch *batch = loader_next(again);
        replica_set_samples(replica, batch->step, batch->places, batch->global_samples);
        replica_backward(replica, replica_loss(replica, &trainer->train_set, batch->inputs, batch->targets,
                                               batch->samples));
    }
    clip_grad_norm(optimizer, (double)INFINITY);
    const int64_t count = optimizer->first_square[parameters->count];
    double *squares = alloc_or_fault((size_t)count * sizeof *squares);
    device_to_host(squares, optimizer->squares, (size_t)count * sizeof *squares);
    for (int i = 0; i < parameters->count; i++)
        for (int64_t k = optimizer->first_square[i]; k < optimizer->first_square[i + 1]; k++)
            if (!isfinite(squares[k]))
                found = parameters->items[i];
    free(squares);
    return found;
}

void not_finite_report_rank(Trainer *trainer, long step)
{
    ProcessGroup *pg = trainer->pg;
    Replica *replica = &trainer->replica;
    if (replica->options->mask_tokens > 0 && replica->counted_terms == 0)
        die("--mask-tokens: %g has masked every token of a step's global batch, so the loss has no terms: mask "
            "fewer, give a larger --batch-size, or skip such steps with --on-nan skip",
            (double)replica->options->mask_tokens);
    ddp_gather_weights(trainer->ddp);
    const Parameter *own = find_in_own_gradients(trainer, step);
    int64_t mine = own != NULL, ranks = 0;
    pg_all_reduce(pg, &mine, &ranks, 1, DTYPE_I64, REDUCE_SUM, "whose gradient is not finite");
    if (own != NULL)
        job_say_fault("the gradient of %s is not finite, and was so on this rank before it was sent, though the loss "
                      "is finite: an overflow in backward (on %lld of %d ranks); a lower --lr or --clip-grad-norm may "
                      "help%s", own->name, (long long)ranks, pg_world_size(pg), how_to_skip);
    else if (ranks == 0 && pg_rank(pg) == 0)
        job_say_fault("the gradient of %s is not finite after the all-reduce, though each rank's own is: %s, or ddp.c "
                      "has not sent or not scaled what backward computed%s", replica->scaler.not_finite->name,
                      replica->options->ddp.codec->rounds ? "it does not fit into what --grad-dtype sends"
                                                          : "the sum over the ranks has overflowed", how_to_skip);
    const bool reports = own != NULL || (ranks == 0 && pg_rank(pg) == 0);
    sleep_seconds(reports ? TIME_TO_REPORT : 5 * TIME_TO_REPORT); /* a rank that reports ends the job */
    job_abort(1);
}
