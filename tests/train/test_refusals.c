/* test_refusals.c: command lines with a mistake. Each must end the program of each stage with status 2 and a line that
 * begins with "train: error: " and names the flag. (test_cli.sh types a few of them to the real programs.) */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint_run.h"
#include "command_line.h"
#include "expect.h"

enum { LAST_STAGE = 5, MOST_VALUES = 16 };

/* In a child process. The failure's message is what it prints, so that comes first: which line was tried. */
static void parse_in_child(void *argument)
{
    Words *words = argument;
    Options options;
    fprintf(stderr, "stage %d:", words->stage);
    for (int i = 0; i < words->count; i++)
        fprintf(stderr, " '%s'", words->list[i]);
    fprintf(stderr, "\n");
    options_parse(&options, words->count, words->list, words->stage);
}

/* line: cut at its spaces; last: one word more, which may have spaces, or NULL. */
static void refused(int stage, const char *line, const char *last, const char *message)
{
    Words words;
    char expected[256];
    words_split(&words, line, stage);
    if (last != NULL)
        words.list[words.count++] = (char *)last;
    snprintf(expected, sizeof expected, "\ntrain: error: %s", message);
    expect_dies(parse_in_child, &words, 2, expected);
}

/* The same from stage `first` on. The message is "--FLAG: ", and then what is said of the value. */
static void refused_value(int first, const char *before, const char *flag, const char *value, const char *said)
{
    char line[256], message[128];
    snprintf(line, sizeof line, "%s --%s", before, flag);
    snprintf(message, sizeof message, "--%s: %s", flag, said);
    for (int stage = first; stage <= LAST_STAGE; stage++)
        refused(stage, line, value, message);
}

/* ---- words ---- */

static void test_words_that_are_no_flags(void **state)
{
    static const char *const lines[][2] = {
        {"--no-such-flag", "--no-such-flag: no such flag; --help lists all"},
        {"--no-such-flag=3", "--no-such-flag: no such flag"},
        {"--mod mlp", "--mod: no such flag; flags cannot be shortened: is it --model?"},
        {"--step 3", "--step: no such flag; flags cannot be shortened: is it --steps?"},
        {"--boot=1", "--boot: no such flag"},
        {"--s 3", "--s: no such flag"},
        {"--", "--: no such flag"},
        {"-- stray", "--: no such flag"},
        {"-m mlp", "'-m': not a flag"},
        {"-model mlp", "'-model': not a flag"},
        {"--model mlp stray", "'stray': not a flag"},
        {"--drop-last stray", "'stray': not a flag"},
        {"--drop-last=yes", "--drop-last: takes no value"},
        {"--same-init=1", "--same-init: takes no value"},
        {"--debug-collectives=yes", "--debug-collectives: takes no value"},
        {"--binary-data=yes", "--binary-data: takes no value"},
        {"--share-gpu=yes", "--share-gpu: takes no value"},
        {"--tf32=yes", "--tf32: takes no value"},
        {"--help=all", "--help: takes no value"},
    };
    for (int stage = 1; stage <= LAST_STAGE; stage++) {
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
            refused(stage, lines[i][0], NULL, lines[i][1]);
        refused(stage, "", "", "'': not a flag");
    }
}

static void test_values_that_are_missing(void **state)
{
    static const char *const all[] = {"model", "hidden", "activation", "norm", "layers", "heads", "width", "context",
        "data", "mask-tokens", "dropout", "skip-layer", "steps", "epochs", "batch-size", "rank-samples", "seed",
        "optimizer", "lr", "lr-schedule", "warmup-steps", "momentum", "weight-decay", "clip-grad-norm", "precision",
        "threads", "backend", "allreduce", "ranks-per-host", "wire", "timeout", "check-every", "on-nan",
        "eval-samples", "eval-every", "save", "save-every", "save-best", "resume", "generate", "log", "log-every",
        "trace", "json", "flight-recorder"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        refused_value(1, "", all[i], NULL, "needs a value");
        refused_value(1, "", all[i], "--drop-last", "needs a value, but --drop-last follows");
        refused_value(1, "", all[i], "", "its value is empty");
    }
    for (int stage = 1; stage <= LAST_STAGE; stage++) {
        refused(stage, "--model=", NULL, "--model: its value is empty");
        refused(stage, "--verify=", NULL, "--verify: its value is empty");
        refused(stage, "--join=", NULL, "--join: its value is empty");
    }
}

