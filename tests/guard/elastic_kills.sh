#!/usr/bin/env bash
# elastic_kills.sh TRAIN COMPARE_WEIGHTS [KILLS [MPIEXEC]]: runs under scripts/elastic.sh, of which a rank, the launcher
# or a whole host dies at a random moment (default: 30 kills, in turns). Each run must finish. With as many ranks as
# before its weights are those of the undisturbed run to the bit; with fewer, to 1e-5. No process may be left. The hosts
# are two network namespaces: needs root and iproute2 (without them: no hosts). MPIEXEC: if `mpiexec` is that of another
# MPI. SEED: of the moments (1). Prints how long it took from each death to a new checkpoint; each step writes one.
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../lib.sh"
export LC_ALL=C
if [ -n "${4-}" ]; then
    mkdir "$scratch/bin" && ln -s "$4" "$scratch/bin/mpiexec" || exit 1
    PATH=$scratch/bin:$PATH
fi
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../stages/processes.sh"
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/../../scripts/mpi.sh"
train=$(realpath "$1") compare=$(realpath "$2") kills=${3:-30}
elastic=$(realpath "$(dirname "$0")/../../scripts/elastic.sh")
steps=200
flags=(--model gpt --layers 2 --width 64 --context 32 --steps $steps --optimizer sgd --eval-samples 8 --seed "$$")
RANDOM=${SEED:-1}
tag=le$$
cd "$scratch" || exit 1

# ---- two hosts ----

take_down() {
    ! mountpoint -q "$scratch/full" || umount "$scratch/full"
    for side in a b; do
        ip netns pids $tag$side 2>/dev/null | xargs -r kill -9 2>/dev/null
        ip netns del $tag$side 2>/dev/null
    done
    rm -rf "$scratch"
}

kinds=(rank launcher)
trap take_down EXIT
if [ "$(id -u)" -eq 0 ] && command -v ip >/dev/null && ip netns add ${tag}a 2>/dev/null; then
    ip netns add ${tag}b && ip link add eth0 netns ${tag}a type veth peer name eth0 netns ${tag}b || exit 1
    for side in a b; do
        ip netns exec $tag$side ip addr add "10.77.1.$([ $side = a ] && echo 1 || echo 2)/24" dev eth0
        ip -n $tag$side link set lo up
        ip -n $tag$side link set eth0 up
    done
    # In place of ssh: options, HOST, a command line. A host that is down does not answer. (Open MPI takes ranks whose
    # hosts have one name for neighbours.)
    cat >launch <<END
