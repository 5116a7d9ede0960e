# shellcheck shell=bash
# gpu.sh: functions that the scripts for machines with a GPU share. Source it, with `repository` set:
#
#   source scripts/gpu.sh
#   gpu_names                    one line per GPU; fails where there is none
#   value FILE KEY               the first value of KEY in a JSON file that lockstep wrote

gpu_names() {
    command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | grep .
}

value() {
    sed -nE "s/.*\"$2\":[[:space:]]*\"?([^\",}]*)\"?.*/\\1/p" "$1" | head -n 1
}

# text_flags DIR: the flags for the GPT's data. None, for the distribution's text; where that is missing, --data with
# lockstep's own sources, which are written to DIR. For checks and timings any text is good enough.
text_flags() {
    # shellcheck disable=SC2154 # set by the script that sources this file
    if [ ! -r /usr/share/doc/jargon-text/jargon.txt.gz ]; then
        cat "$repository"/common/*/*.[ch] "$repository"/train/*.[ch] "$repository"/notes/*.md >"$1/sources.txt"
        echo "--data $1/sources.txt"
    fi
}