static void test_choices_that_do_not_exist(void **state)
{
    static const char *const all[] = {"model", "activation", "norm", "optimizer", "lr-schedule", "precision", "backend",
        "allreduce", "on-nan", "verify", "join"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        refused_value(1, "", all[i], "nonsense", "'nonsense' is unknown; the choices are: ");
    refused_value(1, "", "model", "MLP", "'MLP' is unknown; the choices are: ");
    refused_value(1, "", "model", "two\nlines", "'two?lines' is unknown; the choices are: ");
    refused_value(4, "", "grad-dtype", "int4", "'int4' is unknown; the choices are: ");
    refused_value(5, "", "zero", "4", "'4' is unknown; the choices are: ");
}

/* ---- numbers ---- */

#define HUGE_NUMBER "99999999999999999999"

static void test_numbers(void **state)
{
    static const struct {
        int first; /* stage */
        const char *before, *flags[8], *values[MOST_VALUES];
    } rows[] = {
        {1, "--model mlp-toy", {"steps", "epochs", "batch-size", "threads"},
         {"0", "-1", "1.5", "1e3", "12x", "", " 5", "x", "nan", HUGE_NUMBER}},
        {1, "--model mlp-toy", {"seed", "check-every", "eval-samples", "eval-every", "warmup-steps", "save-every"},
         {"-1", "1.5", "12x", "nan", HUGE_NUMBER}},
        {1, "--model gpt", {"layers", "heads", "width", "context", "generate"},
         {"-1", "1.5", "12x", "nan", HUGE_NUMBER}},
        {1, "--model gpt", {"layers", "heads"}, {"0"}},
        {1, "--model mlp-toy",
         {"mask-tokens", "dropout", "lr", "momentum", "weight-decay", "clip-grad-norm", "timeout"},
         {"-1", "nan", "inf", "1e999", "1e-400", "0.1x", "0,1", "x", "0.1 ", "0x10"}},
        {1, "--model mlp-toy", {"lr", "timeout"}, {"0"}},
        {1, "--model mlp-toy", {"momentum"}, {"1"}},
        {1, "--model gpt", {"mask-tokens", "dropout"}, {"1"}},
        {1, "--model gpt", {"skip-layer"}, {"-1"}},
        {1, "--model mlp", {"hidden"}, {"512", "512,", ",512", "512,0", "512,512,512", "512x512", "512,x"}},
        {1, "--model mlp-toy", {"rank-samples"},
         {"5,", ",5", "-5", "5,-5", "5,x", "5,,5", "1.5", "5, 5", "nan", HUGE_NUMBER, "1e3"}},
        {1, "--model mlp-toy", {"wire"},
         {"1", "1,", ",1", "0,10", "-1,10", "9e-7,10", "1e-300,0", "1,-1", "nan,1", "1,inf", "1,2,3"}},
        {1, "--model mlp-toy --log file", {"log-every"}, {"0"}},
        {2, "--model mlp-toy", {"bucket-cap-mb", "first-bucket-mb"}, {"-1", "nan", "inf", "x", "1x"}},
        {4, "--model mlp-toy", {"accumulate"}, {"", "0", "-1", "1.5", "1e3", "12x", "nan", HUGE_NUMBER}},
        {4, "--model mlp-toy --precision fp16", {"loss-scale"}, {"0", "-1", "nan", "inf", "x"}},
        {4, "--model mlp-toy --grad-dtype powersgd", {"powersgd-rank"}, {"0"}},
    };
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
        for (int f = 0; rows[row].flags[f] != NULL; f++)
            for (int v = 0; rows[row].values[v] != NULL; v++)
                refused_value(rows[row].first, rows[row].before, rows[row].flags[f], rows[row].values[v],
                              "");
}

/* 0 often means "never": a number that is too near to 0 is not taken for it, whatever the flag. */
static void test_numbers_do_not_become_zero(void **state)
{
    static const struct {
        const char *flag;
        bool zero_is_in_range;
    } rows[] = {{"--model gpt --mask-tokens ", true}, {"--lr ", false}, {"--momentum ", true},
        {"--weight-decay ", true}, {"--clip-grad-norm ", true}, {"--precision fp16 --loss-scale ", false}, {"--wire 1,", true},
        {"--timeout ", false}, {"--bucket-cap-mb ", true}, {"--first-bucket-mb ", true}};
    static const char *const numbers[] = {"1e-400", "0.01e-400", "1e-42", "-1e-400", "4e-46", "1.1754e-38"};
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++) {
            char line[100];
            Words words;
            snprintf(line, sizeof line, "%s%s", rows[row].flag, numbers[n]);
            words_split(&words, line, 4);
            expect_dies(parse_in_child, &words, 2, rows[row].zero_is_in_range ? "is too near to 0 for float32"
                                                                              : "is not a number from");
        }
    }
    refused(1, "--wire 1e-400,5", NULL, "--wire: '1e-400,5' is too near to 0");
    assert_true(parse("--clip-grad-norm 0e5 --weight-decay 0.000", 1).clip_grad_norm == 0);
    assert_true(parse("--clip-grad-norm 1.2e-38", 1).clip_grad_norm == 1.2e-38);
    assert_true(parse("--wire 1,0", 1).group.wire_latency == 0);
}

