#!/usr/bin/env bash
# symbols.sh: says what in a compiled ddp.c a solution has no need for: functions that end the program, read files, or
# start processes; names of its own that would take the place of others; code that runs before main(); assembler.
#
# usage: symbols.sh STAGE BUILD     BUILD: a build of the starter, by cmake. Prints a line for each; status 1: there are
set -u -o pipefail
export LC_ALL=C
stage=$1 build=$2
object=$build/CMakeFiles/ddp.dir/$stage/ddp.c.o
address='' needless=", which a solution has no need for"
[[ $build != *-address ]] || address=yes # the build with the address sanitizer

# Functions of common/, and of the given files beside ddp.c. Not those that read files, end the job or the group, or
# write what tests look at: counters, observers, the timeline.
allowed() {
    find "$build/CMakeFiles/common.dir" "$build/CMakeFiles/ddp.dir" -name '*.o' ! -path '*/data/*' ! -name ddp.c.o \
        -exec nm -P -g --defined-only {} + | awk '
        NF > 2 && $1 !~ /^(job|timeline|group|shared|worker)_|^pg_(set_|reset_|observe|create|destroy|initialize|mpi_)/ {
            print $1
        }'
    echo job_rank job_world_size
    # Memory, arithmetic, text, messages, locks. No sscanf() and no FILE but these two.
    echo malloc calloc realloc free aligned_alloc posix_memalign qsort bsearch abs labs llabs abort __assert_fail
    echo mem{cpy,move,set,cmp,chr} str{len,nlen,cmp,ncmp,cpy,ncpy,cat,ncat,chr,rchr,str,dup,ndup}
    echo stdout stderr {,f,s,sn,vf,vsn}printf puts putchar fputs fputc putc fwrite fflush perror
    echo {fabs,sqrt,floor,ceil,round,lround,trunc,rint,fmin,fmax,fmod,pow,exp,log,log2,ldexp,hypot}{,f}
    echo pthread_{mutex,cond}_{init,destroy,lock,unlock,wait,signal,broadcast} sched_yield nanosleep usleep
    echo __errno_location __stack_chk_fail _GLOBAL_OFFSET_TABLE_ __tls_get_addr
}

names() {
    nm -P "$object" | awk -v address="$address" -v uses="ddp.c uses " -v needless="$needless" '
        FNR == NR { for (i = 1; i <= NF; i++) allowed[$i]; next }
        address && $2 == "U" && $1 ~ "^__(ubsan_handle_|asan_(report_|load|store|init$|version_|(un)?register_|" \
            "handle_no_return$|stack_|(un)?poison_stack|option_|mem(cpy|move|set)$|set_shadow))" { next }
        $2 ~ /^[Uwv]$/ {
            plain = $1
            if (sub(/_chk$/, "", plain)) sub(/^__/, "", plain) # Ubuntu: fprintf() becomes __fprintf_chk()
            if (!($1 in allowed) && !(plain in allowed)) print uses "\x27" $1 "\x27" needless
        }
        $2 == "i" { print uses "\x27" $1 "\x27, chosen when it is loaded (ifunc)" needless; next }
        $2 ~ /^[A-Zu]$/ && $2 != "U" && $1 !~ (address ? "^(__odr_asan(\\.|_gen_))?" : "^") "ddp_[a-z_]+$" {
            print "ddp.c defines \x27" $1 "\x27 for the whole program: write static before it"
        }' <(allowed) -
}

# The address sanitizer has one function of its own before main(), and one after it, of 8 bytes each in a table.
sections() {
    objdump -hw "$object" | awk -v address="$address" -v needless="$needless" '
        $1 !~ /^[0-9]+$/ { next }
        address && $2 ~ /^\.(init|fini)_array\.[0-9]+$/ && !seen[substr($2, 1, 5)]++ && $3 ~ /^0+8$/ { next }
        $2 !~ /^\.(text|rodata|data|bss|tdata|tbss|eh_frame|comment|note|debug|group|llvm)([._][A-Za-z0-9._-]+)?$/ &&
            !(address && $2 == "asan_globals") || $3 !~ /^[0-9a-f]+$/ {
            print "ddp.c has a section \x27" $2 "\x27 (a function that runs before main?)" needless
        }
        / CODE/ && $2 !~ /^\.text/ { print "ddp.c has code in " $2 " (a nested function?)" needless }'
    objdump -t "$object" | awk '/^[0-9a-f]+ ......O \.text/ { print "ddp.c has data among its code: \x27" $NF "\x27" }'
}

# Of preprocessed text, on one line: each string becomes "", or "!" if it has what could end a line of assembler. The text
# must have no raw strings.
without_strings() {
    LC_ALL=C awk '{
        text = ""
        while (match($0, /"([^"\\]|\\.)*"|\047([^\047\\]|\\.)*\047/)) {
            found = substr($0, RSTART, RLENGTH)
            text = text substr($0, 1, RSTART - 1) (found !~ /^"/ ? "0" : found ~ /^"[^\\;#|]*"$/ ? "\"\"" : "\"!\"")
            $0 = substr($0, RSTART + RLENGTH)
        }
        print text $0
    }'
}

strings_are_harmless() {
    local text
    text=$(cat)
    ! grep -q -E '\b(u8|[uUL])?R"' <<<"$text" || return 1
    text=$(without_strings <<<"$text" | sed -E 's/\b(asm|__asm|__asm__) *\( *("" *)+\)//g')
    ! grep -q -E '(__attribute__|__attribute|\[ *\[)[^;{}=]*"!"|\b(asm|__asm|__asm__)\b' <<<"$text"
}

# The compiler marks what came from asm in its output. It does not mark what is in the strings of asm names and of
# attributes: so these must be harmless.
assembler() {
    local command text
    command=$(sed -n 's/^ *"command": "\(.*\/ddp\.c\)\( *\\"\)\?",\?$/\1\2/p' "$build/compile_commands.json")
    command=$(sed -E 's/\\"/"/g; s/ -o [^ ]+ -c / -o - -S /' <<<"$command")
    if [[ $command != *' -o - -S '* ]] || ! text=$(cd "$build" && eval "$command" 2>/dev/null); then
        echo "symbols.sh: cannot tell how ddp.c was compiled"
    elif grep -q -E '^[^"]*(#APP|file scope inline assembly)' <<<"$text"; then # gcc's mark, or clang's
        echo "ddp.c has assembler (asm)$needless"
    elif ! (cd "$build" && eval "${command/ -S / -E }" 2>/dev/null) | tr -d '\000' | grep -a -v '^#' | tr '\n' ' ' |
        strings_are_harmless; then
        echo "ddp.c has assembler (asm, a raw string, or one with \\ ; # | in an attribute)$needless"
    fi
}

found=$({ names && sections && assembler; } 2>&1)
[ -z "$found" ] || { sort -u <<<"$found"; exit 1; }
