# shellcheck shell=bash
# copy_tree.sh: for run.sh and random.sh.

# copy_tree FROM TO: the source tree without what builds left behind, into a new directory: what git knows or would
# add; without git, all but build*/. A git that has FROM inside of a larger work tree speaks of that one, which may
# ignore all that is here.
copy_tree() {
    mkdir "$2" && (cd "$1" && if [ "$(git rev-parse --show-toplevel 2>/dev/null)" -ef . ]; then
        git ls-files -z --cached --others --exclude-standard
    else
        find . -name 'build*' -prune -o -type f -print0
    fi | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
        tar --null -T - -cf -) | tar -C "$2" -xf -
}