/* ---- flags that are right by themselves ---- */

typedef struct Mistake {
    int first, last; /* stages */
    const char *line, *message;
} Mistake;

static void expect_mistakes(const Mistake *mistakes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (int stage = mistakes[i].first; stage <= mistakes[i].last; stage++)
            refused(stage, mistakes[i].line, NULL, mistakes[i].message);
}

static void test_flags_that_do_not_go_together(void **state)
{
    static const Mistake mistakes[] = {
        {1, 5, "--model mlp-toy --steps 1 --epochs 1", "--epochs: not together with --steps"},
        {1, 5, "--model gpt --hidden 8,8", "--hidden: not for model gpt"},
        {1, 5, "--model gpt --activation relu", "--activation: not for model gpt"},
        {1, 5, "--model gpt --norm batch", "--norm: not for model gpt"},
        {1, 5, "--model mlp --layers 2", "--layers: not for model mlp; --model gpt and gpt2 have it"},
        {1, 5, "--model mlp-toy --context 8", "--context: not for model mlp-toy"},
        {1, 5, "--model mlp --generate 10", "--generate: not for model mlp"},
        {1, 5, "--recompute", "--recompute: not for model mlp; --model gpt and gpt2 have it"},
        {1, 5, "--mask-tokens 0.5", "--mask-tokens: not for model mlp; --model gpt and gpt2 have it"},
        {1, 5, "--binary-data", "--binary-data: not for model mlp; --model gpt and gpt2 have it"},
        {1, 5, "--model gpt2 --generate 5", "--generate: writes bytes, and gpt2 has a vocabulary of 50257 tokens"},
        {1, 5, "--model gpt --width 10 --heads 4", "--heads: 4 heads cannot share a width of 10"},
        {1, 5, "--model mlp-toy --data file", "--data: model mlp-toy trains on random numbers"},
        {1, 5, "--model gpt --momentum 0.9", "--momentum: only --optimizer sgd has it"},
        {1, 5, "--model mlp-toy --steps 5 --warmup-steps 6", "--warmup-steps: 6 is more than the run's 5 steps"},
        {1, 5, "--model mlp-toy --save-every 5", "--save-every: needs --save"},
        {1, 5, "--model mlp-toy --save-best file", "--save-best: needs --eval-every"},
        {1, 5, "--model mlp-toy --log-every 5", "--log-every: needs --log"},
        {1, 5, "--model mlp-toy --join --drop-last", "--drop-last: not together with --join"},
        {1, 5, "--model gpt --mask-tokens 0.5 --join initial", "--mask-tokens: not together with --join initial"},
        {1, 4, "--model gpt --layers 2 --skip-layer 3", "--skip-layer: the model has only 2 block(s)"},
        {1, 5, "--skip-layer 1", "--skip-layer: of an MLP only layer 2 can be left out"},
        {1, 5, "--model mlp-toy --skip-layer 3", "--skip-layer: of an MLP only layer 2 can be left out"},
        {1, 5, "--skip-layer 2 --hidden 8,9", "--skip-layer: of an MLP only layer 2 can be left out"},
        {5, 5, "--model gpt --zero 3 --skip-layer 1", "--skip-layer: leaves parameters unused, which --zero 3"},
        {1, 5, "--ranks-per-host 2", "--ranks-per-host: needs --allreduce hierarchical"},
        {1, 5, "--backend nccl", "--backend: nccl carries GPU memory only and needs train_cuda"},
        {1, 5, "--share-gpu", "--share-gpu: this program computes on the CPU, which ranks share anyway"},
        {1, 5, "--tf32", "--tf32: this program computes on the CPU, which has no TF32; it is for train_cuda"},
        {4, 5, "--loss-scale 1024", "--loss-scale: only --precision fp16 needs it"},
        {4, 5, "--powersgd-rank 2", "--powersgd-rank: needs --grad-dtype powersgd"},
        {4, 4, "--grad-dtype powersgd --precision fp16", "--grad-dtype: powersgd keeps a part of the gradients"},
        {4, 4, "--grad-dtype powersgd --find-unused-parameters", "--grad-dtype: powersgd sends a message for each"},
        {5, 5, "--grad-dtype powersgd", "--grad-dtype: powersgd needs all gradients of a matrix on each rank"},
        {4, 5, "--grad-dtype noop --verify exact", "--verify: with --grad-dtype noop each rank trains by itself"},
        {4, 5, "--grad-dtype noop --check-every 1", "--check-every: with --grad-dtype noop"},
        {5, 5, "--zero 3 --find-unused-parameters", "--find-unused-parameters: not with --zero 3"},
        {5, 5, "--zero 3 --static-graph", "--static-graph: not with --zero 3"},
        {5, 5, "--shard-ranks 1 --allreduce hierarchical", "--shard-ranks: adds within groups first"},
    };
    expect_mistakes(mistakes, sizeof mistakes / sizeof *mistakes);
}

