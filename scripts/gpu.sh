# shellcheck shell=bash
# gpu.sh: what the scripts for machines with a GPU share. Source it, with `repository` set:
#
#   source scripts/gpu.sh
#   gpu_names                    one line per GPU; fails where there is none
#   value FILE KEY               the first value of KEY in a JSON file of ours

gpu_names() {
    command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep .
}

value() {
    sed -nE "s/.*\"$2\":[[:space:]]*\"?([^\",}]*)\"?.*/\\1/p" "$1" | head -n 1
}

# What the GPT trains on, as flags: the distribution's text, or, where that is missing, our own sources. For checks and
# timings any text will do.
text_flags() {
    # shellcheck disable=SC2154 # whoever sources this has set it
    if [ ! -r /usr/share/doc/jargon-text/jargon.txt.gz ]; then
        cat "$repository"/common/*/*.[ch] "$repository"/train/*.[ch] "$repository"/notes/*.md >"$1/sources.txt"
        echo "--data $1/sources.txt"
    fi
}
