#!/usr/bin/env bash
# setup.sh: finds out what is missing to build, test and run lockstep, says so, and installs it.
# This works on Debian, Ubuntu and systems derived from them; on others it lists what is missing and stops.
# If nothing is missing it prints one line and changes nothing. An MPI that is already installed is kept.
set -euo pipefail
export LC_ALL=C
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

cmake_needed=$(sed -nE 's/^cmake_minimum_required\(VERSION ([0-9.]+).*/\1/p' "$repository/CMakeLists.txt")
fashion_mnist=/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz
jargon_file=/usr/share/doc/jargon-text/jargon.txt.gz

has_command() { command -v "$1" >/dev/null; }
has_library() { has_command pkg-config && pkg-config --exists "$1"; }

# The launcher and the compiler's wrapper may be installed without the headers.
has_mpi() {
    has_command mpiexec && has_command mpicc && echo '#include <mpi.h>' | mpicc -fsyntax-only -xc - 2>/dev/null
}
# Ubuntu 24.04 gets Open MPI: its mpich is broken, see check_ranks().
mpi_packages() {
    if grep -qs '^UBUNTU_CODENAME=noble' /etc/os-release ||
        { has_command mpiexec && mpiexec --version 2>&1 | grep -qi 'open.\?mpi\|open-\?rte\|prrte'; }; then
        echo "openmpi-bin libopenmpi-dev"
    else
        echo "mpich libmpich-dev"
    fi
}

# One line for each missing item: its packages, and their purpose.
list_missing() {
    has_command cc || echo "build-essential: the C compiler and the C library's headers"
    has_command cmake || echo "cmake: writes the build files (version $cmake_needed or later)"
    has_command ninja || has_command make || echo "ninja-build: runs the compiler, in parallel and only where needed"
    has_command pkg-config || echo "pkg-config: tells cmake where the libraries are"
    has_mpi || echo "$(mpi_packages): MPI, which starts the ranks and connects them"
    has_library openblas || echo "libopenblas-dev: matrix products on the CPU"
    has_library zlib || echo "zlib1g-dev: reads the data sets, which are compressed"
    has_library libcjson || echo "libcjson-dev: reads and writes JSON (checkpoints, traces, summaries)"
    has_library cmocka || echo "libcmocka-dev: the framework of the tests"
    has_command jq || echo "jq: reads the JSON summaries in the shell scripts"
    has_command patch || echo "patch: applies the patches of course/ and tests/mutants/"
    [ -r $fashion_mnist ] || echo "dataset-fashion-mnist: 70000 pictures of clothes, the data of --model mlp"
    [ -r $jargon_file ] || echo "jargon-text: a 1.7 MB text in the public domain, the data of --model gpt"
}

is_debian_like() {
    [ -r /etc/os-release ] && has_command apt-get && (
        . /etc/os-release
        case " ${ID:-} ${ID_LIKE:-} " in *" debian "* | *" ubuntu "*) true ;; *) false ;; esac
    )
}

stop() {
    printf 'setup: error: %s\n' "$@" >&2
    exit 1
}

# cmake may be older than CMakeLists.txt requires, and apt-get may have no newer one.
check_cmake_version() {
    local found
    found=$(cmake --version | sed -nE '1s/.* ([0-9]+\.[0-9.]+).*/\1/p')
    if [ "$(printf '%s\n' "$cmake_needed" "$found" | sort -V | head -n 1)" != "$cmake_needed" ]; then
        stop "cmake $found is too old: $cmake_needed or later is needed (try: pip install cmake, or a newer release)"
    fi
}

# The mpich 4.2.0-5build3 of Ubuntu 24.04 starts every process as rank 0 of 1, so every test of several ranks would fail
# in its own way: https://bugs.launchpad.net/ubuntu/+source/mpich/+bug/2072338
check_ranks() {
    local directory sizes
    # shellcheck source-path=SCRIPTDIR source=mpi.sh
    source "$repository/scripts/mpi.sh"
    directory=$(mktemp -d)
    cat >"$directory/ranks.c" <<'END'
#include <mpi.h>
#include <stdio.h>
int main(void)
{
    int size;
    MPI_Init(NULL, NULL);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("%d\n", size);
    return MPI_Finalize();
}
END
    sizes=$(mpicc "$directory/ranks.c" -o "$directory/ranks" && run_ranks_under=(timeout 60) &&
        run_ranks 2 "$directory/ranks" 2>&1) || true
    rm -r "$directory"
    case $sizes in
    $'2\n2') ;;
    $'1\n1') stop "mpiexec -n 2 starts two processes, but each is rank 0 of 1: this is the mpich of Ubuntu 24.04" \
        "(https://bugs.launchpad.net/ubuntu/+source/mpich/+bug/2072338), or mpicc belongs to another MPI than mpiexec." \
        "Use Open MPI: apt-get remove mpich libmpich-dev, apt-get install openmpi-bin libopenmpi-dev, delete build*/" ;;
    *) stop "mpiexec -n 2 cannot start a small program:" "${sizes:-no output}" ;;
    esac
}

# install_packages NAME...: one apt-get call. Minimal systems (containers) exclude everything under /usr/share/doc;
# the jargon file lies there and is included again. A package may be installed without its file, hence --reinstall.
install_packages() {
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends --reinstall \
        -o Dpkg::Options::=--path-include=/usr/share/doc/jargon-text/jargon.txt.gz "$@"
}

# Without the data packages the models can train on other data, so their absence alone is no error.
without_data() { grep -vE '^(dataset-fashion-mnist|jargon-text):' || true; }

missing=$(list_missing)
if [ -z "$missing" ]; then
    check_cmake_version
    check_ranks
    echo "setup: everything needed is installed"
    exit 0
fi
echo "setup: missing on this system:"
sed 's/^/    /' <<<"$missing"

if ! is_debian_like; then
    if [ -z "$(without_data <<<"$missing")" ]; then
        echo "setup: note: this system has no such packages: give the program other data with --data"
        exit 0
    fi
    stop "this is not Debian or Ubuntu, whose package names stand above: please install the same software by hand" \
        "needed: a C11 compiler, cmake >= $cmake_needed, ninja or make, pkg-config, MPI (MPICH or Open MPI), OpenBLAS," \
        "zlib, cJSON, cmocka, jq, patch, and as data Fashion-MNIST (or --data PATH) and any text (--data PATH)"
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
    has_command sudo || stop "installing packages needs root: run this as root, or install sudo"
    as_root=sudo
fi

read -ra packages <<<"$(sed 's/:.*//' <<<"$missing" | tr '\n' ' ')"
echo "setup: installing with ${as_root:+sudo }apt-get: ${packages[*]}"
$as_root apt-get update || echo "setup: note: apt-get update had errors; going on with the present lists"

# The data packages are in Debian's main and in Ubuntu's universe, which may be disabled.
available=()
for package in "${packages[@]}"; do
    if apt-cache show --no-all-versions "$package" >/dev/null 2>&1; then
        available+=("$package")
    elif [ "$package" = dataset-fashion-mnist ] || [ "$package" = jargon-text ]; then
        echo "setup: note: no package $package here. On Ubuntu: sudo add-apt-repository universe, and run this again." \
            "Without it, give the program other data with --data"
    else
        stop "there is no package $package in this system's lists (on Ubuntu: sudo add-apt-repository universe)"
    fi
done
[ ${#available[@]} -eq 0 ] || install_packages "${available[@]}"

still_missing=$(list_missing | without_data)
[ -z "$still_missing" ] || stop "still missing after the installation:" "$still_missing"
check_cmake_version
check_ranks
echo "setup: done"
