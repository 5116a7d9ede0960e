# names.sh: what the files of an assignment are called. The scripts of course/ and of a starter source it.
# shellcheck shell=bash disable=SC2034 # the variables are read elsewhere

# set_names STAGE: sets number; c_files, the files that students write and hand in, in one directory; c_file, the first
# of them; c_names, all of them as text; and home, where the project has its solution.
set_names() {
    case $1 in
    collectives) number=0 c_files=(collectives.c) home=course/collectives ;;
    stage2*) number=2 c_files=(ddp.c buckets.c) home=$1 ;;
    *) number=${1:5:1} c_files=(ddp.c) home=$1 ;;
    esac
    c_file=${c_files[0]} c_names=${c_files[*]}
    c_names=${c_names// / and }
}

# find_stage ARGUMENT DIRECTORY: sets stage, and its names, if the argument is the name or the number of a stage whose
# points are in the directory. Fails if there is none.
find_stage() {
    local points
    for points in "$2"/*.points; do
        stage=$(basename "$points" .points)
        set_names "$stage"
        if [ "$1" = "$stage" ] || [ "$1" = "$number" ]; then return 0; fi
    done
    return 1
}
stages="collectives, stage1_naive, ... or 0 to 5" # for messages