#!/bin/sh
while :; do case "\$1" in -*) shift ;; *) break ;; esac; done
case "\$1" in 10.77.1.1) namespace=${tag}a ;; *) namespace=${tag}b; [ ! -e $scratch/down ] || exit 255 ;; esac
shift
exec ip netns exec \$namespace unshare --uts sh -c "hostname \$namespace; \$*"
END
    chmod +x launch
    host_flags="-launcher ssh -launcher-exec $scratch/launch -localhost 10.77.1.1"
    [ ${#mpiexec_options[@]} -eq 0 ] || host_flags="--mca plm_rsh_agent $scratch/launch --mca oob_tcp_if_include eth0
        --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include eth0" # Open MPI
    kinds+=(host)
fi

# ---- one run ----

milliseconds() { echo $(($(date +%s%N) / 1000000)); }

checkpoint_step() {
    local length
    [ -s "$1" ] || { echo -1 && return; }
    { # opened once: the next checkpoint may replace it meanwhile
        length=$(head -c 8 | od -A n -t u8 | tr -d ' ')
        head -c "$length" | jq -r '.__metadata__.step // -1'
    } <"$1"
}

# begin KIND: starts the run in the background; process is that of elastic.sh
begin() {
    rm -f ck.st down
    if [ "$1" = host ]; then
        MPIEXEC_FLAGS=${host_flags//$'\n'/} UCX_TLS=tcp,self \
            UCX_NET_DEVICES=eth0 ip netns exec ${tag}a "$elastic" --hosts 10.77.1.1:2,10.77.1.2:2 --ranks 1:4 "$train" \
            "${flags[@]}" --save ck.st --save-every 1 --timeout 30 >out 2>err &
    else
        "$elastic" --ranks 4:4 "$train" "${flags[@]}" --save ck.st --save-every 1 >out 2>err &
    fi
    process=$!
}

# die KIND: what a process or host does that dies
die() {
    local ranks launchers
    case $1 in
    rank)
        mapfile -t ranks < <(processes "$train" "$$")
        [ ${#ranks[@]} -eq 0 ] || kill -9 "${ranks[RANDOM % ${#ranks[@]}]}"
        ;;
    launcher)
        mapfile -t launchers < <(processes mpiexec "$$")
        [ ${#launchers[@]} -eq 0 ] || kill -9 "${launchers[@]}"
        ;;
    host)
        touch down
        ip -n ${tag}b addr flush dev eth0 # nothing answers any more, also to what was sent before
        ip netns pids ${tag}b | xargs -r kill -9
        ;;
    esac 2>/dev/null
}

"$elastic" --ranks 1:2 "$train" "${flags[@]}" --save ck.st --save-every 1 --rank-samples 9,9 >out 2>err &&
    fail "a list for one number of ranks, and fewer may be left: not refused"
grep -q -- "--rank-samples is a list for one number of ranks" err || fail "--rank-samples with 1 to 2 ranks: $(cat err)"
"$elastic" --ranks 1:2 "$train" "${flags[@]}" --save ck.st --save-every 1 --grad-dtype powersgd >out 2>err &&
    fail "what each rank has not sent, and fewer may be left: not refused"
grep -q -- "--grad-dtype: powersgd" err || fail "--grad-dtype powersgd with 1 to 2 ranks: $(cat err)"
for ending in "start 1: 2 rank" "is complete, at step 100: nothing is left to train"; do # 10 epochs: the model's default
    "$elastic" --ranks 2:2 "$train" --model mlp-toy --save toy.st --save-every 50 >out 2>err || fail "10 epochs: status $?"
    tail -n 1 err | grep -q "$ending" || fail "10 epochs: expected '$ending': $(cat err)"
done
run_ranks 4 "$train" "${flags[@]}" --save whole.st >out 2>err || fail "the undisturbed run"
began=$(milliseconds)
begin rank
wait $process || fail "nothing was killed, and it failed"
length=$(($(milliseconds) - began))
[ ${#kinds[@]} -eq 3 ] || echo "no network namespaces here: no host dies"
runs=0
while [ $runs -lt "$kills" ]; do
    kind=${kinds[runs % ${#kinds[@]}]} moment=$((RANDOM % length))
    runs=$((runs + 1))
    begin "$kind"
    sleep "$((moment / 1000)).$(printf %03d $((moment % 1000)))"
    die "$kind"
    died=$(milliseconds)
    sleep 0.1 # a step that was under way may still be saved
    before=$(checkpoint_step ck.st)
    while kill -0 $process 2>/dev/null && [ "$(checkpoint_step ck.st)" -le "$before" ]; do sleep 0.01; done
    again=$(($(milliseconds) - died))
    timeout 300 tail --pid=$process -f /dev/null || { fail "$kind killed after $moment ms: it has not ended after 300 s" && kill -9 $process; }
    wait $process
    status=$?
    # Status 1 is right if it died after the last step was saved: nothing is left to train, and a line says so.
    { [ $status -eq 1 ] && grep -q "is complete, at step $steps: .* the last run ended before its end" err; } ||
        [ $status -eq 0 ] || fail "$kind killed after $moment ms: status $status"
    tolerance=0
    [ "$kind" != host ] || tolerance=1e-5
    "$compare" whole.st ck.st $tolerance >differ || fail "$kind killed after $moment ms: $(cat differ)"
    left=$(left_running "$train" "$$")
    [ -z "$left" ] || fail "$kind killed after $moment ms: left running: $left"
    echo "$runs $kind $moment ms (step $before): $(grep -c 'elastic:.*start' err) start(s), $again ms to the next checkpoint"
    [ "$kind" != host ] || ip netns exec ${tag}b ip addr add 10.77.1.2/24 dev eth0
done

# A full disk takes no checkpoint: the last one is written elsewhere, and the training is not repeated.
mkdir full elsewhere
if mount -t tmpfs -o size=16k none full 2>err; then
    (cd elsewhere && "$elastic" "$train" "${flags[@]}" --steps 3 --save '../full/c[k]' --save-every 1) >out 2>err
    [ $? -eq 1 ] || fail "a full disk: status $?, expected 1"
    [ "$(find elsewhere -type f | wc -l)" -eq 1 ] || fail "a full disk: not one file elsewhere: $(ls elsewhere)"
    grep -q '^elastic: error: .*/full/c\[k\] could not be written, and the last state is in \./c\[k\]\.rescued-' err ||
        fail "a full disk: no line says where the checkpoint is"
else
    echo "nothing can be mounted here: no full disk"
fi
finish
