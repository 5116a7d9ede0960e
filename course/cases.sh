# cases.sh: runs the graded cases of a stage, and prints its table of points. course/grade.sh and a starter's `check`
# source it, and define before they call run_lines:
#
#   stage, number      stage1_naive, 1 (names.sh)  points    the points file; course/README.md describes its columns
#   build, checked     the builds: plain, and with the address sanitizer
#   work               an empty directory          seconds, total_seconds   for one case, and for all: elapsed()
#   at_once            cases that run at the same time
#   mpiexec_options    an array: scripts/mpi.sh       not_run   why nothing is run; empty: everything is
#   limited LOG SECONDS COMMAND...   runs it with all output in LOG, and the caller's stdin. Exit status: that of the
#                      command; 124: out of time
#   report GOT WORTH IDEA MESSAGE READ   called for each line, after it was printed
# shellcheck shell=bash disable=SC2154 # these variables are assigned elsewhere

# Some of the modes that test_modes.c tries are drawn by this number, another one for each grading.
export LOCKSTEP_TEST_SEED=${LOCKSTEP_TEST_SEED-$RANDOM}

# The largest modes have 8.7 MB of weights, and a solution may hold a copy of all weights on the stack.
ulimit -S -s $((64 * 1024)) 2>/dev/null

# Seconds since the start, or since began was set again. (bash's SECONDS follows the clock of the day, which may be set.)
began=$(cut -d . -f 1 /proc/uptime)
elapsed() {
    echo $(($(cut -d . -f 1 /proc/uptime) - began))
}

# Removes control characters, which could change the terminal, and all but ASCII; cuts long lines.
plain() {
    tr -d '\000-\010\013-\037\177-\377' | cut -c 1-600
}

# shorten LOG: what is left is read by scripts, and kept until the end. The time that a pattern takes grows with more than
# the length of a line.
shorten() {
    cut -b 1-2000 "$1" | head -c $((1 << 20)) >"$1.short"
    mv "$1.short" "$1"
}

# explain STATUS LOG: why a case failed.
explain() {
    local message
    case $1 in
    124 | 137)
        message="still running after $seconds s: an endless loop, or a rank that waits for ever"
        [ "$(elapsed)" -lt "$total_seconds" ] || message="still running when the $total_seconds s for everything were over"
        ;;
    153) message="wrote more than 64 MiB" ;;
    *)
        message=$(first_message "$2" | plain)
        [ -n "$message" ] || message="ended with status $1, and the test case was not over"
        ;;
    esac
    echo "$message"
}

