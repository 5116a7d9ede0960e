/* test_printed.c: what a run prints, to the letter: its progress, with a clock that the test sets, and its summary. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "expect.h"
#include "train/loop/evaluate.h"
#include "train/report/output.h"

/* ---- a clock that the test sets ---- */

static double now;

double __wrap_now_seconds(void);
double __wrap_now_seconds(void)
{
    return now;
}

/* ---- capturing stdout ---- */

static FILE *caught;
static int usual_stdout;

static void catch_stdout(void)
{
    fflush(stdout);
    caught = tmpfile();
    usual_stdout = dup(STDOUT_FILENO);
    CHECK(caught != NULL && usual_stdout >= 0 && dup2(fileno(caught), STDOUT_FILENO) >= 0, "cannot put stdout aside");
}

/* Returns only what has been flushed: a progress line in a buffer would appear too late. */
static void expect_printed(const char *expected)
{
    static char printed[4096];
    CHECK(dup2(usual_stdout, STDOUT_FILENO) >= 0, "cannot get stdout back");
    close(usual_stdout);
    rewind(caught);
    printed[fread(printed, 1, sizeof printed - 1, caught)] = '\0';
    fclose(caught);
    if (strcmp(printed, expected) != 0)
        fail_msg("expected:\n%s\ngot:\n%s", expected, printed);
}

/* ---- progress ---- */

static void step_at(Progress *progress, double time, long step)
{
    now = time;
    progress_step(progress, step, 1.5, 30, 0.5);
}

/* To a file: the first step, the last one, and one line per 5 %. The first step does not count for the time left. */
static void test_a_line_for_every_twentieth(void **state)
{
    Progress progress;
    now = 100;
    catch_stdout();
    progress_start(&progress, 0, 40, "samples");
    step_at(&progress, 105, 0); /* 30 samples in 5 s */
    step_at(&progress, 106, 1); /* 1 s per step, 38 steps: 30 samples in 1 s */
    step_at(&progress, 107, 2); /* no line: 5 % are 2 steps */
    step_at(&progress, 109, 3); /* 60 samples in 3 s, 36 steps at 4/3 s */
    step_at(&progress, 110, 39);
    progress_end(&progress);
    expect_printed("step 1/40, loss 1.5000, 6 samples/s\n"
                   "step 2/40, loss 1.5000, 30 samples/s, 38 s left\n"
                   "step 4/40, loss 1.5000, 20 samples/s, 48 s left\n"
                   "step 40/40, loss 1.5000, 30 samples/s\n");
}

/* Slow steps print a line every 10 s, and units of time fit the time left. A resumed run counts only its own steps. */
static void test_times_left(void **state)
{
    Progress progress;
    now = 0;
    catch_stdout();
    progress_start(&progress, 100, 2100, "tokens");
    step_at(&progress, 1, 100);
    step_at(&progress, 10.9, 101); /* no line: 9.9 s after the last one */
    step_at(&progress, 11, 102);   /* 5 s per step, 1997 to go */
    step_at(&progress, 11, 198);   /* no line: 99 of 2000 */
    step_at(&progress, 11, 199);   /* 5 %, at the same moment: 10 s for 99 steps, 1900 to go */
    step_at(&progress, 101, 1102); /* 100 s for 1002 steps, 997 to go */
    step_at(&progress, 401, 1302); /* 400 s for 1202 steps, 797 to go */
    step_at(&progress, 401, 1999); /* 95 %, at the same moment: 400 s for 1899 steps, 100 to go */
    expect_printed("step 101/2100, loss 1.5000, 30 tokens/s\n"
                   "step 103/2100, loss 1.5000, 6 tokens/s, 2 h 46 min left\n"
                   "step 200/2100, loss 1.5000, 0 tokens/s, 3 min 12 s left\n"
                   "step 1103/2100, loss 1.5000, 0 tokens/s, 1 min 40 s left\n"
                   "step 1303/2100, loss 1.5000, 0 tokens/s, 4 min 25 s left\n"
                   "step 2000/2100, loss 1.5000, 0 tokens/s, 21 s left\n");
}

