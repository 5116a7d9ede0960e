#!/usr/bin/env bash
# slurm.sh: sets Slurm up on this machine, with two node names, and trains under it: 4 ranks by srun, a killed rank, a
# run without --mpi, a job that is ended at its time limit, one that is requeued and goes on from its checkpoint, the
# batch script of notes/faults.md, and scripts/elastic.sh in an allocation, which a rank, the launcher and a node leave.
#
# usage: tests/guard/slurm.sh TRAIN HASH_COMMAND...     HASH_COMMAND: starts 4 ranks of TRAIN without Slurm, as mpiexec -n 4
# Needs root, and Debian's and Ubuntu's packages slurmctld, slurmd, slurm-client and munge; without them it is skipped
# (status 77). Its daemons have files, ports and a key of their own: a Slurm that runs on the machine is not touched.
set -u
export LC_ALL=C
train=$1 here=$(dirname "$(realpath "$0")")
shift
for tool in munged slurmctld slurmd srun sbatch scontrol; do
    PATH=$PATH:/usr/sbin command -v $tool >/dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
[ "$(id -u)" -eq 0 ] || { echo "skipped: Slurm's daemons start jobs as their users, which needs root"; exit 77; }
export PATH=$PATH:/usr/sbin HWLOC_PLUGINS_PATH=/none
work=$(mktemp -d) && chmod 755 "$work" || exit 1
failures=0

fail() {
    failures=$((failures + 1))
    echo "FAIL: $*"
    tail -n 15 "$work/out" | sed 's/^/    /'
}

# ---- the cluster ----

host=$(hostname -s)
export SLURM_CONF=$work/slurm.conf
mkdir "$work/state" "$work/n1" "$work/n2"
(umask 077 && head -c 1024 /dev/urandom >"$work/munge.key")
cat >"$SLURM_CONF" <<END
ClusterName=lockstep
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthInfo=socket=$work/munge.sock
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.%n.log
SlurmctldPort=17000
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
KillWait=3
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=17001 CPUs=2
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=17002 CPUs=2
PartitionName=all Nodes=n1,n2 Default=YES State=UP
END

stop_cluster() {
    scancel --state=RUNNING 2>/dev/null
    scancel --state=PENDING 2>/dev/null
    sleep 1
    for daemon in slurmctld slurmd.n1 slurmd.n2 munge; do
        [ ! -e "$work/$daemon.pid" ] || kill "$(cat "$work/$daemon.pid")" 2>/dev/null
    done
    sleep 1
    rm -rf "$work"
}
trap stop_cluster EXIT
munged --force --key-file="$work/munge.key" --socket="$work/munge.sock" --pid-file="$work/munge.pid" \
    --log-file="$work/munge.log" --seed-file="$work/munge.seed" >"$work/out" 2>&1 &&
    slurmctld -c >"$work/out" 2>&1 && slurmd -N n1 >"$work/out" 2>&1 && slurmd -N n2 >"$work/out" 2>&1
status=$?
[ $status -eq 0 ] || { fail "a daemon does not start"; exit 1; }

# within SECONDS COMMAND...: waits until the command succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.5
    done
}
both_are_idle() { [ "$(sinfo -h -t idle -o %D)" = 2 ]; }
state_of() { scontrol -o show job "$1" | grep -o 'JobState=[A-Z]*' | cut -d = -f 2; }
is_in_state() { [ "$(state_of "$1")" = "$2" ]; }
no_rank_is_left() { ! pgrep -f "^$train.*$work" >/dev/null; }
within 30 both_are_idle || { fail "the nodes do not become idle: $(sinfo)"; exit 1; }

ranks=(srun -N 2 -n 4 --overcommit --oversubscribe --mpi=pmi2)
hash_of() { grep -o '^ *weights .*(hash)' "$1"; }

# ---- 4 ranks on two nodes train what 4 ranks of the MPI's own launcher train ----

timeout 120 "${ranks[@]}" "$train" --model mlp-toy --steps 20 --allreduce ordered --verify >"$work/out" 2>&1 ||
    fail "4 ranks under srun: status $?"
"$@" "$train" --model mlp-toy --steps 20 --allreduce ordered >"$work/alone" 2>&1
[ "$(hash_of "$work/out" || echo none)" = "$(hash_of "$work/alone")" ] ||
    fail "other weights than those of $*: $(hash_of "$work/alone")"

# ---- without --mpi, srun starts programs of one rank each ----

timeout 60 srun -n 2 --overcommit --oversubscribe --mpi=none "$train" --model mlp-toy --steps 2 >"$work/out" 2>&1 &&
    fail "2 programs of one rank each have trained"
grep -q 'srun started 2 ranks (SLURM_STEP_NUM_TASKS), but this program.s MPI library sees 1' "$work/out" || fail "no message says so"

# ---- a killed rank ends the job ----

timeout 120 "${ranks[@]}" "$train" --model mlp-toy --steps 10000000 --json "$work/killed.json" >"$work/out" 2>&1 &
step=$!
within 60 grep -q 'step *[0-9]' "$work/out" || fail "the run does not begin"
start=$SECONDS
pkill -KILL -n -f "^$train.*$work/killed.json"
wait $step && fail "a rank was killed, and srun ended with status 0"
[ $((SECONDS - start)) -le 20 ] || fail "srun ended $((SECONDS - start)) s after a rank was killed"
within 10 no_rank_is_left || fail "ranks are left"