/* The message names the stage to take. */
static void test_flags_of_later_stages(void **state)
{
    static const Mistake mistakes[] = {
        {1, 1, "--bucket-cap-mb 3", "--bucket-cap-mb: stage 1 (naive) has no buckets: take stage2_bucketed"},
        {1, 1, "--first-bucket-mb 1", "--first-bucket-mb: stage 1 (naive) has no buckets: take stage2_bucketed"},
        {1, 3, "--accumulate 2", "--accumulate: stage "},
        {2, 2, "--rebuild-buckets", "--rebuild-buckets: stage 2 (bucketed) has no "},
        {1, 1, "--find-unused-parameters", "--find-unused-parameters: stage 1 (naive) has no "},
        {1, 1, "--static-graph", "--static-graph: stage 1 (naive) has no "},
        {3, 3, "--precision bf16", "--precision: stage 3 (overlap) computes in fp32; stage4_accumulation has bf16"},
        {1, 1, "--precision fp16", "--precision: stage 1 (naive) computes in fp32; stage4_accumulation has fp16"},
        {1, 3, "--grad-dtype bf16", "--grad-dtype: stage "},
        {1, 3, "--loss-scale 1024", "--loss-scale: stage "},
        {4, 4, "--zero 3", "--zero: stage 4 (accumulation) has no sharding: take stage5_sharded"},
        {5, 5, "--rebuild-buckets", "--rebuild-buckets: not in stage 5"},
        {3, 5, "--rebuild-buckets=yes", "--rebuild-buckets: takes no value"},
        {3, 5, "--find-unused-parameters=yes", "--find-unused-parameters: takes no value"},
        {3, 5, "--static-graph=yes", "--static-graph: takes no value"},
    };
    expect_mistakes(mistakes, sizeof mistakes / sizeof *mistakes);
}

/* ---- files: the tests run in a directory of their own ---- */

static const struct {
    const char *before, *flag;
} outputs[] = {{"", "save"}, {"--eval-every 1", "save-best"}, {"", "log"}, {"", "trace"}, {"", "json"},
               {"", "flight-recorder"}};
enum { OUTPUTS = sizeof outputs / sizeof *outputs };

static void make_link(const char *target, const char *name)
{
    assert_int_equal(symlink(target, name), 0);
}

static void test_files_that_cannot_be_written(void **state)
{
    static const char *const paths[] = {"absent/file", "directory", "file/below", "dangling", "loop1", "to_proc",
                                        "to_directory", "pipe", "/dev/null"};
    write_file("file", "mine", 4);
    assert_int_equal(mkdir("directory", 0700), 0);
    make_link("absent/file", "dangling");
    make_link("loop2", "loop1");
    make_link("loop1", "loop2");
    make_link("/proc/version", "to_proc"); /* not even root may create a file beside it */
    make_link("directory", "to_directory");
    assert_int_equal(mkfifo("pipe", 0600), 0);
    for (int i = 0; i < OUTPUTS; i++) {
        for (size_t p = 0; p < sizeof paths / sizeof *paths; p++) {
            char line[128], message[128];
            snprintf(line, sizeof line, "%s --%s", outputs[i].before, outputs[i].flag);
            snprintf(message, sizeof message, "--%s %s: cannot be written: ", outputs[i].flag, paths[p]);
            refused(1, line, paths[p], message);
        }
    }
    struct stat pipe, null;
    assert_true(stat("pipe", &pipe) == 0 && S_ISFIFO(pipe.st_mode)); /* they are not replaced by files */
    assert_true(stat("/dev/null", &null) == 0 && S_ISCHR(null.st_mode));
}

