#!/usr/bin/env bash
# random.sh: tries random mistakes in common/ and train/, and says how many the tests notice. See README.md.
#
# usage: tests/mutants/random.sh [--seed N] [--room NAME] [--count N] [--again] [--check N]     --help: what these mean
# Works in build-random-mutants/, or in $RANDOM_MUTANTS. The files there make the next run begin faster, and let an
# interrupted one continue. Needs cmake, ninja and python3. Exit status 0: done, whatever the score.
set -u
export LC_ALL=C

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=${RANDOM_MUTANTS:-$root/build-random-mutants}
# shellcheck source-path=SCRIPTDIR
source "$here/copy_tree.sh"

give_up() {
    echo "random.sh: $*" >&2
    exit 1
}

# programs NAME: all but the CUDA emulator's.
programs() {
    ninja -C "$work/$1" -t targets all | sed -n 's/: C_EXECUTABLE.*//p' | grep -v cuda_emulator
}

# build NAME CMAKE-ARGUMENT...: all programs, into $work/NAME.
build() {
    echo "building $1 ..."
    {
        # shellcheck disable=SC2046
        cmake -G Ninja -S "$work/tree" -B "$work/$1" -DCMAKE_BUILD_TYPE=None -DLOCKSTEP_CUDA=OFF \
            -DCMAKE_EXPORT_COMPILE_COMMANDS=ON "${@:2}" && ninja -C "$work/$1" $(programs "$1")
    } >"$work/$1.log" 2>&1 || {
        tail -n 30 "$work/$1.log"
        give_up "$1 does not build"
    }
}

for tool in ninja ctest ar addr2line; do
    command -v $tool >/dev/null || give_up "needs $tool (Debian and Ubuntu: apt-get install ninja-build cmake binutils)"
done

case " $* " in *" --help "* | *" -h "*) exec python3 "$here/random_mutation.py" --help ;; esac

# update_tree: brings $work/tree up to date, file by file, so that ninja builds only what has changed.
update_tree() {
    rm -rf "$work/new"
    copy_tree "$root" "$work/new" || give_up "could not copy the tree"
    mkdir -p "$work/tree"
    # Other code means other mutants, so the results of the old ones are moved away.
    { diff -rq "$work/new/common" "$work/tree/common" && diff -rq "$work/new/train" "$work/tree/train"; } >/dev/null 2>&1 ||
        for results in "$work"/results-*.tsv; do [ ! -e "$results" ] || mv "$results" "$results.old"; done
    diff -rq -x mutants "$work/new" "$work/tree" >/dev/null || rm -f "$work/built" "$work"/*.json
    (cd "$work/new" && find . -type f) | while IFS= read -r file; do
        cmp -s "$work/new/$file" "$work/tree/$file" || cp --parents "./$file" "$work/tree"
    done
    (cd "$work/tree" && find . -type f) | while IFS= read -r file; do
        [ -e "$work/new/$file" ] || rm "$work/tree/$file"
    done
    rm -rf "$work/new"
}

mkdir -p "$work" || give_up "cannot create $work"
work=$(cd "$work" && pwd)
update_tree
if [ ! -e "$work/built" ]; then
    "${CC:-cc}" -O1 -c -o "$work/entered.o" "$here/entered.c" || give_up "cannot compile entered.c"
    build plain -DCMAKE_C_FLAGS=-O1
    build address -DCMAKE_C_FLAGS=-O1 -DLOCKSTEP_SANITIZE=address
    build thread -DCMAKE_C_FLAGS=-O1 -DLOCKSTEP_SANITIZE=thread
    build entered -DCMAKE_C_FLAGS="-O1 -g -finstrument-functions" \
        -DCMAKE_EXE_LINKER_FLAGS="-fuse-ld=gold $work/entered.o" # the other ld (2.40) crashes on nccl_rank
    touch "$work/built"
fi
exec python3 "$here/random_mutation.py" --work "$work" "$@"
