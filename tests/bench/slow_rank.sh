#!/usr/bin/env bash
# slow_rank.sh FLAG...: $TRAIN, each rank on a core, for diagnose_planted.sh; rank 1 shares its core with a busy loop, as
# long as it lives (a zombie, for which the launcher may wait, has no exe).
rank=${PMI_RANK:-0}
if [ "$rank" = 1 ]; then
    taskset -c 1 bash -c 'while [ -e /proc/"$1"/exe ]; do for _ in {1..10000}; do :; done; done' busy $$ >/dev/null 2>&1 &
fi
exec taskset -c "$rank" "$TRAIN" "$@"