/* An output must not replace another one, or an input, under any of its names. */
static void test_one_file_for_two_purposes(void **state)
{
    static const Mistake mistakes[] = {
        {1, 1, "--save same --json ./same", "--json: ./same is also the file of --save"},
        {1, 1, "--save same --trace ./same", "--trace: ./same is also the file of --save"},
        {1, 1, "--trace same --json ./same", "--json: ./same is also the file of --trace"},
        {1, 1, "--json same --flight-recorder same", "--flight-recorder: same is also the file of --json"},
        {1, 1, "--save same --json directory/../same", "--json: directory/../same is also the file of --save"},
        {1, 1, "--save to_new --json new", "--json: new is also the file of --save"},
        {1, 1, "--resume absent", "--resume: cannot read absent"},
        {1, 1, "--resume directory", "--resume: directory is not a file"},
        {1, 1, "--resume old --save old --verify", "--save: old is the file of --resume, which --verify reads again"},
        {1, 1, "--resume old --save ./old --verify exact", "--save: ./old is the file of --resume"},
        {1, 1, "--resume old --json old", "--json: old is the file of --resume"},
        {1, 1, "--resume old --json to_old", "--json: to_old is the file of --resume"},
        {1, 1, "--resume old --trace ./old --verify", "--trace: ./old is the file of --resume"},
    };
    static const char *const data[][2] = { /* --data, the file; the last three would be read in the next run */
        {"--model gpt --data new", "to_new"},
        {"--model mlp --data directory/.", "directory/train-images-idx3-ubyte"},
        {"--model mlp --data directory/.", "directory/t10k-labels-idx1-ubyte"},
        {"--model mlp --data directory/.", "directory/train-labels-idx1-ubyte.gz"},
        {"--model mlp --data directory/.", "directory/t10k-images.idx3-ubyte"},
        {"--model mlp --data directory/.", "directory/train-labels.idx1-ubyte.gz"},
    };
    assert_int_equal(mkdir("directory", 0700), 0);
    write_file("new", "", 0);
    write_file("old", "", 0);
    make_link("new", "to_new");
    make_link("old", "to_old");
    expect_mistakes(mistakes, sizeof mistakes / sizeof *mistakes);
    for (size_t d = 0; d < sizeof data / sizeof *data; d++) {
        for (int i = 0; i < OUTPUTS; i++) {
            char line[128], message[128];
            snprintf(line, sizeof line, "%s %s --%s", data[d][0], outputs[i].before, outputs[i].flag);
            snprintf(message, sizeof message, "--%s: %s is a file of --data", outputs[i].flag, data[d][1]);
            refused(1, line, data[d][1], message);
        }
    }
    parse("--save file --json directory/file", 1); /* two files of one name */
    parse("--model mlp --data directory --json directory/file", 1);
    parse("--resume old --save old", 1);
    parse("--resume old --save new --verify", 1);
}

static int enter_directory(void **state)
{
    return checkpoint_tests_start(state) || chdir(test_path("")) != 0;
}

static int remove_directories(void **state)
{
    rmdir(test_path("directory"));
    return checkpoint_tests_end(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_that_are_no_flags),
        cmocka_unit_test(test_values_that_are_missing),
        cmocka_unit_test(test_choices_that_do_not_exist),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_numbers_do_not_become_zero),
        cmocka_unit_test(test_flags_that_do_not_go_together),
        cmocka_unit_test(test_flags_of_later_stages),
        cmocka_unit_test_setup_teardown(test_files_that_cannot_be_written, enter_directory, remove_directories),
        cmocka_unit_test_setup_teardown(test_one_file_for_two_purposes, enter_directory, remove_directories),
    };
    return cmocka_run_group_tests_name("refusals", tests, NULL, NULL);
}
