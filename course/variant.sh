#!/usr/bin/env bash
# variant.sh: rewrites files as variant SEED of an assignment has them: other names for functions of the stages'
# interface, and for odd seeds another meaning of a flag. A copy of a solution to another variant does not compile, or
# trains wrong weights. make_starter.sh --variant SEED rewrites the whole starter; an instructor can rewrite a solution.
#
# usage: course/variant.sh SEED FILE...      SEED: a number from 1 on
set -eu
export LC_ALL=C
case ${1-} in '' | *[!0-9]* | 0*) sed -n '6s/^# //p' "$0" >&2 && exit 2 ;; esac
seed=$1
shift

# name ALTERNATIVE...: the first name becomes one of the alternatives, or stays.
digit=0
name() {
    local -a names=("$@")
    digit=$((digit + 1))
    # A hash of seed and place, so that two seeds differ in most names.
    local chosen=${names[$((($(cksum <<<"$seed $digit" | cut -d ' ' -f 1)) % $#))]}
    printf 's/(\\b|__wrap_|__real_)%s\\b/\\1%s/g\n' "$1" "$chosen" # the last two: tests/stages/untouched.c
}

# last_micro_batch becomes its opposite, more_follow: the calls, the parameter, and what ddp.h says.
other_meaning() {
    cat <<'END'
s/ddp_before_forward\(ddp, last\)/ddp_before_forward(ddp, others follow)/
s/last_micro_batch: it is the last one of its step, so/more_follow: others of its step follow. If not,/
s/^( *ddp_before_forward\([^,]+, )(.*)\);$/\1!(\2));/
s/bool last_micro_batch\)/bool more_follow)/
s/\(void\)last_micro_batch/(void)more_follow/
s/= last_micro_batch;/= !more_follow;/
s/!last_micro_batch &&/more_follow \&\&/
END
}

script=$(
    if [ $((seed % 2)) -eq 1 ]; then other_meaning; fi
    name ddp_after_backward ddp_end_backward ddp_finish_gradients ddp_reduce_gradients
    name ddp_before_backward ddp_begin_backward ddp_prepare_backward ddp_loss_is_known
    name ddp_before_forward ddp_begin_micro_batch ddp_next_micro_batch ddp_prepare_forward
    name buckets_plan buckets_assign buckets_by_size buckets_divide
    name ddp_after_update ddp_weights_are_new ddp_publish_update ddp_end_update
    name gradient_scale mean_factor grad_factor factor_of_the_mean
    name launch_ready_buckets start_full_buckets send_full_buckets launch_full_buckets
    name mark_unused_parameters mark_what_is_unused announce_unused unused_are_ready
    name rebuild_buckets reorder_buckets buckets_by_readiness renew_buckets
    name finish_launched finish_those_sent finish_earlier finish_in_order
)
sed -E -i "$script" -- "$@"
