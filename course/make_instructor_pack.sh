#!/usr/bin/env bash
# make_instructor_pack.sh: makes a directory with what a lecturer needs and students do not get: solutions, a quiz and
# its key, oral questions, a lecture as slides, and a plan. The sources are in course/instructor/. See README.md.
#
# usage: course/make_instructor_pack.sh DIR     DIR: a new directory
# The slides become one HTML file if pandoc is there. Without it DIR still gets everything, with the slides as text, and
# a line says so. PANDOC names another pandoc.
# Exit status 0: done, also without pandoc. 1: something failed, and DIR is removed again. 2: wrong usage.
set -uo pipefail
export LC_ALL=C
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sources=$here/instructor

stop() { # STATUS MESSAGE
    echo "make_instructor_pack: error: $2" >&2
    exit "$1"
}

[ $# -eq 1 ] || stop 2 "usage: course/make_instructor_pack.sh DIR     DIR: a new directory"
[ ! -e "$1" ] || stop 2 "$1 exists: name a directory that does not exist"
{ mkdir -p "$(dirname "$1")" && mkdir "$1"; } || stop 1 "cannot make the directory $1"
pack=$(cd "$1" && pwd)
trap 'rm -rf "$pack"' EXIT # removes an incomplete pack

for file in solutions.md quiz.md quiz_key.md oral.md lecture.md plan.md compute.py measured_answers.txt; do
    cp "$sources/$file" "$pack/" || stop 1 "cannot copy course/instructor/$file"
done

# Pictures of the notes: the pack gets copies beside the slides.
grep -o '](../../notes/[a-z_]*\.svg)' "$pack/lecture.md" | tr -d ']()' | sort -u | while IFS= read -r picture; do
    cp "$sources/$picture" "$pack/" || exit 1
done || stop 1 "a picture of lecture.md is missing"
sed -i 's|](../../notes/|](|' "$pack/lecture.md" || stop 1 "cannot write lecture.md"

pandoc=${PANDOC:-pandoc}
if command -v "$pandoc" >/dev/null; then
    one_file=--self-contained # pandoc 3 has another name for it
    if "$pandoc" --help | grep -q -e --embed-resources; then one_file=--embed-resources; fi
    (cd "$pack" &&
        "$pandoc" --standalone "$one_file" -t dzslides -H "$sources/slides.css" lecture.md -o lecture.html) ||
        stop 1 "pandoc could not make lecture.html"
    echo "$pack: lecture.html has the slides (arrow keys turn them)"
else
    echo "make_instructor_pack: note: pandoc is missing (Debian and Ubuntu: apt-get install pandoc):" \
        "no lecture.html, the slides are the text lecture.md" >&2
fi
trap - EXIT
echo "$pack (begin with plan.md)"