/* On a terminal, a line overwrites the one before, ten times a second. progress_end() ends the last one. */
static void test_on_a_terminal(void **state)
{
    Progress progress;
    now = 0;
    catch_stdout();
    progress_start(&progress, 0, 1000, "samples");
    progress.terminal = true;
    step_at(&progress, 0, 0);
    step_at(&progress, 0.09, 500); /* too soon, whatever was done */
    step_at(&progress, 0.1, 501);  /* 60 samples in 0.1 s */
    progress_end(&progress);
    progress_end(&progress); /* no line is open */
    expect_printed("\rstep 1/1000, loss 1.5000, 0 samples/s\033[K"
                   "\rstep 502/1000, loss 1.5000, 600 samples/s, 0 s left\033[K\n");
}

static void test_several_ranks(void **state)
{
    Progress progress;
    now = 0;
    catch_stdout();
    job_set((Job){.rank = 0, .world_size = 2});
    progress_start(&progress, 0, 10, "samples");
    step_at(&progress, 2, 0);
    job_set((Job){.rank = 1, .world_size = 2});
    step_at(&progress, 3, 1); /* rank 0 prints */
    job_set((Job){.rank = 0, .world_size = 1});
    expect_printed("step 1/10, loss 1.5000, 15 samples/s, 25 % waiting for other ranks\n");
}

/* A line is due, and the evaluation's 4 seconds do not count for its speed. On a terminal the result stays. */
static void test_evaluated_in_between(void **state)
{
    Progress progress;
    now = 0;
    (void)state;
    catch_stdout();
    progress_start(&progress, 0, 100, "samples");
    step_at(&progress, 5, 0);
    now = 10;
    progress_evaluated(&progress, 2.25, 0.5, 4);
    step_at(&progress, 11, 1); /* 30 samples in 2 s */
    step_at(&progress, 12, 4);
    progress_evaluated(&progress, 2, (double)NAN, 0);
    progress.terminal = true;
    step_at(&progress, 13, 5);
    step_at(&progress, 14, 6);
    progress_end(&progress);
    expect_printed("step 1/100, loss 1.5000, 6 samples/s\n"
                   "step 2/100, loss 1.5000, 15 samples/s, on unseen data 2.2500, 50.00 % right, 9 min 48 s left\n"
                   "step 5/100, loss 1.5000, 30 samples/s, 2 min 46 s left\n"
                   "\rstep 6/100, loss 1.5000, 30 samples/s, on unseen data 2.0000, 2 min 30 s left\033[K"
                   "\rstep 7/100, loss 1.5000, 30 samples/s, on unseen data 2.0000, 2 min 20 s left\033[K\n");
}

/* A line describes all steps since the line before. */
static void test_waiting_adds_up(void **state)
{
    Progress progress;
    now = 0;
    catch_stdout();
    job_set((Job){.rank = 0, .world_size = 2});
    progress_start(&progress, 0, 40, "samples");
    step_at(&progress, 2, 0);
    step_at(&progress, 3, 1);
    step_at(&progress, 4, 2); /* no line is due; 0.5 s of waiting */
    step_at(&progress, 5, 3); /* and 0.5 s, of 2 */
    job_set((Job){.rank = 0, .world_size = 1});
    expect_printed("step 1/40, loss 1.5000, 15 samples/s, 25 % waiting for other ranks\n"
                   "step 2/40, loss 1.5000, 30 samples/s, 50 % waiting for other ranks, 38 s left\n"
                   "step 4/40, loss 1.5000, 30 samples/s, 50 % waiting for other ranks, 36 s left\n");
}

/* ---- the summary ---- */

