#!/usr/bin/env bash
# make_gradescope_zip.sh: packs the autograder of one stage for Gradescope: its two scripts, the stage's name, and the
# files that git knows of this repository; if this is no clone, all but builds, submissions, grades and tables.
#
# usage: course/make_gradescope_zip.sh STAGE FILE.zip     STAGE: collectives, stage1_naive, ... or 0 to 5
# Exit status 0: done. 1: something failed. 2: wrong usage.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

stop() { # STATUS MESSAGE
    echo "make_gradescope_zip: error: $2" >&2
    exit "$1"
}

# shellcheck source-path=SCRIPTDIR source=names.sh
source "$here/names.sh"
[ $# -eq 2 ] || stop 2 "usage: course/make_gradescope_zip.sh STAGE FILE.zip     STAGE: $stages"
find_stage "$1" "$here" || stop 2 "there is no stage '$1': take $stages"
command -v python3 >/dev/null || stop 1 "python3 is missing: it writes the archive"
zip=$(realpath "$2")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/lockstep"
cd "$here/.."
files() {
    if git ls-files --error-unmatch CMakeLists.txt >/dev/null 2>&1; then
        git ls-files -z
    else
        find . -type f ! -path './.git/*' ! -path '*/build/*' ! -path './build-*' ! -path './offline/*' \
            ! -path './submissions/*' ! -path './grades/*' ! -name '*.zip' ! -name '*.csv' -print0
    fi
}
files | tar --null -T - --ignore-failed-read -cf - | tar -C "$scratch/lockstep" -xf -
cp "$here"/gradescope/* "$scratch"
echo "$stage" >"$scratch/stage"
rm -f "$zip"
cd "$scratch"
python3 -m zipfile -c "$zip" run_autograder setup.sh stage lockstep
echo "$zip: upload it as the autograder of a programming assignment"
