#!/usr/bin/env bash
# How long a training stands still when one of its ranks is killed: under scripts/elastic.sh, and under torchrun.
#
#   tools/bench/restarts.sh --python VENV/bin/python [--kills N] [--save-every K] [--build DIR]
#
# The GPT at its defaults on 2 ranks, with a checkpoint every K steps (10). In turns of three kills: SIGKILL to a random
# rank, 1 to 5 s after the first step of the last start, N kills for each (15). Prints a line for each kill: the seconds
# from it until the end was noticed, until ranks were started, and until each later event, the last of which is the first
# new step. At the end it prints a table of the medians and the worst. A kill after which no step comes within 180 s
# counts as "no result", with the reason; the exit status is 1 then.
set -u
export LC_ALL=C
cd "$(dirname "$0")/../.." || exit 2
kills=15 every=10 build=build python=${PYTHON:-python3} limit=180
while [ $# -gt 0 ]; do
    case $1 in
        --kills) kills=$2 ;;
        --save-every) every=$2 ;;
        --build) build=$2 ;;
        --python) python=$2 ;;
        *) sed -n '2,10s/^# \{0,1\}//p' tools/bench/restarts.sh; exit 2 ;;
    esac
    shift 2
done
train=$build/stage3_overlap/train
[ -x "$train" ] || { echo "restarts.sh: $train is missing: build first, or give --build DIR" >&2; exit 2; }
torch=$("$python" -c 'import torch; print(torch.__version__)' 2>/dev/null) ||
    { echo "restarts.sh: $python has no PyTorch; give another with --python" >&2; exit 2; }
unset OPENBLAS_CORETYPE # OpenBLAS chooses the kernels for this processor itself
work=$(mktemp -d) || exit 1
job='' reason='' line='' # of the latest kill
declare -A tried=([elastic]=0 [torchrun]=0)

# Ends the run: with SIGTERM, and after 30 s every process that has the directory's name among its arguments.
end_run() {
    local tries=300
    [ -n "$job" ] || return
    kill "$job" 2>/dev/null
    while [ $((tries--)) -gt 0 ] && kill -0 "$job" 2>/dev/null; do sleep 0.1; done
    pkill -KILL -f "$work" # torchrun's ranks outlive a torchrun that has ended by itself
    wait "$job" 2>/dev/null
    job=''
}
trap 'end_run; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP

# Both read a checkpoint if there is one. By default, torchrun keeps one store for all starts of its ranks. Then a rank
# can read there at which address the other one listened before the kill, and both wait for 30 minutes (pytorch issue
# 135712). With TORCH_DISABLE_SHARE_RDZV_TCP_STORE, each start has its own store.
launch() { # CONTENDER
    if [ "$1" = elastic ]; then
        exec scripts/elastic.sh --ranks 2:2 "$train" --model gpt --save "$work/elastic.st" --save-every "$every" \
            --log "$work/run.csv"
    fi
    export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 LOGLEVEL=INFO TMPDIR=$work
    exec "$python" -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts "$kills" \
        tools/bench/torch_elastic.py --save "$work/torch.pt" --save-every "$every"
}

stamp() {
    local text
    while IFS= read -r text; do echo "$EPOCHREALTIME $text"; done
}

# The processes that compute: children of a rank's parent, or of torchrun.
ranks() { # CONTENDER
    local parents="^$train .*$work"
    [ "$1" = elastic ] || parents="torch.distributed.run .*$work"
    parents=$(pgrep -f "$parents") && pgrep -P "${parents//$'\n'/,}" -f "$work"
}

# The last step that was done. (train prints a line for its first step, and then every 5 s; its log has a row for each.)
last_step() { # CONTENDER
    if [ "$1" = elastic ]; then tail -n 1 "$work/run.csv" | cut -d , -f 1
    else grep -o ' step [0-9]*' "$work/torchrun.log" | tail -n 1 | cut -d ' ' -f 3; fi
}

