#!/usr/bin/env bash
# offline_packages.sh: brings the packages that lockstep needs to a machine without a network, perhaps without root.
# On a machine that has a network, with Debian or Ubuntu of the same age or older, and the same kind of processor:
#
#   scripts/offline_packages.sh fetch          downloads about 26 MB into offline/
#
# Then copy the repository with offline/, and on the machine without a network:
#
#   scripts/offline_packages.sh unpack         unpacks them into offline/root, and writes offline/environment.sh
#   source offline/environment.sh              paths for cmake, mpiexec and the loader (gpu_check.sh does this)
#
# The machine without a network must have bash, dpkg-deb, python3, a C and a C++ compiler, cmake, ninja or make, and
# CUDA. MPICH comes from the Python package `mpich`, which works in any directory; Debian's has the path /usr built in.
# Data sets are not included: gpu_check.sh trains on lockstep's own sources, and other programs on the files of --data.
set -euo pipefail
export LC_ALL=C
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# With their dependencies, except the C library and the compiler's: every machine has those, and newer ones.
packages=(libopenblas0-pthread libopenblas-pthread-dev libgfortran5 libquadmath0 libcjson1 libcjson-dev libcmocka0
    libcmocka-dev zlib1g-dev pkgconf pkgconf-bin libpkgconf3 patch)

stop() {
    printf 'offline_packages: error: %s\n' "$@" >&2
    exit 1
}

usage() {
    echo "usage: scripts/offline_packages.sh fetch|unpack [DIR]      (DIR: offline/ in the repository)"
}

# Replaces the contents of DIR, so DIR must be empty or made by this script.
fetch() {
    local file
    command -v apt-get >/dev/null || stop "fetch needs Debian or Ubuntu, because it downloads their packages"
    mkdir -p "$1"
    cd "$1"
    [ -e .lockstep-offline ] || [ -z "$(ls -A)" ] || stop "$1 holds something else: name a new or an empty directory"
    touch .lockstep-offline
    rm -f ./*.deb ./*.whl
    apt-get -qq -o APT::Sandbox::User="$(id -un)" download "${packages[@]}" ||
        stop "apt-get could not download them (its message is above); with old lists: apt-get update"
    python3 -m pip download -q --no-deps --only-binary=:all: --disable-pip-version-check mpich ||
        stop "pip could not download the package mpich (its message is above)"
    for file in ./*%3a*.deb; do # %3a is a colon, which some ways of copying reject
        [ ! -e "$file" ] || mv "$file" "${file/\%3a/.}"
    done
    echo "offline_packages: $(du -ch ./*.deb ./*.whl | tail -n 1 | cut -f 1) in $PWD: copy it with the repository," \
        "and there run scripts/offline_packages.sh unpack"
}

# The lines of environment.sh. Paths are quoted for the shell; the variables are for the shell that sources them.
# shellcheck disable=SC2016
environment() {
    local root=$1 libraries=$2 path
    printf '# Written by offline_packages.sh: source it.\n'
    printf 'export PATH=%q:%q:$PATH\n' "$root/mpi/bin" "$root/usr/bin"
    printf 'export PKG_CONFIG_SYSROOT_DIR=%q\n' "$root"
    path=$libraries/pkgconfig:$libraries/openblas-pthread/pkgconfig
    printf 'export PKG_CONFIG_PATH=%q\n' "$path"
    path=$libraries:$libraries/openblas-pthread
    printf 'export LD_LIBRARY_PATH=%q${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n' "$path"
}

unpack() {
    local directory root libraries file missing
    directory=$(cd "$1" 2>/dev/null && pwd) || stop "$1 does not exist: make it with fetch, on a machine with a network"
    ls "$directory"/*.deb "$directory"/mpich-*.whl >/dev/null 2>&1 ||
        stop "$directory does not hold the packages: make it with fetch, on a machine with a network"
    for file in dpkg-deb python3; do
        command -v "$file" >/dev/null || stop "$file is missing here; it unpacks the packages"
    done
    root=$directory/root
    [ ! -e "$root" ] || [ -e "$root/.lockstep-offline" ] || stop "$root holds something else"
    rm -rf "$root"
    mkdir -p "$root"
    touch "$root/.lockstep-offline"
    for file in "$directory"/*.deb; do
        dpkg-deb -x "$file" "$root"
    done
    python3 -m zipfile -e "$directory"/mpich-*.whl "$root/wheel"
    mv "$root"/wheel/mpich-*.data/data "$root/mpi"
    chmod +x "$root"/mpi/bin/* # zipfile does not keep this permission
    find "$root" -type l \( -lname '/*' -o -xtype l \) -delete # their targets are not here; libz.a is enough
    libraries=$(find "$root/usr/lib" -name openblas-pthread -type d -print -quit)
    libraries=${libraries%/*}
    environment "$root" "$libraries" >"$directory/environment.sh"
    missing=$(
        # shellcheck disable=SC1091 # written just now
        source "$directory/environment.sh"
        mpiexec --version >/dev/null 2>&1 || echo mpiexec
        pkg-config --version >/dev/null 2>&1 || echo pkg-config
        patch --version >/dev/null 2>&1 || echo patch
        for file in openblas zlib libcjson cmocka; do pkg-config --exists "$file" || echo "$file"; done
    )
    [ -z "$missing" ] || stop "unpacked, but these do not work here: ${missing//$'\n'/ }"
    echo "offline_packages: unpacked; before cmake and mpiexec: source $directory/environment.sh"
}

[ $# -le 2 ] || { usage >&2; exit 2; }
case ${1:-} in
    fetch | unpack) "$1" "${2:-$repository/offline}" ;;
    -h | --help) usage ;;
    *) usage >&2; exit 2 ;;
esac
