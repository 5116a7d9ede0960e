#!/bin/sh
# test_notes.sh ROOT: checks that the notes fit the code.
#
# A chapter points at code by an anchor: a comment line that says "note: NAME" and nothing else. The chapter links to it
# as [note: NAME](../common/some/file.c). Line numbers would soon be wrong; this test checks names:
#   1. every anchor that a document cites is in the file of its link
#   2. every anchor in the code has a text in its comment, is cited by a chapter in notes/ or a stage's README, and its
#      name is used once only
#   3. every relative link of a document leads to a file that exists, and every #heading to a heading
#   4. every chapter of notes/ that the code mentions exists
# Prints a line for each failure; exit status 1 if there were any.

if [ $# -ne 1 ] || [ ! -d "$1/common" ]; then
    echo "usage: test_notes.sh ROOT (the directory that holds common/ and notes/)" >&2
    exit 2
fi
cd "$1" || exit 2
root=$(pwd -P)
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
tab=$(printf '\t')
: >"$work/failures"
: >"$work/empty"

fail() {
    printf '%s\n' "$*" >>"$work/failures"
}

# ---- documents, sources and anchors ----

{
    for file in README.md CONTRIBUTING.md; do [ -f "$file" ] && echo "$file"; done
    for directory in notes course tools tests stage[0-9]_*; do
        [ -d "$directory" ] && find "$directory" -type d -name 'build*' -prune -o -name '*.md' -print
    done
} | sort >"$work/documents"

for directory in common train backends tests scripts cmake tools course stage[0-9]_*; do
    [ -d "$directory" ] && find "$directory" -type d -name 'build*' -prune -o -type f \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.sh' -o -name '*.py' -o -name '*.cmake' \
        -o -name CMakeLists.txt \) -print
done | sort >"$work/sources"

# anchors: FILE <tab> NAME, for every comment line that holds an anchor and nothing else.
# empty: the same, where the comment ends without a text.
while read -r file; do
    awk -v file="$file" -v empty="$work/empty" '
        anchor != "" && !/^[ \t]*(\*|\/\/|#)[ \t]*[^ \t*\/]/ { print file "\t" anchor >>empty }
        { anchor = "" }
        /^[ \t]*(\/\*\*?|\*|\/\/|#)[ \t]*note: [a-z0-9][a-z0-9-]*[ \t]*(\*\/)?[ \t]*$/ {
            ended = /\*\//
            sub(/^.*note: /, ""); sub(/[ \t]*(\*\/)?[ \t]*$/, "")
            print file "\t" $0
            if (ended) print file "\t" $0 >>empty
            else anchor = $0
        }' "$file"
done <"$work/sources" >"$work/anchors"

files_with() { # NAME: the files that hold this anchor
    awk -F "$tab" -v name="$1" '$2 == name { printf " %s", $1 }' "$work/anchors"
}

# A document's prose, without fenced blocks and `code`.
prose() {
    awk '/^ *(```|~~~)/ { fenced = !fenced; next }
         !fenced { gsub(/`[^`]*`/, ""); print }' "$1"
}

# A document's headings as GitHub names them in links: small letters, no punctuation, dashes for blanks; a repeated name
# gets -1, -2, ...
headings() {
    awk '/^ *(```|~~~)/ { fenced = !fenced; next }
         !fenced && /^#+ / {
             sub(/^#+ +/, ""); sub(/ +#* *$/, "")
             name = tolower($0)
             gsub(/[^a-z0-9 _-]/, "", name); gsub(/ /, "-", name)
             n = seen[name]++
             print (n > 0) ? name "-" n : name
         }' "$1"
}

# links: DOCUMENT <tab> NAME or "-" <tab> TARGET. NAME is the anchor of a link whose text is "note: NAME".
while read -r document; do
    prose "$document" | tr '\n' ' ' | awk -v document="$document" '{
        rest = $0
        while (match(rest, /\]\([^)]*\)/)) {
            target = substr(rest, RSTART + 2, RLENGTH - 3)
            sub(/^ +/, "", target); sub(/[ ].*$/, "", target); gsub(/[<>]/, "", target)
            text = substr(rest, 1, RSTART - 1)
            sub(/.*\[/, "", text)
            name = "-"
            if (text ~ /^note: *[^ ]+$/) { name = text; sub(/^note: */, "", name) }
            print document "\t" name "\t" target
            rest = substr(rest, RSTART + RLENGTH)
        }
    }'
    prose "$document" | sed -n 's|^ \{0,3\}\[[^]]*\]:[[:space:]]*\([^[:space:]]*\).*$|\1|p' |
        sed "s|^|$document$tab-$tab|"
