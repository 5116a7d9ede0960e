# shellcheck shell=bash
# copy_tree.sh: for run.sh.

# copy_tree FROM TO: copies the source tree without the output of builds into a new directory: the files that git tracks
# or would add; without git, all outside build*/. If FROM lies inside a larger work tree, git is not asked, because that
# tree may ignore everything here.
copy_tree() {
    mkdir "$2" && (cd "$1" && if [ "$(git rev-parse --show-toplevel 2>/dev/null)" -ef . ]; then
        git ls-files -z --cached --others --exclude-standard
    else
        find . -name 'build*' -prune -o -type f -print0
    fi | while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
        tar --null -T - -cf -) | tar -C "$2" -xf -
}
