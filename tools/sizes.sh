#!/usr/bin/env bash
# sizes.sh: prints the size of each part of the project as a table: files and lines, comments included.
#
# usage: tools/sizes.sh
set -euo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.."

code() { # DIRECTORY...: their source files
    find "$@" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' -o -name '*.sh' -o -name '*.py' \) -not -path '*/build*'
}

row() { # LABEL FILE...
    local label=$1
    shift
    printf '%-28s %6d %8d\n' "$label" $# "$(cat "$@" | wc -l)"
}

printf '%-28s %6s %8s\n' part files lines
for directory in common train/guard backends tests tools; do
    mapfile -t files < <(code $directory)
    row "$directory/" "${files[@]}"
done
mapfile -t files < <(code train | grep -v '^train/guard/')
row "train/ without guard/" "${files[@]}"
for file in stage*/ddp.c; do
    row "$file" "$file"
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for stage in stage*/; do
    course/make_starter.sh "${stage%/}" "$scratch/${stage%/}" >/dev/null
    mapfile -t files < <(find "$scratch/${stage%/}" -type f)
    row "starter of ${stage%%_*}" "${files[@]}"
done
printf '\nlargest files of common/ and train/:\n'
code common train | xargs wc -l | sort -rn | sed -n '2,6s/^/   /p'
printf '\nlongest functions of common/, train/ and the stages (lines):\n'
code common train stage*/ | xargs awk '
    FNR == 1 { begin = 0 }
    /^[a-zA-Z_].*\)$/ || /^ +.*\)$/ { name = $0 }
    /^{/ { begin = FNR; what = name }
    /^}/ && begin { printf "%5d  %s: %s\n", FNR - begin + 1, FILENAME, what; begin = 0 }' | sort -rn | sed -n 1,5p
