#!/usr/bin/env bash
# How long a training stands still when one of its ranks is killed: under scripts/elastic.sh, and under torchrun.
#   bench/restarts.sh --python VENV/bin/python [--kills N] [--save-every K] [--build DIR]
# The GPT at its defaults on 2 ranks, with a checkpoint every K steps (10). In turns, three kills each: SIGKILL to a
# random rank at a random moment, 1 to 5 s after the last restart's first step, N for each (15). Prints for each kill
# the seconds to the first new step, what they are made of, and how many steps are done again; then medians and worst.
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
kills=15 every=10 build=build python=${PYTHON:-python3}
while [ $# -gt 0 ]; do
    case $1 in
        --kills) kills=$2 ;;
        --save-every) every=$2 ;;
        --build) build=$2 ;;
        --python) python=$2 ;;
        *) sed -n '2,6s/^# \{0,1\}//p' bench/restarts.sh; exit 2 ;;
    esac
    shift 2
done
train=$build/stage3_overlap/train
{ [ -x "$train" ] && "$python" -c "import torch" 2>/dev/null; } ||
    { echo "restarts.sh: needs $train (--build DIR) and PyTorch in $python (--python PYTHON)" >&2; exit 2; }
unset OPENBLAS_CORETYPE # OpenBLAS chooses the kernels for this processor itself
work=$(mktemp -d) job=''
touch "$work/elastic.log" "$work/torchrun.log"
finish() {
    [ -z "$job" ] || kill "$job" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap finish EXIT

# Both read a checkpoint if there is one.
launch() { # CONTENDER
    if [ "$1" = elastic ]; then
        exec scripts/elastic.sh --ranks 2:2 "$train" --model gpt --save "$work/elastic.st" --save-every "$every" \
            --log "$work/run.csv"
    fi
    LOGLEVEL=INFO exec "$python" -m torch.distributed.run --standalone --nproc-per-node 2 --max-restarts 50 \
        bench/torch_elastic.py --save "$work/torch.pt" --save-every "$every"
}

stamp() {
    local line
    while IFS= read -r line; do echo "$EPOCHREALTIME $line"; done
}

# The processes that compute: children of a rank's parent, or of torchrun. Both have the checkpoint's name as an argument.
ranks() { # CONTENDER
    local parents
    case $1 in elastic) parents="^$train .*$work" ;; *) parents="torch.distributed.run .*$work" ;; esac
    parents=$(pgrep -f "$parents") || return 0
    pgrep -P "${parents//$'\n'/,}" -f "$work" || true
}

# The last step that was done. (train prints a line for its first step, and then every 5 s; its log has a row for each.)
last_step() { # CONTENDER
    if [ "$1" = elastic ]; then tail -n 1 "$work/run.csv" | cut -d , -f 1
    else grep -o ' step [0-9]*' "$work/torchrun.log" | tail -n 1 | cut -d ' ' -f 3; fi
}

# What the log says after the moment T, with seconds since T: when the end was noticed, a new start was made, the ranks
# ran, and so on. Prints nothing before the first step of the new start.
after() { # CONTENDER T LAST_STEP
    awk -v t="$2" -v contender="$1" -v last="${3:-0}" '
        function at(name) { if (!(name in seen)) { seen[name] = 1; list = list sprintf(" %s %.2f", name, $1 - t) } }
        $1 <= t { next }
        contender == "elastic" && / ended with status / { at("noticed") }
        contender == "elastic" && / start [0-9]+: / { at("started") }
        /: gpt, [0-9]+ parameters/ { at("group") }
        /Worker group FAILED/ { at("noticed") }
        /Rendezvous complete/ { at("rendezvous") }
        /python runs/ { at("python") }
        /torch is imported/ { at("imported") }
        /the group is there/ { at("group") }
        /the optimizer is there/ { at("optimizer") }
        /goes on from step/ || /; steps [0-9]+ to / { at("resumed") }
        $2 == "step" && "resumed" in seen { at("step"); print "again", last + 1 - $3, list; exit }' "$work/$1.log"
}

within() { # SECONDS COMMAND...: until it prints something
    local end=$((SECONDS + $1))
    shift
    until [ -n "$("$@")" ]; do
        [ $SECONDS -lt $end ] || { echo "restarts.sh: no new step: $*" >&2; tail -n 20 "$work"/*.log >&2; exit 1; }
        sleep 0.1
    done
}

three_kills() { # CONTENDER
    local victims i died last began=$EPOCHREALTIME
    launch "$1" > >(stamp >"$work/$1.log") 2>&1 &
    job=$!
    within 120 after "$1" "$began"
    for ((i = 0; i < 3 && done_of[$1] < kills; i++)); do
        sleep "$((1 + RANDOM % 4)).$((RANDOM % 1000))"
        mapfile -t victims < <(ranks "$1")
        [ ${#victims[@]} -eq 2 ] || { echo "restarts.sh: ${#victims[@]} ranks, expected 2" >&2; exit 1; }
        died=$EPOCHREALTIME
        kill -9 "${victims[RANDOM % 2]}"
        last=$(last_step "$1")
        within 120 after "$1" "$died" "$last"
        echo "$1 $(after "$1" "$died" "$last")" | tee -a "$work/results"
        done_of[$1]=$((done_of[$1] + 1))
    done
    kill "$job"
    wait "$job" 2>/dev/null || true
    job=''
}

declare -A done_of=([elastic]=0 [torchrun]=0)
while [ "${done_of[elastic]}" -lt "$kills" ]; do three_kills elastic && three_kills torchrun; done
for contender in elastic torchrun; do # the columns: again N NAME SECONDS NAME SECONDS ...
    for name in $(grep "^$contender " "$work/results" | head -n 1 | grep -o '[a-z]*' | tail -n +2); do
        grep "^$contender " "$work/results" | grep -o "\<$name [0-9.]*" | cut -d ' ' -f 2 | sort -n |
            awk -v name="$contender: $name" '{ v[NR] = $1 } END { printf "%-22s median %6.2f  worst %6.2f\n", name,
                (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2, v[NR] }'
    done
done