/* json: has ' instead of ", so that it can be read here. */
static void print_summary(const char *json)
{
    char text[2048];
    snprintf(text, sizeof text, "%s", json);
    for (char *c = text; *c != '\0'; c++)
        *c = *c == '\'' ? '"' : *c;
    cJSON *summary = cJSON_Parse(text);
    CHECK(summary != NULL, "the test's own summary is no JSON: %s", text);
    catch_stdout();
    summary_print(summary);
    cJSON_Delete(summary);
}

/* The values that both runs share. */
#define RUN "'device':'cpu', 'parameters':2000, 'steps':30, " \
            "'first_loss':2.5, 'final_loss':0.25, 'step_ms':{'first':9, 'p50':4, 'p95':5}, " \
            "'forward_ms':1, 'backward_ms':1.5, 'optimizer_ms':0.5, 'data_ms':0.125, 'samples_per_s':16000, " \
            "'peak_rss_mb':50, 'weights_hash':'0000000000000abc', "
#define ALONE "'stage':1, 'stage_name':'naive', 'world_size':1, 'flags':{'model':'mlp', 'batch_size':64, " \
              "'precision':'fp32', 'tf32':false, 'grad_dtype':null, 'wire':null}, 'comm_ms':0, 'eval_loss':null, 'eval_bits_per_byte':null, " \
              "'eval_accuracy':null, 'tokens_per_s':null, 'warmup_steps_excluded':0, 'loss_scale':1, " \
              "'verify':null, 'memory':{'weights_mb':1, " \
              "'operands_mb':0, 'gradients_mb':3, 'optimizer_mb':4, 'activations_mb':5, 'base_mb':6}, "

#define HEAD_OF_SMALL "stage 1 (naive): mlp, 2000 parameters, 30 steps of 64 samples, 1 rank, cpu, fp32\n" \
                      "  loss        2.5000 -> 0.2500\n"
#define REST_OF_SMALL "  step        4.00 ms (median), 5.00 ms (95 %), 9.00 ms (first); 0 warm-up steps left out\n" \
                      "  parts       forward 1.00, backward 1.50, optimizer 0.50, data 0.12 ms\n" \
                      "  speed       16000 samples/s\n" \
                      "  memory      peak 50.0 MB per rank: weights 1.0, gradients 3.0, optimizer 4.0, " \
                      "activations 5.0, before the model 6.0\n" \
                      "  weights     0000000000000abc (hash)\n"

static void test_a_small_summary(void **state)
{
    print_summary("{" RUN ALONE "'steps_skipped':0}");
    expect_printed(HEAD_OF_SMALL REST_OF_SMALL);
    print_summary("{" RUN ALONE "'steps_skipped':1}");
    expect_printed(HEAD_OF_SMALL "  skipped     1 of 30 steps, because a gradient was not finite\n" REST_OF_SMALL);
}