# ---- a job that is requeued goes on from its checkpoint; one whose time is over is ended, and its checkpoint is whole ----

cat >"$work/job.sh" <<END
#!/bin/bash
resume=
if [ -e $work/job.st ]; then resume="--resume $work/job.st"; fi
exec ${ranks[*]} $train --model mlp-toy --steps 10000000 --save $work/job.st --save-every 200 \$resume
END
job=$(sbatch --parsable -N 2 -n 4 --overcommit --requeue --time=1 -o "$work/job.out" "$work/job.sh")
within 60 test -s "$work/job.st" || { cp "$work/job.out" "$work/out"; fail "the job has saved nothing"; }
scontrol requeue "$job"
within 30 no_rank_is_left || fail "ranks are left of a job that was requeued"
scontrol update "JobId=$job" StartTime=now # else Slurm waits for two minutes
within 200 is_in_state "$job" RUNNING || fail "the job was requeued, and does not start again: $(state_of "$job")"
within 30 grep -q 'steps [1-9][0-9]* to' "$work/job.out" ||
    { cp "$work/job.out" "$work/out"; fail "the requeued job does not go on from its checkpoint"; }
within 200 is_in_state "$job" TIMEOUT || fail "the job has not ended at its time limit: $(state_of "$job")"
within 30 no_rank_is_left || fail "ranks are left of a job whose time was over"
"$@" "$train" --model mlp-toy --steps 1 --resume "$work/job.st" >"$work/out" 2>&1
saved=$(grep -o 'saved after [0-9]* steps' "$work/out" | grep -o '[0-9]*')
"$@" "$train" --model mlp-toy --steps $((${saved:-0} + 1)) --resume "$work/job.st" >"$work/out" 2>&1 ||
    fail "the checkpoint of a job whose time was over cannot be resumed"

# ---- the batch script of notes/faults.md, "A run is stopped": a signal to its shell, it saves, and goes on ----

sed -n '/^    #SBATCH --signal/,/^    .*requeue/s/^    //p' "$here/../../notes/faults.md" >"$work/lines"
sed "1s/^/#!\/bin\/bash\n/; s|-n 8 .* gpt|-n 4 $train --model mlp-toy --steps 10000000|; s|ck\.st|$work/ck.st|g" \
    "$work/lines" >"$work/batch.sh"
job=$(sbatch --parsable -N 2 -n 4 --requeue -o "$work/batch.out" --open-mode=append "$work/batch.sh")
within 60 grep -q 'step *[0-9]' "$work/batch.out" || fail "the batch script does not train"
scancel --batch --signal=USR1 "$job"
within 60 is_in_state "$job" PENDING || fail "the batch script: not requeued after SIGUSR1"
scontrol update "JobId=$job" StartTime=now
within 60 grep -q 'steps [1-9][0-9]* to' "$work/batch.out" ||
    { cp "$work/batch.out" "$work/out"; fail "the batch script: does not go on from its checkpoint"; }
scancel "$job"
within 30 no_rank_is_left || fail "the batch script: ranks are left"

# ---- scripts/elastic.sh in an allocation: a rank dies, then the launcher, then a node; Slurm's signal stops it ----

cat >"$work/elastic.sh" <<END
#!/bin/bash
exec $here/../../scripts/elastic.sh --ranks 2:4 $train --model mlp-toy --steps 10000000 --save $work/elastic.st \\
    --save-every 200
END
starts_again() { # NUMBER RANKS WHY
    within 90 grep -q "start $1: $2, from step [1-9]" "$work/elastic.out" ||
        { cp "$work/elastic.out" "$work/out"; fail "elastic.sh: $3, and no start follows"; }
}
job=$(sbatch --parsable --no-kill -N 2 -n 4 -o "$work/elastic.out" "$work/elastic.sh")
within 60 test -s "$work/elastic.st" || { cp "$work/elastic.out" "$work/out"; fail "elastic.sh: the job has saved nothing"; }
pkill -KILL -n -f "^$train.*$work/elastic.st"
starts_again 2 "4 rank(s) on n1:2,n2:2" "a rank was killed"
sleep 30 # it asks after 5 s whether the hosts are there, and gives up one that does not answer after 20 s
grep 'is gone' "$work/elastic.out" && fail "elastic.sh: a host that trains counts as gone"
pkill -KILL -f "^mpiexec.*$work/elastic.st"
starts_again 3 "4 rank(s) on n1:2,n2:2" "the launcher was killed"
sleep 5 # it trains
processes=$(grep -lsazx SLURMD_NODENAME=n2 /proc/[0-9]*/environ | cut -d / -f 3)
# shellcheck disable=SC2046,SC2086 # lists of numbers: the node's daemon, its processes, and those that started them
kill -KILL "$(cat "$work/slurmd.n2.pid")" $processes \
    $(ps -o ppid= -p "$(paste -sd , <<<"$processes")" | grep -vx ' *1') 2>/dev/null
starts_again 4 "2 rank(s) on n1:2" "a node died"
scancel --batch --signal=USR1 "$job"
has_ended_with_75() { scontrol -o show job "$job" | grep -q 'ExitCode=75:0'; } # COMPLETING: the dead node says nothing
within 30 has_ended_with_75 || fail "elastic.sh: the job has not ended with status 75: $(state_of "$job")"
within 30 no_rank_is_left || fail "elastic.sh: ranks are left"

echo "$failures failure(s)"
[ $failures -eq 0 ]
