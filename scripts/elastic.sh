#!/usr/bin/env bash
# elastic.sh: trains to the end although ranks, hosts or the launcher die: starts `train` again from its last checkpoint,
# on the hosts that are left. (What torchrun's --max-restarts and --nnodes MIN:MAX do.)
#
# usage: scripts/elastic.sh [--ranks MIN:MAX] [--hosts NAME:N,...] [--max-restarts N] TRAIN FLAGS...
#   TRAIN FLAGS...    as after `mpiexec -n N`. --save FILE and --save-every K are needed. If FILE exists, the run goes on
#                     from it, also at the first start. If --steps or --epochs are trained already, nothing is left to do.
#   --ranks MIN:MAX   so many ranks, as the hosts have room (2:2; with --hosts 1 to all). Fewer than MIN: it waits.
#   --hosts NAME:N,.. hosts, and how many ranks each has room for (this host; under Slurm: those of the allocation)
#   --max-restarts N  gives up after so many restarts in a row that did not reach a new checkpoint (3)
#   MPIEXEC_FLAGS     more options of mpiexec, MPICH's or Open MPI's
# Exit status: that of the last run: 0, or 2 (a mistake in the flags), or that of a run that was asked to end; else 1.
set -u
export LC_ALL=C
here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
# shellcheck source-path=SCRIPTDIR source=mpi.sh
source "$here/mpi.sh"
asked_to_end=75 # train's status after SIGTERM or SIGUSR1

stop() { # STATUS MESSAGE
    echo "elastic: error: $2" >&2
    exit "$1"
}

say() {
    echo "elastic: $(date +%T) $*" >&2
}

# ---- the command line ----

usage() { sed -n '2,13s/^# \{0,1\}//p' "$0"; }
[[ ! ${1-} =~ ^(-h|--help)$ ]] || { usage && exit 0; }
range='' hosts='' most_failures=3
while [[ ${1-} = --* ]]; do
    [ $# -ge 2 ] || stop 2 "$1: needs a value"
    case $1 in
    --ranks) range=$2 ;;
    --hosts) hosts=$2 ;;
    --max-restarts) most_failures=$2 ;;
    *) stop 2 "$1: no such flag; those of train come after the program" ;;
    esac
    shift 2
