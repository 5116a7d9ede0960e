#!/usr/bin/env bash
# make_gradescope_zip.sh: packs the autograder of one stage for Gradescope: its two scripts, the stage's name, and this
# repository without .git and builds.
#
# usage: course/make_gradescope_zip.sh STAGE FILE.zip     STAGE: stage1_naive, ... or 1 to 5
# Exit status 0: done. 1: something failed. 2: wrong usage.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

stop() { # STATUS MESSAGE
    echo "make_gradescope_zip: error: $2" >&2
    exit "$1"
}

[ $# -eq 2 ] || stop 2 "usage: course/make_gradescope_zip.sh STAGE FILE.zip     STAGE: stage1_naive, ... or 1 to 5"
stage=$(find "$here" -name "stage${1}_*.points" -o -name "$1.points")
[ -f "$stage" ] || stop 2 "there is no stage '$1': take stage1_naive, ... or 1 to 5"
command -v python3 >/dev/null || stop 1 "python3 is missing: it writes the archive"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/lockstep"
tar -C "$here/.." --exclude=.git --exclude=build --exclude='build-*' --exclude=./offline --exclude='*.zip' -cf - . |
    tar -C "$scratch/lockstep" -xf -
cp "$here"/gradescope/* "$scratch"
basename "$stage" .points >"$scratch/stage"
zip=$(realpath "$2")
rm -f "$zip"
cd "$scratch"
python3 -m zipfile -c "$zip" run_autograder setup.sh stage lockstep
echo "$zip: upload it as the autograder of a programming assignment"
