#!/usr/bin/env bash
# attack.sh TRAIN MPIEXEC [KILLS [PAIRS [FILES]]]: many attacks on runs (default: 300 200 500).
#   KILLS  kill -9 of a rank, of its parent, of the launcher's process on this host (the proxy), of the launcher, or of
#          the last two, at a random moment between the first millisecond and the end. All processes must be gone within
#          --timeout and 10 s, and after the next run no unfinished file may be left.
#   PAIRS  two runs save to one file at the same time. In the end it must be exactly the last file of one of them.
#   FILES  a checkpoint with one to three random bytes changed. It must be refused, or load with the same weights.
# SEED: seeds the random numbers (default 1). The script kills only its own descendants. It needs MPICH's launcher.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
export LC_ALL=C
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../stages/processes.sh"
train=$(realpath "$1") mpiexec=${2:-mpiexec} kills=${3:-300} pairs=${4:-200} files=${5:-500}
timeout=5            # --timeout of the attacked runs
allowed=$((timeout + 10))
mark=$$              # an argument of every program that is started here
RANDOM=${SEED:-1}
cd "$scratch" || exit 1

milliseconds() {
    echo $(($(date +%s%N) / 1000000))
}

# gone_within SECONDS PROCESS...: true when all of them have ended (a zombie counts as ended).
gone_within() {
    local end=$((SECONDS + $1)) process state
    shift
    for process in "$@"; do
        while read -r _ _ state _ 2>/dev/null <"/proc/$process/stat" && [ "$state" != Z ]; do
            [ "$SECONDS" -lt "$end" ] || return 1
            sleep 0.05
        done
    done
}

# ---- kills ----

# pick KIND: sets victims, from the present descendants of $launcher.
pick() {
    local proxy parents ranks
    proxy=$(children "$launcher")
    # shellcheck disable=SC2086,SC2206 # lists of numbers
    {
        parents=$(children $proxy)
        ranks=$(children $parents)
        case $1 in
            rank) victims=($ranks) ;;
            parent) victims=($parents) ;;
            proxy) victims=($proxy) ;;
            launcher) victims=("$launcher") ;;
            both) victims=(${proxy:+$proxy "$launcher"}) ;;
        esac
    }
    case $1 in rank | parent) victims=(${victims[@]:+"${victims[RANDOM % ${#victims[@]}]}"}) ;; esac
}

# attack KIND MS: starts a run, and kills after MS milliseconds. (The victim may not exist yet.)
attack() {
    local victims=() left
    "$mpiexec" -n 2 "$train" --model mlp-toy --steps "$steps" --save-every 50 --save file --timeout "$timeout" \
        --seed "$mark" >out 2>err &
    launcher=$!
    sleep "$(printf '%d.%03d' $(($2 / 1000)) $(($2 % 1000)))"
    while pick "$1" && [ ${#victims[@]} -eq 0 ] && kill -0 "$launcher" 2>/dev/null; do :; done
    if [ ${#victims[@]} -gt 0 ] && kill -9 "${victims[@]}" 2>/dev/null; then
        hits=$((hits + 1))
    fi
    if ! gone_within "$allowed" "$launcher"; then
        hangs=$((hangs + 1))
        fail "$1 killed after $2 ms: the job is still there after $allowed s: $(head -n 3 err)"
    fi
    left=$(processes "$train" "$mark")
    # shellcheck disable=SC2086
    if [ -n "$left" ] && ! gone_within "$allowed" $left; then
        orphans=$((orphans + 1))
        fail "$1 killed after $2 ms: processes are left: $left"
    fi
    # shellcheck disable=SC2046
    kill -9 "$launcher" $(processes "$train" "$mark") 2>/dev/null
    wait "$launcher" 2>/dev/null
}

attack_processes() {
    local kinds=(rank parent proxy launcher both) hits=0 hangs=0 orphans=0 i start length
    steps=500
    start=$(milliseconds)
    "$mpiexec" -n 2 "$train" --model mlp-toy --steps $steps --save file --seed "$mark" >out 2>err || fail "no attack: $(cat err)"
    length=$(($(milliseconds) - start))
    for ((i = 0; hits < kills; i++)); do # half of them while the job starts; some come when it has ended
        attack "${kinds[i % 5]}" $((i % 2 == 0 ? 1 + RANDOM % 200 : 1 + RANDOM % length)) 2>/dev/null # hides "Killed"
    done
    echo "kills: $hits, in $i runs of $length ms; $hangs hangs, $orphans with processes left"
    echo "unfinished files: $(find . -name 'file.lockstep-*' | wc -l) left by killed runs"
    "$mpiexec" -n 1 "$train" --model mlp-toy --steps 1 --save file >out 2>err || fail "the next run: $(cat err)"
    [ -z "$(find . -name 'file.*')" ] || fail "the next run has left $(find . -name 'file.*')"
}

# ---- pairs ----

# save SEED FILE
save() {
    "$train" --model mlp-toy --hidden 300,300 --steps 10 --save-every 1 --eval-samples 1 --seed "$1" --save "$2" \
        >"out$1" 2>"err$1" || fail "saving to $2: $(cat "err$1")"
}

attack_files_of_pairs() {
    local i mixed=0 first=0 left
    save 1 alone1
    save 2 alone2
    for i in $(seq "$pairs"); do
        save 1 both &
        save 2 both
        wait
        if cmp -s both alone1; then
            first=$((first + 1))
        elif ! cmp -s both alone2; then
            mixed=$((mixed + 1))
            fail "pair $i: the file is not the last one of either run"
        fi
    done
    left=$(find . -name 'both.*')
    [ -z "$left" ] || fail "pairs: files are left: $left"
    echo "pairs: $pairs; $first times the first run's file, $((pairs - first - mixed)) times the other's, $mixed mixed"
}

# ---- files ----

# resume FILE: sets status and hash
resume() {
    rm -f json
    "$train" --model mlp-toy --steps 3 --eval-samples 1 --resume "$1" --json json >out 2>err
    status=$?
    hash=$(grep -o '"weights_hash":[^,]*' json 2>/dev/null)
}

attack_checkpoints() {
    local i flips refused=0 same=0 size expected status hash
    "$train" --model mlp-toy --steps 2 --save sound >out 2>err || fail "no checkpoint: $(cat err)"
    size=$(stat -c %s sound)
    resume sound
    expected=$hash
    if [ -z "$expected" ]; then fail "the undamaged checkpoint is not loaded: $(cat err)"; fi
    for i in $(seq "$files"); do
        cp sound damaged
        for flips in $(seq $((1 + RANDOM % 3))); do
            # shellcheck disable=SC2059 # the format is the data
            printf "\\$(printf %03o $((RANDOM % 256)))" |
                dd of=damaged bs=1 seek=$(((RANDOM * 32768 + RANDOM) % size)) conv=notrunc status=none
        done
        resume damaged
        if [ "$status" -eq 2 ]; then
            refused=$((refused + 1))
        elif [ "$status" -eq 0 ] && [ "$hash" = "$expected" ]; then
            same=$((same + 1))
        else
            fail "damaged file $i ($flips bytes): status $status, $hash instead of $expected: $(head -n 1 err)"
        fi
    done
    echo "files: $files damaged; $refused refused, $same loaded with the same weights"
}

[ "$kills" -eq 0 ] || attack_processes
[ "$pairs" -eq 0 ] || attack_files_of_pairs
[ "$files" -eq 0 ] || attack_checkpoints
finish