/* stage: the number and name as in the JSON; collectives: what the summary calls them. */
static void check_a_full_summary(const char *stage, const char *head, const char *collectives)
{
    char json[2048], expected[2048];
    snprintf(json, sizeof json, "{%s, " RUN "'world_size':3, 'flags':{'model':'mlp', 'batch_size':64, "
             "'precision':'fp16', 'tf32':true, 'grad_dtype':'bf16', 'wire':[10, 50]}, "
             "'collectives_per_step':6, 'bytes_per_step':2.5e6, 'comm_ms':2, 'exposed_comm_ms':0.5, "
             "'comm_share':0.125, 'hidden_fraction':0.75, "
             "'tokens_per_s':512000, 'warmup_steps_excluded':3, 'eval_loss':1.3862943611, "
             "'eval_bits_per_byte':2, 'eval_accuracy':0.5, 'steps_skipped':2, 'loss_scale':1024, "
             "'memory':{'weights_mb':1, 'operands_mb':2, 'gradients_mb':3, 'optimizer_mb':4, "
             "'activations_mb':5, 'base_mb':6}, 'verify':{'mode':'exact', 'max_abs_diff':0.5, "
             "'worst_parameter':'fc1.weight', 'passed':false}}", stage);
    snprintf(expected, sizeof expected,
             "%s: mlp, 2000 parameters, 30 steps of 64 samples, 3 ranks, cpu, fp16 (TF32)\n"
             "  loss        2.5000 -> 0.2500; on unseen data 1.3863 nats, 2.0000 bits per byte, 50.00 %% right\n"
             "  skipped     2 of 30 steps, because gradients overflowed; loss scale is 1024 now\n"
             "  step        4.00 ms (median), 5.00 ms (95 %%), 9.00 ms (first); 3 warm-up steps left out\n"
             "  parts       forward 1.00, backward 1.50, optimizer 0.50, data 0.12 ms\n"
             "  speed       16000 samples/s, 512000 tokens/s\n"
             "  %s 6 per step, 2.500 MB in bf16, 2.00 ms in flight, 0.50 ms exposed "
             "(12.5 %% of the step): 75 %% hidden\n"
             "  link        emulated: 10 Gbit/s, 50 us\n"
             "  memory      peak 50.0 MB per rank: weights 1.0, rounded weights 2.0, gradients 3.0, "
             "optimizer 4.0, activations 5.0, before the model 6.0\n"
             "  weights     0000000000000abc (hash)\n"
             "  verify      exact: largest difference 0.5 in fc1.weight: FAILED\n", head, collectives);
    print_summary(json);
    expect_printed(expected);
}

static void test_a_full_summary(void **state)
{
    check_a_full_summary("'stage':4, 'stage_name':'accumulation'", "stage 4 (accumulation)", "all-reduce ");
    check_a_full_summary("'stage':5, 'stage_name':'sharded'", "stage 5 (sharded)", "collectives");
}

/* ---- generated text ---- */

static void expect_text(const char *bytes, size_t count, const char *expected)
{
    TextOutput text = {0};
    catch_stdout();
    for (size_t i = 0; i < count; i++)
        text_print_byte(&text, (unsigned char)bytes[i]);
    fflush(stdout);
    expect_printed(expected);
}

static void test_text_in_any_language(void **state)
{
    expect_text("a\tb\n~", 5, "a\tb\n~");
    expect_text("caf\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x99\x82.", 15, "caf\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x99\x82.");
}

/* A terminal must not get what it would carry out, or what is no UTF-8. */
static void test_other_bytes_become_question_marks(void **state)
{
    expect_text("\x1b[31m\r\0\x7f", 8, "?[31m???");
    expect_text("\xc2\x9b" "31m \xc2\xa0", 8, "??31m \xc2\xa0"); /* a control character of two bytes, and a space */
    expect_text("\xff\xa9x\xc3zy\xe4\xb8 ", 9, "??x?zy?? ");
    expect_text("\xf0\x9f\x99\xc3\xa9", 5, "???\xc3\xa9"); /* cut off, then a whole one */
    expect_text("\xf4\x90\x80\x80", 4, "????"); /* beyond the last character */
}

static void test_an_incomplete_end_is_left_out(void **state)
{
    expect_text("ab\xc3", 3, "ab");
    expect_text("ab\xe4\xb8", 4, "ab");
    expect_text("ab\xf0\x9f\x99", 5, "ab");
    expect_text("ab\xf0\x9f\x99\x82", 6, "ab\xf0\x9f\x99\x82");
}

int main(void)
{
    return run_cases("printed", cmocka_unit_test(test_a_line_for_every_twentieth), cmocka_unit_test(test_times_left),
                     cmocka_unit_test(test_on_a_terminal), cmocka_unit_test(test_several_ranks),
                     cmocka_unit_test(test_waiting_adds_up), cmocka_unit_test(test_evaluated_in_between),
                     cmocka_unit_test(test_a_small_summary),
                     cmocka_unit_test(test_a_full_summary), cmocka_unit_test(test_text_in_any_language),
                     cmocka_unit_test(test_other_bytes_become_question_marks),
                     cmocka_unit_test(test_an_incomplete_end_is_left_out));
}