done <"$work/documents" >"$work/links"

# ---- 1 and 3: from the documents to the files ----

check_heading() { # DOCUMENT TARGET FILE HEADING
    case $3 in
    *.md) headings "$3" | grep -Fqx -e "$4" ||
        fail "$1: link ($2): $3 has no heading #$4 (it has: $(headings "$3" | sed 's/^/#/' | tr '\n' ' '))" ;;
    *) fail "$1: link ($2): #$4 on a file that is no .md: cite an anchor, never a line number" ;;
    esac
}

while IFS=$tab read -r document name target; do
    case $target in
    http:* | https:* | mailto:*) continue ;;
    /*)
        fail "$document: link ($target) is absolute: make it relative to $document"
        continue
        ;;
    esac
    path=${target%%#*}
    if [ -z "$path" ]; then
        file=$document
    else
        file=$(dirname "$document")/$path
        file=${file#./}
        if [ ! -e "$file" ]; then
            fail "$document: link ($target): there is no $file"
            continue
        fi
        directory=$(cd "$(dirname "$file")" && pwd -P)/
        case $directory in
        "$root"/*) file=${directory#"$root"/}$(basename "$file") ;;
        *)
            fail "$document: link ($target) leads out of the project"
            continue
            ;;
        esac
    fi
    [ "$target" = "$path" ] || check_heading "$document" "$target" "$file" "${target#*#}"
    [ "$name" = - ] && continue
    printf '%s\t%s\t%s\n' "$document" "$file" "$name" >>"$work/cited"
    grep -Fqx -e "$file$tab$name" "$work/anchors" && continue
    elsewhere=$(files_with "$name")
    fail "$document: cites note: $name, but $file has no such anchor (it stands in:${elsewhere:- no other file either})"
done <"$work/links"

# "[note: " that is not a link: probably a mistake.
while read -r document; do
    prose "$document" | tr '\n' ' ' | sed 's/\[note: *[^] ]*\]([^)]*)//g' | grep -o '\[note:[^]]*\]\{0,1\}' |
        while read -r slip; do
            fail "$document: $slip is not a citation; write [note: NAME](path/to/file.c)"
        done
done <"$work/documents"

# ---- 2: from the code to the documents ----

touch "$work/cited"
while IFS=$tab read -r file name; do
    awk -F "$tab" -v file="$file" -v name="$name" '
        $2 == file && $3 == name && $1 ~ /^(notes\/|stage[0-9])/ { found = 1 } END { exit !found }' "$work/cited" ||
        fail "$file: anchor note: $name is cited by no chapter in notes/ and no stage's README"
done <"$work/anchors"
while IFS=$tab read -r file name; do
    fail "$file: anchor note: $name has no text: say below it, in the same comment, why the code is so"
done <"$work/empty"
cut -f 2 "$work/anchors" | sort | uniq -d | while read -r name; do
    fail "anchor note: $name stands in several places:$(files_with "$name")"
done

# ---- 4: chapters that the code mentions ----

while read -r file; do
    grep -o 'notes/[a-z0-9_-]*\.md' "$file" | sort -u | while read -r chapter; do
        [ -f "$chapter" ] || fail "$file: mentions $chapter, which does not exist"
    done
done <"$work/sources"

# ---- the verdict ----

documents=$(wc -l <"$work/documents")
anchors=$(wc -l <"$work/anchors")
links=$(wc -l <"$work/links")
if [ "$anchors" -eq 0 ] || [ "$links" -eq 0 ]; then
    fail "found $anchors anchors and $links links: the test looks in the wrong place, or cannot read the files any more"
fi
if [ -s "$work/failures" ]; then
    cat "$work/failures" >&2
    echo "notes: $(($(wc -l <"$work/failures"))) failure(s) in $((documents)) documents" >&2
    exit 1
fi
echo "notes: $((documents)) documents, $((links)) links and $((anchors)) anchors, all resolve"