# What the log says after the moment T, in seconds since T: NAME SECONDS for each, and how many steps up to LAST_STEP are
# done again. Prints nothing before the first step of the new start.
after() { # CONTENDER T LAST_STEP
    awk -v t="$2" -v last="${3:-0}" '
        function at(name) { if (!(name in seen)) { seen[name] = 1; list = list sprintf(" %s %.2f", name, $1 - t) } }
        $1 <= t { next }
        / ended with status / || /Worker group FAILED/ { at("noticed") }
        /elastic: .* start [0-9]+: / || /Rendezvous complete/ { at("started") }
        /torch is imported/ { at("imported") }
        /: gpt, [0-9]+ parameters/ || /the group is there/ { at("group") }
        /the optimizer is there/ { at("optimizer") }
        /goes on from step/ || /; steps [0-9]+ to / { at("resumed") }
        $2 == "step" && "resumed" in seen { at("step"); print list " again " last + 1 - $3 + 0; exit }' "$work/$1.log"
}

# Waits for the first step after the moment T, and sets line. False if there is none, and sets reason.
await_step() { # CONTENDER T LAST_STEP
    local end=$((SECONDS + limit))
    while line=$(after "$@") && [ -z "$line" ]; do
        kill -0 "$job" 2>/dev/null || { reason="the run has ended by itself" && return 1; }
        [ $SECONDS -lt $end ] || { reason="no step within $limit s" && return 1; }
        sleep 0.1
    done
}

kill_one() { # CONTENDER
    local victims died last
    sleep "$((1 + RANDOM % 4)).$((RANDOM % 1000))"
    mapfile -t victims < <(ranks "$1")
    [ ${#victims[@]} -eq 2 ] || { reason="found ${#victims[@]} ranks before the kill, expected 2" && return 1; }
    died=$EPOCHREALTIME
    kill -9 "${victims[RANDOM % 2]}" || { reason="the rank had ended before the kill" && return 1; }
    last=$(last_step "$1")
    await_step "$1" "$died" "$last"
}

# A kill without a result ends the turn, and the next turn starts the contender again. A start without a step counts as
# such a kill, so that this script ends.
three_kills() { # CONTENDER
    local i began=$EPOCHREALTIME
    : >"$work/$1.log"
    launch "$1" > >(stamp >"$work/$1.log") 2>&1 &
    job=$!
    for ((i = 0; i < 3 && tried[$1] < kills; i++)); do
        tried[$1]=$((tried[$1] + 1))
        if { [ $i -gt 0 ] || await_step "$1" "$began" 0; } && kill_one "$1"; then
            echo "$1$line" | tee -a "$work/results"
        else
            echo "$1: no result: $reason; the end of its log:"
            tail -n 8 "$work/$1.log" | cut -c 1-200 | sed 's/^/    /'
            break
        fi
    done
    end_run
}

# Median and worst of a number of the results: "1.50 (2.10)"; "-" if this contender has none.
middle() { # CONTENDER NAME
    sed -n "s/^$1 .*\<$2 \([0-9.]*\).*/\1/p" "$work/results" | sort -n | awk '{ v[NR] = $1 } END {
        if (NR == 0) print "-"; else printf "%.2f (%.2f)\n", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2, v[NR] }'
}

touch "$work/results"
echo "2 ranks, PyTorch $torch, a checkpoint every $every steps, $(nproc) cores, load $(cut -d ' ' -f 1 /proc/loadavg)"
while [ $((tried[elastic] + tried[torchrun])) -lt $((2 * kills)) ]; do
    for contender in elastic torchrun; do
        [ "${tried[$contender]}" -ge "$kills" ] || three_kills $contender
    done
done
echo
echo "| median (worst) s after the kill | kills | results | noticed | started | torch imported | group | optimizer | resumed | first new step | steps done again |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
missing=0
for contender in elastic torchrun; do
    results=$(grep -c "^$contender " "$work/results")
    missing=$((missing + tried[$contender] - results))
    printf '| %s | %d | %d |' $contender "${tried[$contender]}" "$results"
    for name in noticed started imported group optimizer resumed step again; do
        printf ' %s |' "$(middle $contender $name)"
    done
    echo
done
[ $missing -eq 0 ]
