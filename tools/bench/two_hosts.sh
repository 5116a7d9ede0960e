#!/usr/bin/env bash
# two_hosts.sh: two "hosts" on one machine: network namespaces joined by a link of limited rate. The same programs run
# in them over real TCP. Needs root, iproute2, jq and MPICH. Cleans up at its end, also when interrupted.
#
#   tools/bench/two_hosts.sh stages      [--rate 1gbit] [--rounds 3] [--steps 20] [--batch-size 8] [--python PYTHON]
#   tools/bench/two_hosts.sh collectives [--rate 1gbit] [options of build/bench/collectives]
#   bench/two_hosts.sh run         [--rate 1gbit] [--ranks-per-host 1] COMMAND...     prints what each host sent, too
#
# stages: the GPT, stages 1 to 4 at their defaults, and PyTorch's DDP where PYTHON has it, in turns. DDP runs with
# buckets of four sizes, each with 1 and with 4 micro-batches.
# --limit SECONDS: how long one run may take (600, collectives 3600). After that the run and the script end.
set -euo pipefail
export LC_ALL=C
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
    sed -n '2,11s/^# \{0,1\}//p' tools/bench/two_hosts.sh
    exit 2
}

stop() {
    echo "two_hosts.sh: error: $1" >&2
    exit 1
}

what=${1:-}
[ "$what" = stages ] || [ "$what" = collectives ] || [ "$what" = run ] || usage
shift
[ "$what" = collectives ] && limit=3600 || limit=600
rate=1gbit ranks_per_host=1 rounds=3 steps=20 batch=8 python=${PYTHON:-python3} rest=()
while [ $# -gt 0 ]; do
    case $what.$1 in
        *.--rate) rate=${2:?} ;;
        *.--limit) limit=${2:?} ;;
        run.--ranks-per-host) ranks_per_host=${2:?} ;;
        stages.--rounds) rounds=${2:?} ;;
        stages.--steps) steps=${2:?} ;;
        stages.--batch-size) batch=${2:?} ;;
        stages.--python) python=${2:?} ;;
        collectives.*) rest+=("$1" "${2:?}") ;;
        run.*) rest=("$@") && break ;;
        *) usage ;;
    esac
    shift 2
done
[ "$(id -u)" -eq 0 ] || stop "network namespaces need root"
for tool in ip tc mpiexec jq; do
    command -v $tool >/dev/null || stop "$tool is missing (packages: iproute2, mpich, jq)"
done
grep -q HYDRA <<<"$(mpiexec --version)" || stop "this needs MPICH's mpiexec, whose launcher can be replaced"
[ "$what" = run ] || [ -x build/bench/collectives ] ||
    stop "build/bench/collectives is missing: cmake --build build --target collectives"

# ---- the hosts ----
tag=ls$$ work=

take_down() {
    local namespace left
    trap '' INT TERM HUP # do not interrupt the cleaning up
    for namespace in ${tag}a ${tag}b; do
        # Repeated, because a rank that is just being started is not in the list yet.
        for _ in $(seq 50); do
            left=$(ip netns pids "$namespace" 2>/dev/null || true)
            [ -n "$left" ] || break
            # shellcheck disable=SC2086 # several numbers
            kill -9 $left 2>/dev/null || true
            sleep 0.1
        done
        ip netns del "$namespace" 2>/dev/null || true # the link goes with it
    done
    [ -z "$work" ] || rm -rf "$work"
}
trap take_down EXIT
work=$(mktemp -d)

# attended COMMAND...: runs it in the background, and waits. Bash handles a signal during `wait` at once, but during a
# command in the foreground only after its end.
attended() {
    "$@" </dev/null &
    wait $!
}

# Both ends of the link are made inside their namespaces, so nothing ever exists outside the two.
ip netns add ${tag}a
ip netns add ${tag}b
ip link add eth0 netns ${tag}a type veth peer name eth0 netns ${tag}b
for side in a b; do
    namespace=$tag$side
    ip netns exec "$namespace" ip addr add "10.77.0.$([ $side = a ] && echo 1 || echo 2)/24" dev eth0
    ip netns exec "$namespace" ip link set lo up
    ip netns exec "$namespace" ip link set eth0 up
    ip netns exec "$namespace" tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms
done
for side in a b; do # a link is up only after a moment, and UCX uses no other
    tries=0
    until grep -q 'state UP' <<<"$(ip -n $tag$side link show eth0)"; do
        tries=$((tries + 1))
        [ $tries -lt 50 ] || stop "the link between the hosts does not come up"
        sleep 0.1
    done
done

# What mpiexec runs in place of ssh: options, HOST, a command line.
cat >"$work/launch" <<END
#!/bin/sh
while :; do case "\$1" in -*) shift ;; *) break ;; esac; done
case "\$1" in 10.77.0.1) namespace=${tag}a ;; *) namespace=${tag}b ;; esac
shift
exec ip netns exec \$namespace sh -c "\$*"
END
chmod +x "$work/launch"

# ended_well STATUS WHAT: ends the script if the status is not 0.
ended_well() {
    case $1 in 124 | 137) stop "$2: still running after $limit s, ended (--limit)" ;; esac
    [ "$1" -eq 0 ] || stop "$2 failed with status $1"
}

