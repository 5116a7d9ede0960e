#!/usr/bin/env bash
# test_examples.sh: tools/check_examples.py finds an example whose command prints something else, and no other. With
# --run, in minutes: the commands of all documents print what is written below them.
#
# usage: test_examples.sh ROOT [--run]
set -u
root=$1
command -v python3 >/dev/null || { echo "skipped: python3 is missing (Debian, Ubuntu: apt-get install it)"; exit 77; }
checker=(python3 -B "$root/tools/check_examples.py")
[ "${2-}" != --run ] || exec "${checker[@]}" --elsewhere
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0

# check WANTED [--elsewhere]: WANTED examples of the document text.md differ.
check() {
    "${checker[@]}" "${@:2}" "$scratch/text.md" >"$scratch/out" 2>&1
    tail -n 1 "$scratch/out" | grep -q "^$1 of [1-9] example(s) differ" && return
    failures=$((failures + 1))
    echo "FAIL: ${*:2}: not $1 of" && cat "$scratch/text.md" "$scratch/out"
}

# expect both|elsewhere|none WRITTEN PRINTED: whether what is printed is taken for what is written: also by the exact
# comparison, only by that for other processors, or by none. In both texts, "~" divides lines.
expect() {
    printf "    \$ tr '~' '\\\\n' <<<\\\\\n          '%s'\n" "$3" >"$scratch/text.md"
    printf '    %s\n' "${2//\~/$'\n'    }" >>"$scratch/text.md"
    check "$([ "$1" = both ] && echo 0 || echo 1)"
    check "$([ "$1" = none ] && echo 1 || echo 0)" --elsewhere
}

expect both 'step 3: 12.5 ms' 'step 3: 99 ms'
expect none '3 buckets' '4 buckets'
expect both '13 per step, 89 % hidden' '13 per step, 70 % hidden'
expect none '13 per step, 89 % hidden' '13 per step, 0 % hidden'
expect both 'first~[...]~last' 'first~a~b~last'
expect none 'first~[...]~last' 'first~a~b'
expect none 'first' 'first~second'
expect both 'train: fault: 1~train: fault: 2' 'train: fault: 2~train: fault: 1'
expect elsewhere 'loss 2.2980' 'loss 2.3070'
expect none 'loss 2.298' 'loss 2.398'
expect none '[3.280896]' '[3.280900]'
expect elsewhere 'sum 1.2e-07' 'sum 2.4e-07'
expect none 'sum 0.0e+00' 'sum 2.4e-07'
expect none 'sum 1.2e-07' 'sum 2.4e-05'
expect elsewhere 'passed, max |diff| 1.2e-07 in a.weight, allowed' 'passed, max |diff| 3.0e-08 in b.bias, allowed'
expect none 'passed, max |diff| 1.2e-07 in a, allowed' 'FAILED, max |diff| 2.0e-05 in a, allowed'
expect none 'passed, max |diff| 0.000e+00 in a, allowed' 'passed, max |diff| 1.2e-07 in a, allowed'
expect elsewhere 'fc1 7.451e-09   same' 'fc1 0.000e+00   same'
expect none 'fc1 7.451e-09   same' 'fc1 7.451e-04   DIFFERENT'
expect elsewhere '1abcdef012345678~1abcdef012345678~2' '3abcdef012345678~3abcdef012345678~2'
expect none '1abcdef012345678~1abcdef012345678' '3abcdef012345678~4abcdef012345678'
expect none '1abcdef012345678~2abcdef012345678' '3abcdef012345678~3abcdef012345678'
expect both 'buckets: 3; expected: 5 of 6' 'buckets: 4; expected: 1 of 2'
expect none 'buckets: 3; expected: 5 of 6' 'bucket: 4; expected: 1 of 2'

# A hash of an earlier example, a file of an earlier example, and one of none.
cat >"$scratch/text.md" <<'END'
    $ echo 3abcdef012345678 | tee run.json
    1abcdef012345678
    $ cat run.json
    1abcdef012345678
    $ echo 4abcdef012345678
    1abcdef012345678
END
check 3
check 1 --elsewhere
printf '    $ cat run.json\n    3abcdef012345678\n' >"$scratch/text.md"
check 1 --elsewhere
exit $((failures > 0))
