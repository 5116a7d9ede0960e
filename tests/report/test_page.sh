#!/usr/bin/env bash
# test_page.sh: makes a report page of short runs, lets a browser show it, and compares what it shows with the files of
# the runs and with what tools/bench/whatif prints.
#
# usage: test_page.sh ROOT BUILD
# Exit status 77 (skipped) without chromium, or if BUILD has no simulate.wasm, because clang or wasm-ld is missing.
set -euo pipefail
root=$1 build=$2
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
    { echo "skipped: there is no chromium"; exit 77; }
[ -e "$build/bench/simulate.wasm" ] || { echo "skipped: there is no $build/bench/simulate.wasm"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/directory"
touch "$work/guarded" && chmod 444 "$work/guarded"
for out in "$work/directory" "$work/guarded"; do
    status=0
    timeout 10 "$root/scripts/report.sh" --quick --build "$build" "$out" >"$work/out" 2>&1 || status=$?
    if [ "$status" -ne 2 ] || ! grep -q "^report.sh: $out cannot be written: " "$work/out"; then
        echo "FAIL: $out is no place for a report: expected status 2 and a line, got $status and $(cat "$work/out")"
        exit 1
    fi
done
"$root/scripts/report.sh" --quick --build "$build" --keep "$work/runs" "$work/report.html"
python3 "$root/tests/report/test_page.py" "$work" "$build/bench/whatif" "$browser"
