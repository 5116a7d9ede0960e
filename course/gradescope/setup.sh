#!/usr/bin/env bash
# setup.sh: Gradescope runs this once, as root, when it makes the image of an autograder: what is needed is installed,
# everything but a submission is built, and the project's own solution must get all points.
# https://gradescope-autograders.readthedocs.io/en/latest/specs/
#   AUTOGRADER   what Gradescope calls /autograder (a test uses another directory)
set -euo pipefail
export LC_ALL=C
autograder=${AUTOGRADER:-/autograder}
lockstep=$autograder/source/lockstep
stage=$(cat "$autograder/source/stage")

# Open MPI, because the mpich of Ubuntu 24.04 starts every process as rank 0 of 1:
# https://bugs.launchpad.net/ubuntu/+source/mpich/+bug/2072338
if ! { command -v mpiexec && command -v patch && command -v python3; } >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install -y --no-install-recommends openmpi-bin libopenmpi-dev patch python3 python3-pip
    # Ubuntu 22.04's own cmake is too old.
    if grep -q '^VERSION_ID="22.04"' /etc/os-release; then pip3 install 'cmake>=3.25'; fi
fi
"$lockstep/scripts/setup.sh"

# shellcheck source=../names.sh
source "$lockstep/course/names.sh"
set_names "$stage"
export GRADE_CACHE=$autograder/cache
"$lockstep/course/grade.sh" "$stage" "$lockstep/$home" --json "$autograder/own.json"
jq -e '.points == .of' "$autograder/own.json" >/dev/null || {
    echo "setup: error: the project's own $c_names does not get all points on this image" >&2
    exit 1
}
# A submission runs beside these files, where there is no sandbox. The cache has all that grading needs.
find "$autograder/cache" "$lockstep"/{stage*,course} -type f \
    \( -name ddp.c -o -path "*/$stage/${c_files[-1]}" -o -path '*/collectives/collectives.c' \) -delete
rm -rf "$lockstep/tests/stages/solutions" "$lockstep/course/instructor"
