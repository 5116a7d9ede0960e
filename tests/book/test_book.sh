#!/usr/bin/env bash
# test_book.sh: makes the book, and checks its pages, also in a browser without a screen.
#
# usage: test_book.sh ROOT
# Exit status 77 (skipped) without chromium, python3-markdown or python3-pygments.
set -euo pipefail
root=$1
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
    { echo "skipped: there is no chromium"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! "$root/scripts/book.sh" "$work/site" >"$work/out" 2>&1; then
    cat "$work/out"
    if grep -q '^book.sh: error: Python lacks' "$work/out"; then echo "skipped: see above" && exit 77; fi
    exit 1
fi
python3 -B "$root/tests/book/test_book.py" "$root" "$work/site" "$browser"
