/* test_options.c: the values that a command line gives. (What they come to: test_settings.c. Mistakes:
 * test_refusals.c.) */
#include <stdio.h>
#include <unistd.h>

#include "command_line.h"
#include "expect.h"

/* Equality of doubles that stand for the same decimal number; NaN never passes. */
static void assert_number(double actual, double expected)
{
    if (!(actual == expected))
        fail_msg("expected %.9g, got %.9g: a wrong default, or a flag that is read into the wrong field", expected,
                 actual);
}

static void mlp_is_the_default(void **state)
{
    Options options = parse("", 1);
    assert_string_equal(options.model.name, "mlp");
    assert_int_equal(options.dataset, DATASET_IMAGES);
    assert_null(options.data);
    assert_int_equal(options.steps, 0);
    assert_true(options.epochs > 0);
    assert_int_equal(options.optimizer.kind, OPTIMIZER_SGD);
    assert_int_equal(options.accumulate, 1);
    assert_int_equal(options.seed, 42);
    assert_int_equal(options.threads, 1);
    assert_number(options.group.timeout, 300);
    assert_number(options.group.wire_gbps, 0);
    assert_int_equal(options.group.algorithm, ALLREDUCE_AUTO);
    assert_int_equal(options.ddp.bucket_cap_bytes, 1 << 20);
    assert_int_equal(options.ddp.first_bucket_cap_bytes, 1 << 20);
    assert_string_equal(options.ddp.codec->name, "fp32");
    assert_int_equal(options.precision, DTYPE_F32);
    assert_number(options.initial_loss_scale, 1024);
    assert_int_equal(options.verify, VERIFY_NONE);
    assert_false(options.drop_last || options.same_seed);
    assert_int_equal(options.on_nan, ON_NAN_STOP);
    assert_false(options.group.debug_collectives);
    assert_null(options.save);
    assert_null(options.resume);
}

static void each_model_has_its_defaults(void **state)
{
    Options options = parse("--model mlp-toy", 1);
    assert_int_equal(options.dataset, DATASET_RANDOM);
    assert_int_equal(options.batch_size, 100);
    assert_number(options.lr, 0.01f);
    options = parse("--model gpt", 1);
    assert_int_equal(options.dataset, DATASET_TEXT);
    assert_int_equal(options.steps, 2800);
    assert_int_equal(options.epochs, 0);
    assert_int_equal(options.optimizer.kind, OPTIMIZER_ADAMW);
    assert_int_equal(options.lr_schedule, LR_COSINE);
    assert_int_equal(options.warmup_steps, 100);
    assert_number(options.lr, 1.4e-3f);
    assert_number(options.optimizer.weight_decay, 0.1f);
    assert_number(options.optimizer.beta2, 0.95f);
    assert_number(options.clip_grad_norm, 1);
    options = parse("--model gpt2", 1);
    assert_int_equal(options.model.gpt.context, 1024);
    assert_int_equal(options.batch_size, 4);
    assert_int_equal(options.steps, 20);
    assert_int_equal(options.warmup_steps, 100);
    assert_false(options.warmup_given); /* so that a short run can shorten it: test_learning_rate.c */
}

