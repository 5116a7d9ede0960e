#!/usr/bin/env bash
# book.sh: makes the notes, the stages' READMEs, and the course into web pages with the code that they cite beside the
# text. The pages need no network and no server: open DIR/index.html. Some ten seconds.
#
# usage: scripts/book.sh [DIR]     DIR: build/book, unless another one is named
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
case ${1-} in -*) sed -n 's/^# usage/usage/p' "$0" >&2 && exit 2 ;; esac
for python in python3 /usr/bin/python3; do
    "$python" -c 'import markdown, pygments' 2>/dev/null &&
        exec "$python" -B "$root/tools/book/make_book.py" "${1-$root/build/book}"
done
echo "book.sh: error: Python lacks markdown or pygments: apt-get install python3-markdown python3-pygments" >&2
exit 1
