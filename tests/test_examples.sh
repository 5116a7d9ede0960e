#!/usr/bin/env bash
# test_examples.sh: scripts/check_examples.py finds an example whose command prints something else, and no other. With
# --run, in minutes: the commands of all documents print what is written below them.
#
# usage: test_examples.sh ROOT [--run]
set -u
root=$1
command -v python3 >/dev/null || { echo "skipped: python3 is missing (Debian, Ubuntu: apt-get install it)"; exit 77; }
checker=(python3 -B "$root/scripts/check_examples.py")
[ "${2-}" != --run ] || exec "${checker[@]}" --elsewhere
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
failures=0

# expect exact|elsewhere|both|none WRITTEN PRINTED: which comparison takes what is printed for what is written: the exact
# one, that for other processors, both, or none. In both texts, "~" divides lines.
expect() {
    local name options wanted got
    { printf "    \$ tr '~' '\\\\n' <<<'%s'\n" "$3" && printf '    %s\n' "${2//\~/$'\n'    }"; } >"$scratch/text.md"
    for name in exact elsewhere; do
        wanted=1 got=0
        [[ $1 != "$name" && $1 != both ]] || wanted=0
        [ $name = exact ] && options=() || options=(--elsewhere)
        "${checker[@]}" "${options[@]}" "$scratch/text.md" >"$scratch/out" 2>&1 || got=$?
        [ $got = $wanted ] && continue
        failures=$((failures + 1))
        echo "FAIL: $name: '$2' for '$3': exit status $got instead of $wanted" && cat "$scratch/out"
    done
}

expect both 'step 3: 12.5 ms' 'step 3: 99 ms'
expect none '3 buckets' '4 buckets'
expect both 'first~[...]~last' 'first~a~b~last'
expect none 'first~[...]~last' 'first~a~b'
expect none 'first' 'first~second'
expect elsewhere 'loss 2.2980' 'loss 2.2983'
expect none 'loss 2.298' 'loss 2.398'
expect elsewhere 'sum 1.2e-07' 'sum 2.4e-07'
expect none 'sum 0.0e+00' 'sum 2.4e-07'
expect none 'sum 1.2e-07' 'sum 2.4e-05'
expect elsewhere 'verify: passed, max |diff| 1.2e-07 in a.weight, allowed' 'verify: passed, max |diff| 3.0e-08 in b.bias, allowed'
expect none 'verify: passed, max |diff| 1.2e-07 in a.weight, allowed' 'verify: FAILED, max |diff| 2.0e-05 in a.weight, allowed'
expect none 'verify: passed, max |diff| 0.000e+00 in a, allowed' 'verify: passed, max |diff| 1.2e-07 in a, allowed'
expect elsewhere 'fc1 7.451e-09   same' 'fc1 0.000e+00   same'
expect none 'fc1 7.451e-09   same' 'fc1 7.451e-04   DIFFERENT'
expect elsewhere '1abcdef012345678~1abcdef012345678~2' '3abcdef012345678~3abcdef012345678~2'
expect none '1abcdef012345678~1abcdef012345678' '3abcdef012345678~4abcdef012345678'
expect none '1abcdef012345678~2abcdef012345678' '3abcdef012345678~3abcdef012345678'
expect both 'buckets: 3; expected: 5 of 6' 'buckets: 4; expected: 1 of 2'
expect none 'buckets: 3; expected: 5 of 6' 'bucket: 4; expected: 1 of 2'
exit $((failures > 0))