static void flags_of_the_model_reach_their_fields(void **state)
{
    Options options = parse("--model=gpt --layers 2 --heads=2 --width 64 --context=32 --data d --epochs 3", 1);
    assert_int_equal(options.model.gpt.layers, 2);
    assert_int_equal(options.model.gpt.heads, 2);
    assert_int_equal(options.model.gpt.width, 64);
    assert_int_equal(options.model.gpt.context, 32);
    assert_string_equal(options.data, "d");
    assert_int_equal(options.steps, 0);
    assert_int_equal(options.epochs, 3);
    assert_number(options.mask_tokens, 0);
    assert_false(options.binary_data);
    assert_true(parse("--model gpt --binary-data", 1).binary_data);
    assert_number(parse("--model gpt --mask-tokens 0.75", 1).mask_tokens, 0.75);
    assert_number(options.dropout, 0);
    assert_number(parse("--dropout 0.25", 1).dropout, 0.25);
    assert_int_equal(options.model.skip_layer, 0);
    assert_int_equal(parse("--model gpt --layers 2 --skip-layer 2", 1).model.skip_layer, 2);
    assert_int_equal(parse("--model mlp-toy --skip-layer 2", 1).model.skip_layer, 2);
    assert_int_equal(parse("", 1).model.mlp.activation, ACTIVATION_GELU);
    options = parse("--activation relu --hidden 30,40 --steps 7 --batch-size 12 --accumulate 3 --drop-last --seed 5 --same-init", 4);
    assert_int_equal(options.model.mlp.hidden1, 30);
    assert_int_equal(options.model.mlp.hidden2, 40);
    assert_int_equal(options.model.mlp.activation, ACTIVATION_RELU);
    assert_int_equal(options.steps, 7);
    assert_int_equal(options.epochs, 0);
    assert_int_equal(options.batch_size, 12);
    assert_int_equal(options.accumulate, 3);
    assert_int_equal(options.seed, 5);
    assert_true(options.drop_last && options.same_seed);
}

static void flags_of_the_update_reach_their_fields(void **state)
{
    Options options = parse("--lr 0.5 --lr-schedule cosine --warmup-steps 4 --momentum 0.25 --weight-decay 0.125 "
                    "--clip-grad-norm 2 --threads 2", 1);
    assert_number(options.lr, 0.5);
    assert_int_equal(options.lr_schedule, LR_COSINE);
    assert_int_equal(options.warmup_steps, 4);
    assert_true(options.warmup_given);
    assert_number(options.optimizer.momentum, 0.25);
    assert_number(options.optimizer.weight_decay, 0.125);
    assert_number(options.clip_grad_norm, 2);
    assert_int_equal(options.threads, 2);

    options = parse("--model gpt --allreduce ordered --wire 2.5,40 --timeout 1.5 --check-every 6 --generate 9 "
                    "--eval-samples 11", 1);
    assert_int_equal(options.group.algorithm, ALLREDUCE_ORDERED);
    assert_number(options.group.wire_gbps, 2.5);
    assert_number(options.group.wire_latency, 40 * 1e-6);
    assert_number(options.group.timeout, 1.5);
    assert_int_equal(options.check_every, 6);
    assert_int_equal(options.generate, 9);
    assert_int_equal(options.eval_samples, 11);

    options = parse("--model mlp-toy --wire 0.000001,0", 1); /* the least */
    assert_number(options.group.wire_gbps, 1e-6);

    options = parse("--save test_options.save --save-every 8 --trace test_options.trace --json test_options.json "
                    "--flight-recorder test_options.flight", 1);
    assert_string_equal(options.flight_recorder, "test_options.flight");
    assert_string_equal(options.save, "test_options.save");
    assert_int_equal(options.save_every, 8);
    assert_string_equal(options.trace, "test_options.trace");
    assert_string_equal(options.json, "test_options.json");

    options = parse("--eval-every 3 --save-best test_options.best --log test_options.log --log-every 4", 1);
    assert_int_equal(options.eval_every, 3);
    assert_string_equal(options.save_best, "test_options.best");
    assert_string_equal(options.log, "test_options.log");
    assert_int_equal(options.log_every, 4);

    options = parse("--on-nan skip --debug-collectives", 1);
    assert_int_equal(options.on_nan, ON_NAN_SKIP);
    assert_true(options.group.debug_collectives);
}

/* --resume checks that the file can be read. */
static void resume_names_a_file(void **state)
{
    FILE *file = fopen("test_options.resume", "w");
    assert_non_null(file);
    fclose(file);
    Options options = parse("--resume test_options.resume", 1);
    assert_string_equal(options.resume, "test_options.resume");
    unlink("test_options.resume");
}

