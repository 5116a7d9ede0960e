#!/usr/bin/env bash
# test_report.sh TRAIN [MPIEXEC]: what a run prints about itself: its first lines, and the settings and sizes in its
# summary, which follow from the flags. TRAIN: stage 4's. (More of the summary: test_stats.c, test_printed.c.)
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
train=$1 mpiexec=${2:-mpiexec}

# run RANKS ARGUMENTS...: trains the toy model, of 740 parameters. In buckets each begins at a multiple of
# 64 bytes: 784 numbers.
run() {
    local ranks=$1
    shift
    # shellcheck disable=SC2086 # MPIEXEC_FLAGS is a list
    timeout -k 2 60 "$mpiexec" ${MPIEXEC_FLAGS:-} -n "$ranks" "$train" --model mlp-toy "$@" --json "$scratch/json" \
        >"$scratch/out" 2>"$scratch/err" || fail "$*: ended with status $?: $(head -n 3 "$scratch/err")"
}

# begins LINE...: compares the first lines exactly.
begins() {
    printf '%s\n' "$@" >"$scratch/expected"
    head -n $# "$scratch/out" | sed 's/, cpu, OpenBLAS.*/, cpu/' | diff "$scratch/expected" - >"$scratch/diff" ||
        fail "the first lines differ: $(cat "$scratch/diff")"
}

# says JQ-CONDITION...: the summary fulfils them.
says() {
    for condition in "$@"; do
        jq -e "$condition" "$scratch/json" >/dev/null ||
            fail "the summary does not fulfil $condition: $(jq -c "${condition%% *}" "$scratch/json")"
    done
}

run 2 --steps 6 --batch-size 20 --accumulate 2 --optimizer adamw --wire 10,50 --first-bucket-mb 0.0009765625 \
    --bucket-cap-mb 2 --allreduce ring --verify
begins 'stage 4 (accumulation): mlp-toy, 740 parameters, 2 rank(s) over mpi, sums by ring, cpu' \
    'data: random numbers, 1000 samples; steps 0 to 5 of 20 samples in 2 micro-batch(es) per rank' \
    'link: emulated, 10 Gbit/s and 50 us'
says '.stage == 4' '.world_size == 2' '.steps == 6' '.allreduce == "ring"' '.parameters == 740' '.buckets == 2' \
    '.collectives_per_step == 2' '.bytes_per_step == 3136' '.wire_bytes_per_step == 3136' \
    '.memory.weights_mb == 0.00296' '.memory.gradients_mb == 0.003136' '.memory.optimizer_mb == 0.00592' \
    '.memory.operands_mb == 0' '.verify.mode == "whole-batch"' '.verify.passed' '.loss_scale == 1'
says '.flags.batch_size == 20' '.flags.first_bucket_mb == 0.0009765625' '.flags.wire == [10,50]' \
    '.flags.optimizer == "adamw"' '.flags.lr == 0.001' '.flags.zero == null' # more kinds: test_options.c

run 2 --steps 3 --rank-samples 205,77 --batch-size 40 --join --precision bf16 --grad-dtype bf16 --momentum 0 \
    --verify exact --allreduce ordered
emulated=' (emulated)' operands_mb=0.0028
if head -n 1 "$scratch/out" | grep -q oneDNN; then emulated='' operands_mb=0.0014; fi # 16 bits each
begins 'stage 4 (accumulation): mlp-toy, 740 parameters, 2 rank(s) over mpi, sums by ordered, cpu' \
    'data: random numbers, 1000 samples; steps 0 to 2 of 40 samples in 1 micro-batch(es) per rank' \
    'own data: samples 205, 77 on ranks 0 to 1; steps per epoch 11, 4; a rank without data '"\
continues with empty batches; sums are divided by the step's samples" \
    "precision: operands of matrix products rounded to bfloat16$emulated, sums in float32" \
    'gradients: sent in bf16, added in float32 and in rank order by ordered'
says '.flags.rank_samples == [205,77]' '.flags.join' '.flags.precision == "bf16"' '.flags.verify == "exact"' \
    '.bytes_per_step == 1568' '.memory.gradients_mb == 0.004704' '.memory.optimizer_mb == 0' \
    ".memory.operands_mb == $operands_mb" '.verify.mode == "exact"' '.verify.max_abs_diff == 0' '.flags.wire == null'

# Every key; values that this run does not have are null.
keys=$(jq -r 'keys | join(" ")' "$scratch/json")
expected="allreduce backend backward_ms buckets bytes_per_step collectives_per_step comm_ms comm_share data_ms device \
eval_accuracy eval_bits_per_byte eval_loss evaluations exposed_comm_ms final_loss first_loss first_step_ms flags \
forward_ms hidden_fraction loss_scale memory norm_collectives_per_step optimizer_ms parameters peak_rss_mb ranks samples_per_s stage \
stage_name step_ms steps steps_skipped tokens_per_s verify warmup_steps_excluded weights_hash wire_bytes_per_step world_size"
# All flags of --help are there, and those that stage 4 lacks.
flags=$({ "$train" --help; printf '  --%s\n' zero shard-ranks; } | sed -n 's/^  --\([a-z0-9-]*\).*/\1/p' |
    grep -v -x help | tr - _ | sort -u)
diff <(jq -r '.flags | keys[]' "$scratch/json") <(echo "$flags") >"$scratch/diff" ||
    fail "the summary's flags (<) are not those of --help (>): $(cat "$scratch/diff")"
[ "$keys" = "$expected" ] || fail "the keys of the summary are $keys, expected $expected"
[ -z "$(tail -c 1 "$scratch/json")" ] || fail "the summary's last line has no end"
says '.eval_accuracy == null' '.evaluations == null' '.eval_bits_per_byte == null' '.tokens_per_s == null' '.memory.base_mb > 0' \
    '.memory.activations_mb > 0' '.peak_rss_mb > .memory.base_mb' '.first_step_ms.step > 0' \
    '(.weights_hash | length) == 16' '.ranks | length == 2 and all(.step_ms > .data_ms + .exposed_comm_ms)' \
    '.ranks[0] == {step_ms: .step_ms.p50, forward_ms, data_ms, exposed_comm_ms}' \
    'all(.ranks[]; .forward_ms > 0 and .forward_ms < .step_ms)'

finish