# run COMMAND...: the ranks of each host, output in $work/out. mpiexec itself runs on the first host, because both hosts
# must reach its port. Without a rendezvous, UCX sends long messages at once: see tools/bench/README.md.
run() {
    local status=0
    attended ip netns exec ${tag}a env -u OPENBLAS_CORETYPE UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 \
        UCX_RNDV_THRESH="${UCX_RNDV_THRESH:-inf}" \
        timeout -k 10 "$limit" mpiexec -launcher ssh -launcher-exec "$work/launch" -localhost 10.77.0.1 \
        -hosts 10.77.0.1,10.77.0.2 -n $((2 * ranks_per_host)) -ppn "$ranks_per_host" "$@" >"$work/out" 2>&1 || status=$?
    [ "$status" -eq 0 ] || cat "$work/out" >&2
    ended_well "$status" "the run above"
}

if [ "$what" = run ]; then
    run "${rest[@]}"
    cat "$work/out"
    for side in a b; do
        echo "host $side sent $(ip -n $tag$side -s -j link show eth0 | jq '.[0].stats64.tx.bytes') bytes"
    done
    exit
fi
if [ "$what" = collectives ]; then
    # Two hosts share no memory, so shm is left out, unless --algorithms is given.
    run build/bench/collectives --algorithms MPI_Allreduce,mpi,root,ring,recursive-doubling,ordered "${rest[@]}"
    cat "$work/out"
    exit
fi

# ---- the stages and PyTorch, in turns ----
directories=([1]=stage1_naive [2]=stage2_bucketed [3]=stage3_overlap [4]=stage4_accumulation)
caps=(0.5 1 4 default) # MiB; the default is a first bucket of 1, then 25

# stage_round ROUND STAGE. Four micro-batches of the same size: a step of stage 4 has four times the samples.
stage_round() {
    local flags=(--batch-size "$batch")
    [ "$2" -lt 4 ] || flags=(--batch-size $((4 * batch)) --accumulate 4)
    run "build/${directories[$2]}/train" --model gpt --steps "$steps" --eval-samples 8 "${flags[@]}" \
        --json "$work/$2.$1.json"
}

# torch_round ROUND CAP MICRO_BATCHES: the same model under DistributedDataParallel, a rank on each host.
torch_round() {
    local rank namespace status pids=() size=()
    [ "$2" = default ] || size=(--ddp-mb "$2")
    for rank in 0 1; do
        namespace=$tag$([ $rank = 0 ] && echo a || echo b)
        ip netns exec "$namespace" env RANK=$rank WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29511 \
            GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1 timeout -k 10 "$limit" "$python" tools/bench/torch_step.py --model gpt \
            "${size[@]}" --accumulate "$3" --batch-size $((batch / 2)) --steps "$steps" \
            >"$work/torch.$2.$3.$1.$rank" </dev/null &
        pids+=($!)
    done
    for rank in 0 1; do
        status=0
        wait "${pids[$rank]}" || status=$?
        ended_well "$status" "PyTorch's DDP on rank $rank"
    done
}

torch=no
if attended "$python" -c 'import torch.distributed as d; assert d.is_gloo_available()' 2>/dev/null; then
    torch=yes
fi
for round in $(seq "$rounds"); do
    for stage in 1 2 3 4; do
        echo "round $round of $rounds: ${directories[$stage]}"
        stage_round "$round" "$stage"
    done
    for cap in "${caps[@]}"; do
        for micro_batches in 1 4; do
            [ $torch = yes ] || continue
            echo "round $round of $rounds: PyTorch, buckets: $cap, $micro_batches micro-batches"
            torch_round "$round" "$cap" "$micro_batches"
        done
    done
done

# ---- the table ----
# median_of JQ_FILTER FILE...: the median over the rounds, and the smallest and largest.
median_of() {
    local filter=$1
    shift
    jq -s "map($filter) | sort | \"\((.[(length - 1) / 2 | floor] + .[length / 2 | floor]) / 2) \(.[0]) \(.[-1])\"" -r "$@"
}

read -r reference _ <<<"$(median_of .step_ms.p50 "$work"/2.*.json)"
printf '\nGPT, 2 hosts, %s, milliseconds per %s samples: median over %s runs of a run'"'"'s median (min .. max).\n' "$rate" \
    "$batch" "$rounds"
printf 'hidden: share of the communication that training did not wait for; buckets: MiB.\n\n'
printf '%-36s %10s %18s %10s %12s\n' "" ms "(min .. max)" "hidden" "to stage 2"

# row NAME MS LOW HIGH HIDDEN
row() {
    printf '%-36s %10.1f %18s %10s %12.2f\n' "$1" "$2" "$(printf '%.0f .. %.0f' "$3" "$4")" "$5" "$(jq -n "$2 / $reference")"
}

for stage in 1 2 3 4; do
    read -r ms low high <<<"$(median_of ".step_ms.p50 * $batch / .flags.batch_size" "$work/$stage".*.json)"
    read -r hidden _ <<<"$(median_of '100 * .hidden_fraction' "$work/$stage".*.json)"
    row "${directories[$stage]}$([ "$stage" -lt 4 ] || echo ", 4 micro-batches")" "$ms" "$low" "$high" \
        "$(printf '%.0f %%' "$hidden")"
done
[ $torch = yes ] || exit 0
for micro_batches in 1 4; do
    for cap in "${caps[@]}"; do
        read -r ms low high <<<"$(median_of ".step_ms.p50 / $micro_batches" "$work/torch.$cap.$micro_batches".*.0)"
        row "PyTorch DDP, buckets: $cap$([ "$micro_batches" -eq 1 ] || echo ", 4 micro-batches")" "$ms" "$low" "$high" ""
    done
done
