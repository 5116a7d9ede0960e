#!/usr/bin/env bash
# venv.sh: makes a virtual environment with PyTorch for the judge of this directory. It downloads some gigabytes.
#
# usage: course/pytorch/venv.sh [DIRECTORY]     (default: build/pytorch_venv, where the test pytorch_judge looks)
set -u
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd -P) || exit 1
directory=${1-$here/../../build/pytorch_venv}
command -v python3 >/dev/null || { echo "venv.sh: python3 is missing: scripts/setup.sh installs it" >&2; exit 1; }
# An interrupted call leaves a python without pip.
"$directory/bin/python" -m pip --version >/dev/null 2>&1 || python3 -m venv "$directory" || {
    echo "venv.sh: cannot make $directory (on Debian and Ubuntu, the package python3-venv is needed)" >&2
    exit 1
}
"$directory/bin/pip" install --quiet 'torch==2.15.*' numpy || exit 1
"$directory/bin/python" -c 'import torch; print("PyTorch", torch.__version__)' || exit 1
echo "$directory/bin/python $here/judge.py FILE.py:CLASS"
