#!/usr/bin/env bash
# venv.sh: makes a virtual environment with PyTorch for the judge of this directory. It downloads some gigabytes.
#
# usage: course/pytorch/venv.sh [DIRECTORY]     (default: build/pytorch_venv, where the test pytorch_judge looks)
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd -P) || exit 1
fail() {
    echo "venv.sh: $1" >&2
    exit 1
}
case ${1-} in
-h | --help)
    sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
    exit 0
    ;;
-*)
    echo "venv.sh: there is no option '$1'; --help says more" >&2
    exit 2
    ;;
esac
[ $# -le 1 ] || { echo "venv.sh: give one directory, or none; --help says more" >&2; exit 2; }
directory=${1-$here/../../build/pytorch_venv}
command -v python3 >/dev/null || fail "python3 is missing: scripts/setup.sh installs it"
mkdir -p "$directory" 2>/dev/null && touch "$directory" 2>/dev/null ||
    fail "$directory cannot be written: name a directory of your own, as in course/pytorch/venv.sh ~/pytorch_venv"
# An interrupted call leaves a python without pip.
"$directory/bin/python" -m pip --version >/dev/null 2>&1 || python3 -m venv "$directory" ||
    fail "cannot make $directory (on Debian and Ubuntu, the package python3-venv is needed)"
"$directory/bin/pip" install --quiet 'torch==2.15.*' numpy || fail "pip could not install PyTorch 2.15 (see above): \
it needs a network that reaches PyPI, or a mirror in PIP_INDEX_URL, some gigabytes in $directory, and Python 3.10 \
or newer (this is $(python3 --version)). Call it again: it goes on where it stopped"
"$directory/bin/python" -c 'import torch; print("PyTorch", torch.__version__)' || fail "PyTorch does not start"
echo "$directory/bin/python $here/judge.py FILE.py:CLASS"
