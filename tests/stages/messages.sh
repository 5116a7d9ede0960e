# messages.sh: prints the first message of a failed test on one line. For scripts that run many tests; source it.
# shellcheck shell=bash

# A sanitizer's report: its verdict, and where in the submission (or weights.c) it happened, and the memory was allocated or freed.
sanitizer_message() { # FILE
    awk -v c_file="${c_file-ddp.c}" '/ERROR: (Address|Leak)Sanitizer: / && !verdict {
            verdict = $0; where = "in"
            sub(/.*ERROR: /, "", verdict)
            sub(/ on (unknown )?address.*/, "", verdict)
        }
        / runtime error: / && !verdict { verdict = $0; where = "in"; sub(/.*runtime error: /, "undefined: ", verdict) }
        /freed by thread/ { where = "freed in" }
        /allocated by thread|leak of [0-9]+ byte/ { where = "allocated in" }
        /leak of [0-9]+ byte/ { # the report has one for each place, and cannot know where the free() is missing
            leak = "; free it " (c_file == "ddp.c" ? "in ddp_destroy(), and" : "before the function returns, and") \
                " before its pointer gets another value"
            split("", said)
        }
        verdict && / in [A-Za-z_0-9]+ .*\/(ddp|buckets|weights|collectives)\.c:[0-9]+/ && !(where in said) {
            said[where] = 1
            match($0, / in /)
            split(substr($0, RSTART + 4), words, " ")
            sub(/.*\//, "", words[2])
            place = ", " where " " words[1] "() (" words[2] ")"
            if (!index(text, place)) text = text place
        }
        END { if (verdict) print verdict text (text ? leak : "") }' "$1"
}

# The first line of a test that says what is wrong, and its usual cause. Prints nothing if there is none.
first_message() { # FILE
    grep -a -m 1 -o '[a-z_]*() is not written yet' "$1" && return # also where a sanitizer then reports a leak
    local message crash='exception: |malloc assertion|\(\): (invalid|corrupted|unaligned|mismatching)|double free'
    message=$(sanitizer_message "$1")
    if [ -z "$message" ]; then
        message=$(awk '!said && /ERROR: |ERROR +\] ---|fault: |error: |exception: |^([0-9]+: )?FAIL/ {
                said = 1; left = 4; print
                if (/usual cause: /) exit
             }
             said && /usual cause: / && !/ERROR|fault: |FAIL/ { print; exit }
             said && left-- == 0 { exit }' "$1" |
            sed -E -e 's/^[0-9]+: //; s/^(\[ +ERROR +\] ---|ERROR:|FAIL:?|[a-z_0-9]+: (fault|error):) *//' \
                -e 's/^ +//; s/\. Wrong are .*//' | paste -s -d ' ')
        if [ -z "$message" ]; then # no message of ours: it crashed
            message=$(grep -a -E -m 1 "$crash|memory ranges overlap|EXIT STRING" "$1" |
                sed -E 's/.*STRING: //; s/.*(memory ranges overlap).*/MPI: \1/')
            crash=.
        fi
        if [ -n "$message" ] && grep -a -q -E "$crash" "$1"; then
            message+="; a build with -DLOCKSTEP_SANITIZE=address names the line (./check --sanitize)"
        fi
    fi
    echo "$message"
}
