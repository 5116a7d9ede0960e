#!/usr/bin/env bash
# slurm.sh: sets Slurm up on this machine, with two node names, and trains under it: 4 ranks by srun, a killed rank, a
# run without --mpi, a job that is ended at its time limit, one that is requeued and goes on from its checkpoint, and
# scripts/elastic.sh in an allocation.
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
within 200 is_in_state "$job" RUNNING || fail "the job was requeued, and does not start again: $(state_of "$job")"
within 30 grep -q 'steps [1-9][0-9]* to' "$work/job.out" ||
    { cp "$work/job.out" "$work/out"; fail "the requeued job does not go on from its checkpoint"; }
within 200 is_in_state "$job" TIMEOUT || fail "the job has not ended at its time limit: $(state_of "$job")"
within 30 no_rank_is_left || fail "ranks are left of a job whose time was over"
"$@" "$train" --model mlp-toy --steps 1 --resume "$work/job.st" >"$work/out" 2>&1
saved=$(grep -o 'saved after [0-9]* steps' "$work/out" | grep -o '[0-9]*')
"$@" "$train" --model mlp-toy --steps $((${saved:-0} + 1)) --resume "$work/job.st" >"$work/out" 2>&1 ||
    fail "the checkpoint of a job whose time was over cannot be resumed"

# ---- scripts/elastic.sh in an allocation: a rank dies, it starts again, and is stopped by Slurm's signal ----

cat >"$work/elastic.sh" <<END
#!/bin/bash
exec $here/../../scripts/elastic.sh --ranks 4:4 $train --model mlp-toy --steps 10000000 --save $work/elastic.st \\
    --save-every 200
END
job=$(sbatch --parsable -N 2 -n 4 -o "$work/elastic.out" "$work/elastic.sh")
within 60 test -s "$work/elastic.st" || { cp "$work/elastic.out" "$work/out"; fail "elastic.sh: the job has saved nothing"; }
pkill -KILL -n -f "^$train.*$work/elastic.st"
within 60 grep -q 'start 2: 4 rank(s) on n1:2,n2:2, from step [1-9]' "$work/elastic.out" ||
    { cp "$work/elastic.out" "$work/out"; fail "elastic.sh: a rank was killed, and no start follows"; }
sleep 30 # it asks after 5 s whether the hosts are there, and gives up one that does not answer after 20 s
grep 'is gone' "$work/elastic.out" && fail "elastic.sh: a host that trains counts as gone"
scancel --batch --signal=USR1 "$job"
within 30 is_in_state "$job" FAILED || fail "elastic.sh: the job has not ended after SIGUSR1: $(state_of "$job")"
scontrol -o show job "$job" | grep -q 'ExitCode=75:0' || fail "elastic.sh: the job has not ended with status 75"
within 30 no_rank_is_left || fail "elastic.sh: ranks are left"

echo "$failures failure(s)"
[ $failures -eq 0 ]
