#!/bin/sh
# test_cli_files.sh: the real program, in ctest on 2 ranks, with a file of each kind that is damaged or cannot be
# written; and what only a whole run shows. (All cases of files to read: test_data.c, test_text.c, test_file_kind.c,
# test_checkpoint_damage.c; to write: test_refusals.c, test_atomic_file.c.) Its usage and the expected behaviour:
# cli/cases.sh.

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

refused "--json $scratch/absent/file: cannot be written" --model mlp-toy $tiny --json "$scratch/absent/file"
refused "--json: ./same is also the file of --save" --model mlp-toy $tiny --save same --json ./same
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
for file in immutable appended mounted; do echo mine >"$scratch/guarded/$file"; done
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

run 1 --model mlp-toy $tiny --save "$scratch/saved"
ended 0 --model mlp-toy $tiny --save "$scratch/saved"
if [ -s "$scratch/saved" ]; then
    size=$(wc -c <"$scratch/saved")
    head -c $((size / 2)) "$scratch/saved" >"$scratch/cut"
    refused "$scratch/cut" --model mlp-toy --steps 2 --batch-size 4 --resume "$scratch/cut"
    refused "$scratch/saved" --model mlp-toy --hidden 8,8 $tiny --resume "$scratch/saved"
    accepted --model mlp-toy --steps 2 --batch-size 4 --resume "$scratch/saved" --save "$scratch/other" --verify
    run 1 --model mlp-toy --steps 2 --batch-size 4 --resume "$scratch/saved" --save "$scratch/saved"
    ended 0 --resume "$scratch/saved" --save "$scratch/saved"
fi

# ---- data ----

refused "$scratch/absent" --model mlp $tiny --data "$scratch/absent"
for file in train-images-idx3-ubyte t10k-labels-idx1-ubyte; do # the first file that is read, and the last one
    image_directory "short-$file" # one byte is missing
    head -c -1 "$scratch/images/$file" >"$scratch/short-$file/$file"
    refused "$scratch/short-$file/$file" --model mlp $tiny --data "$scratch/short-$file"
done
head -c 30000 /dev/urandom | gzip -c | head -c 15000 >"$scratch/cut.gz"
refused "$scratch/cut.gz" --model gpt $tiny --data "$scratch/cut.gz"
}

finish
