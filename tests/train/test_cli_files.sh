#!/bin/sh
# test_cli_files.sh: files that are missing, cut short, damaged, of the wrong kind, or cannot be written, on 1 and on
# 2 ranks. Its usage and the expected behaviour: cli/cases.sh.

# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/cli/cases.sh"

image_directory images
tiny="--steps 1 --batch-size 4"
# $tiny is a list of words on purpose
# shellcheck disable=SC2086
{
# correct calls must work, or the refusals below prove nothing
accepted --model mlp $tiny --data "$scratch/images"

# ---- files to write ----

for flag in save trace json; do
    refused "$scratch/absent/file" --model mlp-toy $tiny --$flag "$scratch/absent/file"
    refused "$scratch/images" --model mlp-toy $tiny --$flag "$scratch/images"
    refused --$flag --model mlp-toy $tiny --$flag "$scratch/images/train-images-idx3-ubyte/file"
done
refused --json --model mlp-toy $tiny --json same --trace same

# ---- links, and what cannot be replaced ----

ln -s "$scratch/absent/file" "$scratch/dangling"
ln -s loop2 "$scratch/loop1"
ln -s loop1 "$scratch/loop2"
ln -s /proc/version "$scratch/to_proc" # not even root may create a file beside it
ln -s images "$scratch/to_directory"
mkfifo "$scratch/pipe"
for flag in save trace json; do
    for file in dangling loop1 to_proc to_directory pipe; do
        refused "--$flag $scratch/$file" --model mlp-toy $tiny --$flag "$scratch/$file"
    done
    refused "--$flag /dev/null" --model mlp-toy $tiny --$flag /dev/null
done
if [ ! -p "$scratch/pipe" ] || [ ! -c /dev/null ]; then
    fail "a refused run has replaced a pipe or a device by a file" --json pipe
fi
for count in $ranks_list; do
    : >"$scratch/new"
    ln -sf new "$scratch/to_new"
    run "$count" --model mlp-toy $tiny --json "$scratch/to_new"
    ended 0 --model mlp-toy $tiny --json "$scratch/to_new" || continue
    if [ ! -L "$scratch/to_new" ] || [ ! -s "$scratch/new" ]; then
        fail "expected a new file that the link points to, and the link unchanged" --json to_new
    fi
done
run 1 --model mlp-toy $tiny --json /dev/stdout # which is a file here, and holds what is printed
grep -q -e '--json /dev/stdout: cannot be written: this program.s own output goes there' "$scratch/err" ||
    fail "expected to hear that stdout goes there" --json /dev/stdout

# ---- what should not be replaced, or cannot be, although a file can be created beside it ----

# protected FLAG FILE WORDS: refused, and the file is still what it was
protected()
{
    refused "--$1 $2: cannot be written: $3" --model mlp-toy $tiny "--$1" "$2"
    [ "$(cat "$2")" = mine ] || fail "a refused run has changed $2" "--$1" "$2"
}

# skipped REASON
skipped()
{
    echo "SKIP: $1"
}

mkdir "$scratch/guarded"
for file in read_only other immutable appended mounted; do echo mine >"$scratch/guarded/$file"; done
chmod 444 "$scratch/guarded/read_only"
for flag in save trace json flight-recorder; do
    protected $flag "$scratch/guarded/read_only" "it is write-protected"
done
if chown 65534 "$scratch/guarded/other" 2>/dev/null; then
    for flag in save trace json; do protected $flag "$scratch/guarded/other" "it is another user's file"; done
else
    skipped "another user's file: only root can make one"
fi
if chattr +i "$scratch/guarded/immutable" 2>/dev/null && chattr +a "$scratch/guarded/appended"; then
    protected save "$scratch/guarded/immutable" "it is immutable or append-only"
    protected json "$scratch/guarded/appended" "it is immutable or append-only"
    chattr -ia "$scratch/guarded/immutable" "$scratch/guarded/appended"
    chattr +a "$scratch/guarded"
    refused "its directory is append-only" --model mlp-toy $tiny --save "$scratch/guarded/new"
    chattr -a "$scratch/guarded"
else
    skipped "chattr +i: only root can, and not on every file system"
fi
left=$(cd "$scratch/guarded" && echo *tmp)
[ "$left" = "*tmp" ] || fail "a refused run has left $left" --save "$scratch/guarded"

# as PROGRAM COMMAND...: `train` is run by this program, which gets its arguments; then COMMAND
as()
{
    plain=$train
    train=$1
    shift
    "$@"
    train=$plain
}

for namespace in -m -rm; do
    cat >"$scratch/with_mount" <<END
#!/bin/sh
exec unshare $namespace sh -c 'mount --bind /etc/passwd "$scratch/guarded/mounted" && exec "\$@"' sh "$train" "\$@"
END
    chmod +x "$scratch/with_mount"
    "$scratch/with_mount" --help >/dev/null 2>&1 && break
done
if "$scratch/with_mount" --help >/dev/null 2>&1; then
    as "$scratch/with_mount" protected save "$scratch/guarded/mounted" "it is a mount point"
else
    skipped "a mount point: no mount namespace is permitted here (unshare -m)"
fi

# A sticky directory, as /tmp: everyone may write to the file, but only its owner can replace it.
mkdir -m 1777 "$scratch/sticky"
chmod 755 "$scratch"
echo mine >"$scratch/sticky/file"
chmod 666 "$scratch/sticky/file"
cat >"$scratch/as_nobody" <<END
#!/bin/sh
exec setpriv --reuid=65534 --clear-groups "$train" "\$@"
END
chmod +x "$scratch/as_nobody"
if "$scratch/as_nobody" --help >/dev/null 2>&1; then
    as "$scratch/as_nobody" protected save "$scratch/sticky/file" "it is another user's file"
else
    skipped "a sticky directory: this user cannot be another one (setpriv), or that one cannot run $train"
fi

# ---- what a run leaves that is killed while it saves ----

for count in $ranks_list; do
    echo half >"$scratch/guarded/ck.lockstep-killed.tmp" # of no process
    : >"$scratch/guarded/ck.backup.tmp"
    run "$count" --model mlp-toy $tiny --save "$scratch/guarded/ck"
    ended 0 --model mlp-toy $tiny --save "$scratch/guarded/ck"
    if grep -q "guarded/ck: 1 unfinished file(s) are beside it" "$scratch/err"; then
        skipped "$scratch is on a file system that other hosts may see: nothing is removed there"
    elif [ -e "$scratch/guarded/ck.lockstep-killed.tmp" ]; then
        fail "an unfinished file is left, and no line says so" --save ck
    fi
    [ -e "$scratch/guarded/ck.backup.tmp" ] || fail "a file of the user was removed" --save ck
done

# ---- the place is gone when the training is done ----

# During the run, the directory of --save is renamed (with --save-every, which shows that the run has begun).
for count in $ranks_list; do
    mkdir "$scratch/doomed"
    (
        while [ ! -e "$scratch/doomed/ck" ]; do sleep 0.05; done
        mv "$scratch/doomed" "$scratch/renamed"
        pkill -USR1 -n -f "$scratch/doomed/ck" # a rank: the run stops, and saves for the last time
    ) &
    run "$count" --model mlp-toy --steps 1000000000 --batch-size 4 --save-every 5 --save "$scratch/doomed/ck"
    wait
    ended 1 --save "$scratch/doomed/ck"
    rescued=$(sed -n 's/.*doomed.ck: [a-z]* failed: .* state are in \([^ ]*\) instead.*/\1/p' "$scratch/err")
    if [ -z "$rescued" ]; then
        fail "no line says where the weights are" --save "$scratch/doomed/ck"
    else
        run 1 --model mlp-toy --steps 1 --batch-size 4 --resume "$rescued"
        grep -q "was saved after [1-9][0-9]* steps, and the run ends there" "$scratch/err" ||
            fail "the rescued file is no whole checkpoint" --resume "$rescued"
        rm -f "$rescued"
    fi
    rm -r "$scratch/renamed"
done

# ---- two outputs in one file, under any name ----

same_outputs()
{
    refused "--json: $2 is also the file of --save" --model mlp-toy $tiny --save "$1" --json "$2"
    refused "--trace: $2 is also the file of --save" --model mlp-toy $tiny --save "$1" --trace "$2"
    refused "--json: $2 is also the file of --trace" --model mlp-toy $tiny --trace "$1" --json "$2"
}
same_outputs same ./same
same_outputs "$scratch/fresh" "$scratch/images/../fresh"
same_outputs "$scratch/to_new" "$scratch/new"
accepted --model mlp-toy $tiny --json "$scratch/images/file" --save "$scratch/file" # two files of one name

# ---- an output that would replace an input ----

head -c 30000 /dev/urandom >"$scratch/mine.txt"
cp "$scratch/mine.txt" "$scratch/before.txt"
ln -s mine.txt "$scratch/to_mine"
for flag in save log trace json; do
    refused "--$flag: $scratch/to_mine is a file of --data" --model gpt $tiny --data "$scratch/mine.txt" \
        --$flag "$scratch/to_mine"
    for file in train-images-idx3-ubyte t10k-labels-idx1-ubyte train-labels-idx1-ubyte.gz \
        t10k-images.idx3-ubyte train-labels.idx1-ubyte.gz; do # the last three: read next time
        refused "--$flag: $scratch/images/$file is a file of --data" --model mlp $tiny --data "$scratch/images/." \
            --$flag "$scratch/images/$file"
    done
done
cmp -s "$scratch/mine.txt" "$scratch/before.txt" || fail "a refused run has changed its data" --data mine.txt
accepted --model mlp $tiny --data "$scratch/images" --json "$scratch/images/result" # a file beside them is allowed

# ---- stdout ----

# into_closed_pipe HOW: the reader has ended before the first line is printed, and SIGPIPE is set by env's option HOW
into_closed_pipe()
{
    rm -f "$scratch/gone"
    {
        while [ ! -e "$scratch/gone" ]; do sleep 0.1; done
        (cd "$work" && timeout -k 5 "$limit" env "$1-signal=PIPE" "$train" --model mlp-toy $tiny) 2>"$scratch/err"
        echo $? >"$scratch/status"
    } | {
        exec <&-
        : >"$scratch/gone"
    }
    status=$(cat "$scratch/status") ranks=1
    if [ -s "$scratch/err" ]; then fail "a reader that stops early is no fault" "| head -1, $1-signal"; fi
}
into_closed_pipe --default # status: the signal's, or 0 with an MPI that ignores it
[ "$status" -eq 141 ] || ended 0 "| head -1"
into_closed_pipe --ignore
ended 0 "| head -1, SIGPIPE ignored"
if [ -w /dev/full ]; then
    for arguments in "--model mlp-toy $tiny" --help; do
        (cd "$work" && timeout -k 5 "$limit" "$train" $arguments) >/dev/full 2>"$scratch/err"
        status=$? ranks=1
        ended 1 "$arguments >/dev/full" && ! grep -q "^$program: fault: rank 0: stdout" "$scratch/err" &&
            fail "no line '$program: fault: rank 0: stdout ...'" "$arguments >/dev/full"
    done
fi

# ---- files to resume from ----

: >"$scratch/empty"
head -c 200 /dev/zero | tr '\0' 'x' >"$scratch/noise"
printf '\377\377\377\377\377\377\377\177{}' >"$scratch/huge_header"
printf '\002\0\0\0\0\0\0\0{}' >"$scratch/no_tensors"
refused "$scratch/absent" --model mlp-toy $tiny --resume "$scratch/absent"
refused "$scratch/images" --model mlp-toy $tiny --resume "$scratch/images"
for file in empty noise huge_header no_tensors; do
    refused "$scratch/$file" --model mlp-toy $tiny --resume "$scratch/$file"
done
run 1 --model mlp-toy $tiny --save "$scratch/saved"
ended 0 --model mlp-toy $tiny --save "$scratch/saved"
if [ -s "$scratch/saved" ]; then
    size=$(wc -c <"$scratch/saved")
    for part in 4 8 100 $((size / 2)) $((size - 1)); do
        head -c "$part" "$scratch/saved" >"$scratch/cut"
        refused "$scratch/cut" --model mlp-toy --steps 2 --batch-size 4 --resume "$scratch/cut"
    done
    { cat "$scratch/saved"; echo; } >"$scratch/longer"
    refused "$scratch/longer" --model mlp-toy --steps 2 --batch-size 4 --resume "$scratch/longer"
    refused "$scratch/saved" --model mlp --data "$scratch/images" $tiny --resume "$scratch/saved"
    refused "$scratch/saved" --model mlp-toy --hidden 8,8 $tiny --resume "$scratch/saved"

    # --verify reads the file once more, when --save would have written it; else both may be one file
    next="--model mlp-toy --steps 2 --batch-size 4"
    cp "$scratch/saved" "$scratch/both"
    for same in "$scratch/both" "$scratch/./both"; do
        refused "--save: $same" $next --resume "$scratch/both" --save "$same" --verify
        refused "--save: $same" $next --resume "$scratch/both" --save "$same" --verify exact
    done
    cmp -s "$scratch/both" "$scratch/saved" || fail "a refused run has changed its file" $next --resume both --save both
    accepted $next --resume "$scratch/saved" --save "$scratch/other" --verify
    # ... and it is never overwritten by a file that is not a checkpoint
    ln -s both "$scratch/to_both"
    for same in "$scratch/both" "$scratch/./both" "$scratch/to_both"; do
        refused "--json: $same is the file of --resume" $next --resume "$scratch/both" --json "$same"
        refused "--trace: $same is the file of --resume" $next --resume "$scratch/both" --trace "$same"
        refused "--trace: $same is the file of --resume" $next --resume "$scratch/both" --trace "$same" --verify
    done
    cmp -s "$scratch/both" "$scratch/saved" || fail "a refused run has changed its file" $next --resume both --json both
    run 1 $next --resume "$scratch/both" --save "$scratch/both"
    ended 0 $next --resume "$scratch/both" --save "$scratch/both"
fi

# ---- images ----

refused "$scratch/absent" --model mlp $tiny --data "$scratch/absent"
refused "$scratch/noise" --model mlp $tiny --data "$scratch/noise" # a file, not a directory
mkdir "$scratch/nothing"
refused "$scratch/nothing" --model mlp $tiny --data "$scratch/nothing"

# bad_images NAME: the directory just damaged must be refused, and the message must name it
bad_images()
{
    refused "$scratch/$1" --model mlp $tiny --data "$scratch/$1"
}
for file in train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte; do
    image_directory "without-$file"
    rm "$scratch/without-$file/$file"
    bad_images "without-$file"

    image_directory "empty-$file"
    : >"$scratch/empty-$file/$file"
    bad_images "empty-$file"

    image_directory "header-$file" # the header is incomplete
    head -c 7 "$scratch/images/$file" >"$scratch/header-$file/$file"
    bad_images "header-$file"

    image_directory "short-$file" # one byte is missing
    head -c -1 "$scratch/images/$file" >"$scratch/short-$file/$file"
    bad_images "short-$file"

    image_directory "noise-$file"
    cp "$scratch/noise" "$scratch/noise-$file/$file"
    bad_images "noise-$file"

    image_directory "gzip-$file" # compressed, and cut in the middle
    rm "$scratch/gzip-$file/$file"
    gzip -c "$scratch/images/$file" >"$scratch/whole.gz"
    head -c $(($(wc -c <"$scratch/whole.gz") / 2)) "$scratch/whole.gz" >"$scratch/gzip-$file/$file.gz"
    bad_images "gzip-$file"

    image_directory "directory-$file"
    rm "$scratch/directory-$file/$file"
    mkdir "$scratch/directory-$file/$file"
    bad_images "directory-$file"
done
image_directory claims # a header that claims four billion images
{ printf '\0\0\010\003\377\377\377\377\0\0\0\034\0\0\0\034'; head -c 784 /dev/zero; } \
    >"$scratch/claims/train-images-idx3-ubyte"
bad_images claims
image_directory square # 2^16 x 2^16 pixels: 32-bit products are 0
{ printf '\0\0\010\003\0\0\0\001\0\001\0\0\0\001\0\0'; head -c 784 /dev/zero; } \
    >"$scratch/square/train-images-idx3-ubyte"
bad_images square
image_directory fewer # valid, but 59 labels for 60 images
idx_labels "$scratch/fewer/train-labels-idx1-ubyte" 59 59
bad_images fewer
image_directory none # valid, but without any image
idx_images "$scratch/none/train-images-idx3-ubyte" 0 0
idx_labels "$scratch/none/train-labels-idx1-ubyte" 0 0
bad_images none
image_directory class # a label that is not a class
{ printf '\0\0\010\001\0\0\0\074'; head -c 59 /dev/zero; byte 10; } >"$scratch/class/train-labels-idx1-ubyte"
bad_images class

image_directory dots # as on some sites
for file in train-images train-labels t10k-images t10k-labels; do
    for path in "$scratch/dots/$file"-*; do mv "$path" "$scratch/dots/$file.${path#*"$file-"}"; done
done
accepted --model mlp $tiny --data "$scratch/dots"
mkdir -p "$scratch/torch/FashionMNIST" # as torchvision does it
image_directory torch/FashionMNIST/raw
refused "'$scratch/torch/FashionMNIST/raw': is that the right one?" --model mlp $tiny --data "$scratch/torch"
image_directory interrupted # gunzip was
gzip "$scratch/interrupted/t10k-images-idx3-ubyte"
: >"$scratch/interrupted/t10k-images-idx3-ubyte"
refused "is empty, but the same with .gz is beside it" --model mlp $tiny --data "$scratch/interrupted"

# ---- text ----

printf 'some words\n%.0s' $(seq 1000) | gzip -c | gzip -c >"$scratch/twice.gz"
refused "twice.gz' is no plain text, but compressed by gzip twice" --model gpt $tiny --data "$scratch/twice.gz"
head -c 30000 /dev/zero >"$scratch/zeros"
refused "zeros' is no plain text: byte 0 is 0" --model gpt $tiny --data "$scratch/zeros"
refused "$scratch/absent" --model gpt $tiny --data "$scratch/absent"
refused "$scratch/images" --model gpt $tiny --data "$scratch/images" # a directory, not a file
refused "$scratch/empty" --model gpt $tiny --data "$scratch/empty"
refused "$scratch/noise" --model gpt $tiny --data "$scratch/noise" # shorter than the windows need
head -c 30000 /dev/urandom | gzip -c >"$scratch/text.gz"
head -c 15000 "$scratch/text.gz" >"$scratch/cut.gz"
refused "$scratch/cut.gz" --model gpt $tiny --data "$scratch/cut.gz"
head -c 70000000 /dev/zero | gzip -1 -c >"$scratch/bomb.gz"
refused "$scratch/bomb.gz' unpacks to more than" --model gpt $tiny --data "$scratch/bomb.gz"
# The pipe from above: a text is opened twice, and the run must not wait for a writer.
refused "$scratch/pipe" --model gpt $tiny --data "$scratch/pipe"
refused /dev/null --model gpt $tiny --data /dev/null
}

finish