# run_cases PROGRAM RANKS LOG CASE...: runs the cases in one start of the program, until one fails. The pipe
# LOCKSTEP_TEST_SECRETS has a line for each, by which has_passed() knows it (tests/stages/judge.h). CASE -: a whole test
# of ctest's.
# PROGRAM address:NAME: the program of the build with the address sanitizer. CASE zero_2:NAME: at level 2 of stage 5.
# start:NAME, factor:NAME, order:NAME: this is not given (tests/stages/given.h). Returns the exit status.
run_cases() {
    local program=${1#address:} ranks=$2 log=$3 programs=$build executable sanitizer=''
    [ "$1" = "$program" ] || sanitizer=address programs=$checked
    shift 3
    executable=$programs/$stage/test_${program}_stage$number
    [ -e "$executable" ] || executable=$programs/$stage/${program}_stage$number # bits
    if [ "$1" = - ]; then # nothing is given
        sanitizer=$sanitizer limited "$log" "$seconds" ctest --test-dir "$build" --no-tests=error --verbose \
            -R "^stage${number}_$program(_${ranks}_ranks)?\$"
    else
        sanitizer=$sanitizer LOCKSTEP_TEST_GIVEN="start factor order memory" limited "$log" "$seconds" \
            mpiexec "${mpiexec_options[@]}" -n "$ranks" "$executable" --judge "$@" </dev/null
    fi
}

# judge_group PROGRAM RANKS CASE...: writes "passed", or "failed: " and why, to $work/results/PROGRAM RANKS CASE for each
# case. (On a full disk such a file is empty, so an empty one must not mean that the case has passed.) The program is
# started again for a case that fails, and for those after it.
judge_group() {
    local program=$1 ranks=$2 status message log secrets pipe first case
    shift 2
    while [ $# -gt 0 ]; do
        log="$work/logs/$program $ranks $1"
        if [ -n "$not_run" ]; then
            message=$not_run
        elif [ "$(elapsed)" -ge "$total_seconds" ]; then
            message="not run: the $total_seconds s for everything were over"
        else
            mapfile -t secrets < <(od -A n -N $((16 * $#)) -t x8 -w16 -v /dev/urandom | tr -d ' ')
            pipe=$work/secrets.$BASHPID
            mkfifo "$pipe" && exec 8<>"$pipe" && printf '%s\n' "${secrets[@]}" >&8
            LOCKSTEP_TEST_SECRETS=$pipe run_cases "$program" "$ranks" "$log" "$@" 8>&-
            status=$?
            exec 8>&-
            rm -f "$pipe"
            # The address sanitizer reports a leak at the end, and does not say whose it is.
            if [[ $program = address:* ]] && [ $# -gt 1 ] && [ $status -ne 0 ]; then
                for case; do judge_group "$program" "$ranks" "$case"; done
                return
            fi
            # The end of the program, after its last case, must be in order, too.
            first=$1
            while [ $# -gt 0 ] && has_passed "$1" "$log" "${secrets[0]}" && { [ $# -gt 1 ] || [ $status -eq 0 ]; }; do
                echo passed >"$work/results/$program $ranks $1"
                secrets=("${secrets[@]:1}")
                shift
            done
            shorten "$log"
            [ $# -gt 0 ] || return
            # What an earlier case has left behind may be the cause. So a case fails only if it is the first one.
            [ "$1" = "$first" ] || continue
            message=$(explain $status "$log")
        fi
        echo "failed: $message" >"$work/results/$program $ranks $1"
        shift
    done
}

has_passed() { # CASE LOG SECRET
    if [ "$1" = - ]; then # and its exit status is 0
        grep -a -q -F ' 0 failure(s)' "$2"
    else
        [ "$(grep -a -c -F "passed: $1 $3" "$2")" -eq 1 ]
    fi
}

# GRADE_RANKS takes the place of RANKS, but not of 1, nor of "1:", nor in a whole test of ctest's.
# cases_of PROGRAM RANKS CASES: a line "PROGRAM RANKS CASE" for each. "1:" before a case: it runs on one rank. What is
# before the program, but for address:, goes to the case: one start of the program runs several such cases.
cases_of() {
    local program=$1 words='' address='' case ranks=$2
    [[ $program != address:* ]] || address=address: program=${program#address:}
    [[ $program != *:* ]] || words=${program%:*}: program=${program##*:}
    [ "$3" = - ] || [ "$2" = 1 ] || ranks=${GRADE_RANKS:-$2}
    for case in ${3//+/ }; do
        if [[ $case = *:* ]]; then
            echo "$address$program ${case%%:*} $words${case#*:}"
        else
            echo "$address$program $ranks $words$case"
        fi
    done
}

# The lines of the points file, with their numbers. "read: WHERE" from the line below it goes into the same line, after a
# tab.
lines_of_points() {
    awk '/^ *(#|$)/ { next }
         /^ *read: / { sub(/^ *read: /, ""); print ++count, line "\t" $0; next }
         { line = $0 }' "$points"
}

# judge_cases: runs the cases of the lines on standard input, each one once. Those of one program and number of ranks
# are a group.
judge_cases() {
    local program ranks cases group
    mkdir -p "$work/results" "$work/logs"
    while read -r _ _ program ranks cases _; do
        cases_of "$program" "$ranks" "$cases"
    done | awk '!seen[$0]++' >"$work/cases"
    awk '{ group = $1 " " $2 }
         !(group in cases) { order[++count] = group; start[group] = $1 " " $2 }
         { cases[group] = cases[group] " " $3 }
         END { for (i = 1; i <= count; i++) print start[order[i]] cases[order[i]] }' "$work/cases" >"$work/groups"
    while read -r -a group; do
        while [ "$(jobs -r | wc -l)" -ge "$at_once" ]; do wait -n; done
        judge_group "${group[@]}" &
    done <"$work/groups"
    wait
}

# run_lines: runs the lines on standard input (from lines_of_points), prints the table, and calls report for each.
run_lines() {
    local worth program ranks cases idea read message result key name where case line index total=0 of=0
    cat >"$work/lines"
    judge_cases <"$work/lines"
    printf '%4s%8s  %-6s  %s\n' line points "" "what must be true"
    while IFS= read -r line; do
        read -r index worth program ranks cases idea <<<"${line%%$'\t'*}"
        read=${line#*$'\t'} message='' name=$program
        [[ $name =~ ^(start|factor|order): ]] && name=${name#*:}
        while IFS= read -r key && [ -z "$message" ]; do
            result=$(cat "$work/results/$key")
            [ "$result" != passed ] || continue
            result=${result#failed: }
            read -r _ where case <<<"$key"
            message="$name on $where ranks, ${case##*:}: ${result:-its result could not be written: is the disk full?}"
        done < <(cases_of "$program" "$ranks" "$cases")
        message=${message/ on - ranks, -/} message=${message/ ranks, -:/ ranks:} # -: a whole test of ctest's
        message=${message/ on 1 ranks/} # one process
        got=$worth
        [ -z "$message" ] || got=0
        total=$((total + got)) of=$((of + worth))
        printf '%3d  %3d/%3d  %-6s  %s\n' "$index" "$got" "$worth" "$([ -z "$message" ] && echo passed || echo FAILED)" "$idea"
        [ "$cases" = - ] || [ "$ranks" = 1 ] || ranks=${GRADE_RANKS:-$ranks}
        where="$name on $ranks ranks: $(sed -E 's/([0-9]):([^+]*)/\2 (\1 rank)/g; s/\+/, /g' <<<"$cases")"
        where=${where/ on - ranks/}
        where=${where/ on 1 ranks/}
        printf '%22s(%s)\n' "" "${where%: -}"
        [ -z "$message" ] || printf '%22s%s\n' "" "$message"
        report "$got" "$worth" "$idea" "$message" "$read"
    done <"$work/lines"
    printf '%8d/%3d  total\n' $total $of
}
