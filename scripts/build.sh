# shellcheck shell=bash
# build.sh: configures and builds one preset of CMakePresets.json. Source it from a script with `set -eu`:
#
#   source scripts/build.sh
#   build_targets=(train_stage1) # without it, all stages' programs are built; everything: the tests and tools, too
#   build_preset release -DLOCKSTEP_WERROR=ON
#   ls "$(preset_directory release)"

export LC_ALL=C # printf rejects a decimal comma, and the scripts search the tools' messages for English words
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# release is built in build/, any other preset in build-NAME/.
preset_directory() {
    if [ "$1" = release ]; then echo "$repository/build"; else echo "$repository/build-$1"; fi
}

# OpenBLAS picks its kernels by CPU. This variable overrides that, often with slower ones.
use_own_openblas_kernels() {
    if [ -n "${OPENBLAS_CORETYPE:-}" ]; then
        echo "note: OPENBLAS_CORETYPE=$OPENBLAS_CORETYPE is unset here: OpenBLAS then picks its kernels for this CPU"
        unset OPENBLAS_CORETYPE
    fi
}

# build_preset NAME [-DVARIABLE=VALUE...]: incremental, so a second call takes seconds.
build_preset() {
    build_preset_in "$(preset_directory "$1")" "$@"
}

# build_preset_in DIRECTORY NAME [-DVARIABLE=VALUE...]: the same in another directory.
build_preset_in() {
    local directory=$1 preset=$2 log
    shift 2
    log=$directory/configure.log
    mkdir -p "$directory"
    if [ ! -e "$directory/CMakeCache.txt" ] && command -v ninja >/dev/null; then
        export CMAKE_GENERATOR=Ninja
    fi
    echo "== configure ${directory##*/}/ (preset $preset${*:+, $*})"
    if ! (cd "$repository" && cmake --preset "$preset" -B "$directory" "$@") >"$log" 2>&1; then
        cat "$log" >&2
        echo "error: cmake could not configure preset '$preset' (its output is above)" >&2
        return 1
    fi
    grep -o 'CUDA: o.*' "$log" || true # whether CUDA is on, and if not, why
    echo "== build ${directory##*/}/ ($(nproc) jobs)"
    cmake --build "$directory" --parallel "$(nproc)" ${build_targets:+--target "${build_targets[@]}"}
}
