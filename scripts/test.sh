#!/usr/bin/env bash
# test.sh: installs missing packages, builds what has changed, runs the tests. It can be called from any directory.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/build.sh"

usage() {
    cat <<'END'
usage: scripts/test.sh [--slow] [--preset NAME] [-DVARIABLE=VALUE]... [-- CTEST-ARGUMENT...]
  --slow          also the tests labelled slow (8 ranks, long runs)
  --preset NAME   release (default, in build/), or debug, asan, tsan, cuda (each in build-NAME/)
  -DVAR=VALUE     passed to cmake, e.g. -DLOCKSTEP_WERROR=ON
  -- ...          passed to ctest, e.g. -- -R allreduce
END
}

preset=release
slow_filter=(-LE slow)
definitions=()
while [ $# -gt 0 ]; do
    case $1 in
        --slow) slow_filter=() ;;
        --preset)
            [ $# -ge 2 ] || { echo "test.sh: error: --preset needs a name" >&2; exit 2; }
            preset=$2
            shift
            ;;
        -D?*) definitions+=("$1") ;;
        -h | --help) usage; exit 0 ;;
        --) shift; break ;;
        *) echo "test.sh: error: unknown argument $1" >&2; usage >&2; exit 2 ;;
    esac
    shift
done
case $preset in
    release | debug | asan | tsan | cuda) ;;
    *) echo "test.sh: error: --preset $preset: there are release, debug, asan, tsan and cuda" >&2; exit 2 ;;
esac

"$repository/scripts/setup.sh"
use_own_openblas_kernels
build_targets=(everything)
build_preset "$preset" "${definitions[@]}"

# ctest knows how many ranks a test has, and runs fewer tests beside it. Two more than there are processors, as many
# scripts mostly wait for a program to start or to end.
echo "== test ${preset}: ctest ${slow_filter[*]} $*"
ctest --test-dir "$(preset_directory "$preset")" --output-on-failure --no-tests=error --parallel $(($(nproc) + 2)) \
    "${slow_filter[@]}" "$@"