static void flags_of_later_stages(void **state)
{
    Options options = parse("--bucket-cap-mb 0.5 --first-bucket-mb 0 --rebuild-buckets --find-unused-parameters", 3);
    assert_int_equal(options.ddp.bucket_cap_bytes, 512 * 1024);
    assert_int_equal(options.ddp.first_bucket_cap_bytes, 0);
    assert_true(options.ddp.rebuild_buckets && options.ddp.find_unused_parameters && !options.ddp.static_graph);
    options = parse("--static-graph", 3);
    assert_true(options.ddp.static_graph && options.ddp.find_unused_parameters);
    options = parse("--precision fp16 --loss-scale 8 --grad-dtype bf16", 4);
    assert_int_equal(options.precision, DTYPE_F16);
    assert_number(options.initial_loss_scale, 8);
    assert_string_equal(options.ddp.codec->name, "bf16");
    assert_number(parse("--precision fp16 --grad-dtype bf16", 4).initial_loss_scale, 1024);
    assert_number(parse("--precision fp16 --grad-dtype fp16", 4).initial_loss_scale, 16);
    assert_number(parse("--precision fp16 --grad-dtype fp16 --loss-scale 2048", 4).initial_loss_scale, 2048);
    assert_int_equal(parse("", 5).sharding.level, 2);
    assert_true(parse("", 5).sharding.bucket_per_layer);
    assert_false(parse("--bucket-cap-mb 1", 5).sharding.bucket_per_layer || parse("--first-bucket-mb 1", 5).sharding.bucket_per_layer);
    assert_int_equal(parse("--zero 3", 5).sharding.level, 3);
}

/* The word after --verify is optional, with or without '='. */
static void verify_takes_an_optional_word(void **state)
{
    assert_int_equal(parse("--verify", 1).verify, VERIFY_WHOLE_BATCH);
    assert_int_equal(parse("--verify --steps 3", 1).verify, VERIFY_WHOLE_BATCH);
    assert_int_equal(parse("--verify exact --steps 3", 1).verify, VERIFY_EXACT);
    Options options = parse("--verify=exact --steps 3", 1);
    assert_int_equal(options.verify, VERIFY_EXACT);
    assert_int_equal(options.steps, 3);
}

static void own_data_is_a_list(void **state)
{
    Options options = parse("--steps 2", 1);
    assert_int_equal(options.join, JOIN_NONE);
    assert_int_equal(options.rank_samples_count, 0);
    options = parse("--rank-samples 30,0,1000000000000 --join --steps 2", 1);
    assert_int_equal(options.rank_samples_count, 3);
    assert_int_equal(options.rank_samples[0], 30);
    assert_int_equal(options.rank_samples[1], 0);
    assert_int_equal(options.rank_samples[2], 1000000000000);
    assert_int_equal(options.join, JOIN_ACTUAL);
    assert_int_equal(parse("--rank-samples=7 --join", 1).rank_samples_count, 1);
    assert_int_equal(parse("--join initial --steps 2", 1).join, JOIN_INITIAL);
    assert_int_equal(parse("--join=initial --steps 2", 1).steps, 2);
}

/* The default of --lr depends on --optimizer: AdamW would diverge with SGD's. Of repeated flags, the last counts. */
static void the_optimizer_decides_on_the_rate(void **state)
{
    assert_number(parse("--model mlp --optimizer adamw", 1).lr, 1e-3f);
    assert_number(parse("--model mlp --optimizer adamw --lr 0.25", 1).lr, 0.25);
    assert_number(parse("--model mlp --optimizer adamw", 1).optimizer.momentum, 0);
    assert_number(parse("--lr 0.25 --lr 0.5", 1).lr, 0.5);
}

int main(void)
{
    return run_cases("options", cmocka_unit_test(mlp_is_the_default), cmocka_unit_test(each_model_has_its_defaults),
                     cmocka_unit_test(flags_of_the_model_reach_their_fields),
                     cmocka_unit_test(flags_of_the_update_reach_their_fields), cmocka_unit_test(resume_names_a_file),
                     cmocka_unit_test(flags_of_later_stages), cmocka_unit_test(verify_takes_an_optional_word),
                     cmocka_unit_test(own_data_is_a_list), cmocka_unit_test(the_optimizer_decides_on_the_rate));
}
