#!/usr/bin/env bash
# diagnose.sh: says why N ranks are slower than one; or which rank a run that hung was waiting for, and since when.
#
# usage: scripts/diagnose.sh [--ranks N] [...] -- FLAG...   the flags of the slow run; --help says more (diagnose.py)
#        scripts/diagnose.sh --flight-recorder FILE         FILE: that of `train --flight-recorder FILE`
# Exit status 0: it has measured, or found the place. 1: a run failed, or the file shows no place. 2: wrong usage.
# 3: it cannot tell, because other programs used the cores.
set -u
export LC_ALL=C
[ "${1-}" = --flight-recorder ] || exec python3 "$(dirname "$0")/diagnose.py" "$@"
[ $# -eq 2 ] || { sed -n '4,5s/^# //p' "$0" >&2; exit 2; }
command -v jq >/dev/null || { echo "diagnose.sh: jq is missing: scripts/setup.sh installs it" >&2; exit 2; }
[ -r "$2" ] || { echo "diagnose.sh: $2 cannot be read" >&2; exit 2; }
[ -s "$2" ] || { echo "$2 is empty: no collective took too long, or the run has not ended yet"; exit 1; }

# The collective that hangs is the first one of its group that some rank has called and not finished; if more than one
# group hangs, of the group that has waited longest. Who has not called it, or has called another one under its number,
# is the cause. A rank without lines could not write any.
text=$(jq -s -r '
    def name: "\(.collective) number \(.number)\(if .carries == "" then "" else " (\(.carries))" end)\(
        if .group == "the world" then "" else " of \(.group)" end)";
    def call: [.collective, .carries, .count, .dtype];
    def ago: "\(. * 10 | round / 10) s ago";
    (map(select(.done_s_ago == null)) | max_by(.called_s_ago) // {}) as $waits
    | map(select(.group == $waits.group)) as $all
    | ($all | map(select(.done_s_ago == null)) | min_by(.number)) as $stuck
    | ($all | group_by(.rank) | map(max_by(.number))) as $last
    | ([range($stuck.ranks // 0)] - ($last | map(.rank_in_group))) as $silent
    | if $stuck == null then
        "Every collective that was called is done. The ranks wait outside of collectives.", 1
      else
        ($all | map(select(.number == $stuck.number))) as $callers
        | ($callers | group_by(call) | map(.[0])) as $different
        | ($last | map(select(.number < $stuck.number))) as $missing
        | "The run hangs in \($stuck | name), \($stuck.count) x \($stuck.dtype).",
          (if ($different | length) > 1 then
            "The ranks call different collectives under this number:",
            ($callers[] | "    rank \(.rank): \(name), \(.count) x \(.dtype)"),
            "One of them leaves a call out, or makes one too many, before it: compare what they called earlier.",
            "Read: notes/faults.md, \"The ranks call different collectives\"."
          else
            ($callers[] | select(.ready_s_ago == null)
                | "Rank \(.rank) has called it, but its device has not computed what it is to send."),
            ($missing[] | "Rank \(.rank) has not called it. Its last one, \(name), " +
                (if .done_s_ago == null then "is not done." else "was done \(.done_s_ago | ago); since then it computes, or is stuck." end)),
            ($silent[] | "Rank \(.)\(if $waits.group == "the world" then "" else " of the group" end) has written nothing: it was stopped or killed, had ended before, or its host does not answer."),
            (if ($missing + ($silent | map({}))) == [] and ($callers | all(.ready_s_ago != null)) then
                "All ranks have called it: the messages do not get through (the network, or --wire is too slow)." else empty end),
            "Read: notes/faults.md, \"A rank is missing\"."
          end),
          0
      end' "$2") || { echo "diagnose.sh: $2 is no file of --flight-recorder" >&2; exit 2; }
echo "${text%$'\n'*}"
exit "${text##*$'\n'}"