done
[ $# -ge 1 ] || { usage && exit 2; }
{ [ -f "$1" ] && [ -x "$1" ]; } || stop 2 "$1 is no program: give that of a stage, such as build/stage3_overlap/train"
[[ $most_failures =~ ^[0-9]{1,6}$ ]] || stop 2 "--max-restarts: '$most_failures' is no number"
train=$1 program=$(realpath "$1") flags=() checkpoint='' first='' every='' steps='' epochs='' fixed='' model=mlp
shift
while [ $# -gt 0 ]; do # --resume is given by this script
    word=$1 value=${2-} both=()
    [[ $word = --*=* ]] && value=${word#*=} || both=("${@:2:1}")
    case ${word%%=*} in
    --save) checkpoint=$value ;;
    --save-every) every=$value ;;
    --steps) steps=$value ;;
    --epochs) epochs=$value ;;
    --rank-samples) fixed='--rank-samples is a list for one number of ranks' ;;
    --grad-dtype) [ "$value" != powersgd ] || fixed='--grad-dtype: powersgd keeps a part of the gradients for each rank' ;;
    --model) model=$value ;;
    --verify) stop 2 "--verify: a run that is started again cannot be compared from its beginning: compare afterwards" ;;
    --resume) [ -n "$value" ] || stop 2 "--resume: needs a value"
        first=$value && shift $((1 + ${#both[@]})) && continue ;;
    *) both=() ;;
    esac
    flags+=("$word" "${both[@]}")
    shift $((1 + ${#both[@]}))
done
{ [ -n "$checkpoint" ] && [[ $every =~ [1-9] ]]; } ||
    stop 2 "without --save FILE and --save-every K there is no checkpoint to go on from; give both to train"
for tool in jq mpiexec timeout od; do
    command -v $tool >/dev/null || stop 1 "$tool is missing: scripts/setup.sh installs what is needed"
done

# How long the model is trained if no flag says so: in the table at the end of --help.
default_of() { # FLAG
    "$train" --help | awk -v flag="$1" -v model="$model" '
        /^Defaults that depend on the model/ { getline; for (i = 1; i <= NF; i++) if ($i == model) column = i + 1 }
        column && $1 == flag { print $column }'
}
[ -n "$steps$epochs" ] || steps=$(default_of --steps) epochs=$(default_of --epochs)

# ---- hosts ----

if [ -z "$hosts" ] && [ -n "${SLURM_JOB_NODELIST-}" ]; then
    each=${SLURM_NTASKS_PER_NODE:-$((${SLURM_CPUS_ON_NODE:-1} / ${SLURM_CPUS_PER_TASK:-1}))} each=${each%%(*}
    [ -z "${SLURM_NTASKS-}" ] || each=$(((SLURM_NTASKS + ${SLURM_JOB_NUM_NODES:-1} - 1) / ${SLURM_JOB_NUM_NODES:-1}))
    hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/\$/:$each/" | paste -sd ,)
fi
room=0
for host in ${hosts//,/ }; do
    [[ $host =~ ^[^:]+:[1-9][0-9]*$ ]] || stop 2 "--hosts: '$host' is not NAME:N"
    room=$((room + ${host##*:}))
done
[ -n "$range" ] || { [ $room -gt 0 ] && range=1:$room || range=2:2; }
[[ $range =~ ^[1-9][0-9]{0,5}:[1-9][0-9]{0,5}$ && ${range%:*} -le ${range#*:} ]] || stop 2 "--ranks: '$range' is not MIN:MAX"
least=${range%:*} most=${range#*:}
[ -z "$fixed" ] || [ "$least" -eq "$most" ] ||
    stop 2 "$fixed: give --ranks N:N, not $range"
{ [ $room -eq 0 ] || [ $room -ge "$least" ]; } || stop 2 "--hosts has room for $room rank(s), and --ranks wants at least $least"
host_flag=-hosts
[ ${#mpiexec_options[@]} -eq 0 ] || host_flag=--host # Open MPI
read -r -a more_options <<<"${MPIEXEC_FLAGS-}"

# A host is there if the launcher can start something on it. (Slurm would let that wait until the training ends.)
export SLURM_OVERLAP=1
is_there() {
    timeout -k 1 10 mpiexec "${mpiexec_options[@]}" "${more_options[@]}" "$host_flag" "$1" -n 1 true >/dev/null 2>&1 </dev/null
}

# Sets places to the hosts that are there, as NAME:N,..., and ranks to how many ranks they are to take.
look_for_hosts() {
    local host missing=''
    places='' ranks=$most
    [ -n "$hosts" ] || return
    ranks=0
    for host in ${hosts//,/ }; do
        [ $ranks -lt "$most" ] || break
        if ! is_there "$host"; then missing+=" $host" && continue; fi
        places+=${places:+,}$host
        ranks=$((ranks + ${host##*:}))
    done
    ranks=$((ranks < most ? ranks : most))
    [ "$missing" = "$known_missing" ] || say "hosts that do not answer:${missing:- none any more}"
    known_missing=$missing
}

# ---- one start ----

# A number of the checkpoint's metadata: step or epoch, at which it goes on; -1: it does not say. (safetensors: 8 bytes of
# length, then JSON.)
checkpoint_number() { # KEY
    local length number=''
    { # opened once: a rank on a host that was given up may replace it meanwhile
        length=$(head -c 8 | od -A n -t u8 | tr -d ' ')
        [[ ! $length =~ ^[0-9]{1,8}$ ]] || number=$(head -c "$length" | jq -r ".__metadata__.$1 // -1")
    } 2>/dev/null <"$checkpoint"
    [[ $number =~ ^[0-9]+$ ]] && echo "$number" || echo -1
}

is_complete() {
    [ "$(checkpoint_number step)" -ge "${steps:-999999999}" ] || [ "$(checkpoint_number epoch)" -ge "${epochs:-999999999}" ]
} 2>/dev/null # what is no number is train's to refuse

# Files that a run has written because it could not write the checkpoint: see notes/faults.md, "Files".
rescued() {
    local name
    name=$(basename -- "$checkpoint" | cut -c 1-100 | sed 's/[][?*\\]/\\&/g') # they begin with so much of its name
    find -L . "${TMPDIR:-.}" /tmp -maxdepth 1 -name "$name.rescued-*" 2>/dev/null
}

# Processes on this host that were started here.
ours() {
    grep -l -a -s -z -x -F "LOCKSTEP_ELASTIC=$mark" /proc/[0-9]*/environ | cut -d / -f 3
}

# Those of an earlier start, which must not write any more. A launcher that is killed leaves ranks that
# end a moment later.
end_leftovers() {
    local left tries=200
    while left=$(ours) && [ -n "$left" ]; do
        # shellcheck disable=SC2086 # a list of numbers
        [ $((tries--)) -gt 0 ] || kill -KILL $left 2>/dev/null
        sleep 0.05
    done
}

# Ends the launcher if a host it uses is no longer there: it would wait for this host for ever.
watch_hosts() { # PROCESS
    local host
    while sleep 5 >/dev/null 2>&1 && [ -n "$places" ] && kill -0 $$ && kill -0 "$1"; do
        for host in ${places//,/ }; do
            is_there "$host" || is_there "$host" || { say "$host is gone" && kill -KILL "$1" && return; }
        done
    done
}

start() { # sets status
    local resume=() watcher place=()
    [ -z "$first" ] || resume=(--resume "$first")
    [ ! -e "$checkpoint" ] || resume=(--resume "$checkpoint") # train refuses what is no checkpoint
    [ -z "$places" ] || place=("$host_flag" "$places")
    LOCKSTEP_ELASTIC=$mark setsid mpiexec "${mpiexec_options[@]}" "${more_options[@]}" "${place[@]}" -n "$ranks" "$train" \
        "${flags[@]}" "${resume[@]}" </dev/null &
    launcher=$!
    watch_hosts $launcher &
    watcher=$!
    wait $launcher
    status=$?
    while kill -0 $launcher 2>/dev/null; do # a trap has interrupted wait
        [ -z "$ending" ] || { sleep 1 && pass_on; } # ranks that were just starting have not heard it
        wait $launcher && status=0 || status=$?
    done
    kill $watcher 2>/dev/null
    launcher=''
    end_leftovers
}

# ---- until it is done ----

status='' mark=$(realpath -m -- "$checkpoint") launcher='' known_missing='' failures=0 starts=0 ending=''
pass_on() { # to one rank: all save, and end. (mpiexec's own status would sometimes be 0.) To mpiexec if none runs here
    local process
    ending=yes
    [ -n "$launcher" ] || return
    for process in $(ours); do
        if [ "$(readlink "/proc/$process/exe")" = "$program" ]; then kill -USR1 "$process" 2>/dev/null && return; fi
    done
    kill -USR1 "$launcher" 2>/dev/null
}
trap pass_on TERM USR1 INT HUP
[ -z "$(ours)" ] || stop 1 "another run on this host still writes $checkpoint: $(ours | paste -sd ' ') are its processes"
while :; do
    look_for_hosts
    until [ "$ranks" -ge "$least" ] || [ -n "$ending" ]; do
        say "the hosts have room for $ranks rank(s), and --ranks wants at least $least: waiting"
        sleep 10
        look_for_hosts
    done
    before=$(checkpoint_number step)
    [ -z "$ending" ] || exit $asked_to_end
    if is_complete; then
        say "$checkpoint is complete, at step $before: nothing is left to train${status:+, but the last run ended before its end}"
        exit ${status:-0}
    fi
    starts=$((starts + 1))
    say "start $starts: $ranks rank(s)${places:+ on $places}, from $([ "$before" -lt 0 ] && echo "the beginning" || echo "step $before")"
    earlier=$(rescued)
    start
    new=$(rescued | grep -v -x -F -m 1 -e "$earlier")
    [ -z "$new" ] || stop 1 "$checkpoint could not be written, and the last state is in $new: make room, and move it there"
    [ -z "$ending" ] || exit $asked_to_end # mpiexec's status may be 0
    [ $status -ne 0 ] || exit 0
    [ $status -ne 2 ] || exit 2
    [ $status -ne $asked_to_end ] || exit $asked_to_end
    ! is_complete || status=1 # it has died after its training
    if [ "$(checkpoint_number step)" -gt "$before" ]; then failures=0; else failures=$((failures + 1)); fi
    say "ended with status $status; the last checkpoint is of step $(checkpoint_number step)"
    [ $failures -le "$most_failures" ] || stop 1 "$failures starts in a row did not reach a new checkpoint: given up"
done
