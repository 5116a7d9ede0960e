#!/usr/bin/env bash
# symbols.sh: says what in a compiled submission a solution has no need for: calls that end the program, read files, or
# start processes; definitions that would replace other functions; code that runs before main(); assembler.
#
# usage: symbols.sh STAGE BUILD     BUILD: a build of the starter, by cmake. Prints a line for each; status 1: there are
set -u -o pipefail
export LC_ALL=C
stage=$1 build=$2
# shellcheck source-path=SCRIPTDIR source=names.sh
source "$(dirname "${BASH_SOURCE[0]}")/names.sh"
set_names "$stage"
target=${c_file%.c} most_static=600000
[ "$stage" != collectives ] || most_static=0 # in the tests, ranks share them
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P) # of the starter
address='' needless=", which a solution has no need for"
[[ $build != *-address ]] || address=yes # the build with the address sanitizer

# What the headers declare that a solution may include (private_headers). In a comment nothing is declared.
declared() {
    local headers=(! -path '*/comm/*' -o -name process_group.h)
    [ "$stage" != collectives ] || headers=(-true)
    find "$top"/{common,stage*,collectives} -name '*.h' \( "${headers[@]}" \) -exec cat {} + 2>/dev/null | tr '\n' ' ' |
        sed -E 's,/\*([^*]|\*+[^*/])*\*+/, ,g' | grep -o -E '[A-Za-z_][A-Za-z0-9_]*' | sort -u
}

# Of these: functions of common/, of the given files, and of the other file that is handed in. Not those that read files,
# end the job or the group, start the program anew, write what tests look at (counters, observers, the timeline), call
# any function they are given (a tape of one's own), or draw the weights that rank 0 sends.
allowed() {
    find "$build/CMakeFiles/common.dir" "$build/CMakeFiles/$target.dir" -name '*.o' ! -path '*/data/*' ! -name "$c_file.o" \
        ! -name 'unsharded*' -exec nm -P -g --defined-only {} + | awk '
        NF > 2 && $1 !~ /^(job|timeline|group|shared|window|worker|collective|optimizer|op|tape|model|mlp|gpt|init)_/ &&
            $1 !~ /^pg_(set_|reset_|observe|run_|wrap_|split|destroy|mpi_|options|name|of_group)/ &&
            $1 !~ /^pg_(job_rank|communicator)/ && $1 != "device_choose_kernels" {
            print $1
        }' | sort -u | comm -12 - <(declared)
    echo job_rank job_world_size tape_listen tape_mark_used
    [ "$stage" != collectives ] || echo group_scratch
    harmless
}

# Of the C library: memory, arithmetic, text, messages, time, locks. Nothing that opens a file or takes a descriptor,
# starts a thread or process, or is called back later. tests/stages/stage_calls.c takes the place of some: it prints by
# itself, exit() is a fault, and qsort() calls only functions of ddp.c. No FILE but stdout and stderr.
harmless() {
    echo malloc calloc realloc reallocarray free aligned_alloc posix_memalign malloc_usable_size
    [ "$stage" = collectives ] || echo qsort qsort_r bsearch # nothing takes their place there
    echo {,l,ll}abs {,l,ll}div {s,}rand rand_r {s,}random {s,d,l,m}rand48 getrandom getenv
    echo ato{i,l,ll,f} strto{l,ul,ll,ull,d,f,ld,imax,umax} abort exit __assert_fail __assert_perror_fail
    echo mem{cpy,pcpy,move,set,cmp,chr,rchr,mem} rawmemchr explicit_bzero bzero bcmp bcopy {,r}index ffs{,l,ll}
    echo str{len,nlen,cmp,ncmp,casecmp,ncasecmp,cpy,ncpy,lcpy,cat,ncat,lcat,chr,chrnul,rchr,str,casestr} stp{,n}cpy
    echo str{spn,cspn,pbrk,tok,tok_r,sep,dup,ndup,signal,error,error_r,fry,rev} __xpg_strerror_r __strtok_r
    echo is{alnum,alpha,blank,cntrl,digit,graph,lower,print,punct,space,upper,xdigit,ascii} to{lower,upper,ascii}
    echo __ctype_{b,tolower,toupper}_loc __errno_location {,v}{s,sn,as}printf {,v}sscanf
    echo stdout stderr {,v}{,f}printf puts putchar fputs fputc putc fwrite fflush perror setvbuf setbuf
    echo time difftime clock clock_get{time,res} gettimeofday timespec_get nanosleep usleep sleep sched_yield
    echo {localtime,gmtime,ctime,asctime}{,_r} mktime timegm strftime getpid getrusage sched_getcpu gethostname sysconf
    echo {acos,asin,atan,atan2,cos,sin,tan,sincos,cosh,sinh,tanh,acosh,asinh,atanh}{,f,l} {exp,log,pow}{,f,l}
    echo {exp2,exp10,expm1,log2,log10,log1p,logb,ilogb,sqrt,cbrt,hypot,erf,erfc,lgamma,tgamma,lgamma_r}{,f,l}
    echo {ceil,floor,trunc,round,roundeven,lround,llround,rint,nearbyint,lrint,llrint,fmod,remainder,remquo}{,f,l}
    echo {fabs,fmin,fmax,fdim,fma,copysign,nan,nextafter,nexttoward,frexp,ldexp,modf,scalbn,scalbln}{,f,l}
    echo {__,}{fpclassify,finite,signbit,isnan,isinf}{,f,l} {j0,j1,jn,y0,y1,yn,gamma}{,f,l} signgam
    echo {c,}{abs,arg,imag,real}{,f,l} {conj,cproj,cexp,clog,cpow,csqrt}{,f,l} c{,a}{cos,sin,tan}{,h}{,f,l}
    echo fe{clear,raise,test,enable,disable,get}except fe{get,set}{round,env} feholdexcept feupdateenv
    echo pthread_{mutex,cond,rwlock,spin,mutexattr,condattr,barrier}_{init,destroy} pthread_mutexattr_settype
    echo pthread_mutex_{lock,trylock,timedlock,unlock} pthread_cond_{wait,timedwait,signal,broadcast} pthread_self
    echo pthread_rwlock_{rdlock,wrlock,tryrdlock,trywrlock,unlock} pthread_spin_{lock,trylock,unlock} pthread_equal
    echo __stack_chk_fail _GLOBAL_OFFSET_TABLE_ __tls_get_addr
}

# The compiler brings in names that no student has written: those of the sanitizers, but for what their headers declare;
# and arithmetic of wide numbers, with the types in its name.
names() {
    nm -P "$object" | awk -v address="$address" -v name="$c_file" -v defined="$defined" -v uses="$c_file uses " -v needless="$needless" \
        -v given="$([[ $stage != stage[1-4]* ]] || echo given)" '
        FNR == NR { for (i = 1; i <= NF; i++) allowed[$i]; next }
        address && $2 == "U" && $1 ~ /^__(ubsan_handle|asan)_/ && $1 !~ "^__asan_(set_(death|error)|(un)?poison_memory|" \
            "describe|report_error|default|on_error|get_|locate|print|address_is|region|update)" { next }
        $2 == "U" && $1 ~ /^__[a-z]+([hsdt]i|[bhsdxt]f|[hsdxt]c)([bhsdxt]f)?[234]$/ { next } # __divti3, __muldc3
        $2 == "U" && $1 ~ /^__(fix|fixuns|float|floatun)[bhsdxt][if][bhsdxt][if]$/ { next }
        $2 == "U" && $1 ~ /^__x86_(return|indirect)_thunk(_[a-z0-9]+)?$/ { next } # returns, and calls through a pointer: checked
        $2 == "U" && $1 ~ /^__atomic_[a-z_]+(_[0-9]+)?$/ { next }
        $2 ~ /^[Uwv]$/ {
            plain = $1
            sub(/^__isoc(99|23)_/, "", plain) # glibc 2.38: strtol() becomes __isoc23_strtol()
            if (sub(/_chk$/, "", plain)) sub(/^__/, "", plain) # Ubuntu: fprintf() becomes __fprintf_chk()
            if (!($1 in allowed) && !(plain in allowed)) print uses "\x27" $1 "\x27" needless
        }
        $2 == "i" { print uses "\x27" $1 "\x27, chosen when it is loaded (ifunc)" needless; next }
        given && $2 ~ /^[A-Z]$/ && $2 != "U" && $1 ~ /^ddp_(partition|after_update|gather_weights|sharded_memory)$/ {
            print name " defines \x27" $1 "\x27, which is given: stages 1 to 4 have no shards"
        }
        $2 ~ /^[A-Zu]$/ && $2 != "U" && $1 !~ (address ? "^(__odr_asan(\\.|_gen_))?" : "^") defined "$" {
            print name " defines \x27" $1 "\x27 for the whole program: write static before it"
        }' <(allowed) -
}

# A solution allocates its large arrays: tests count only what is allocated (live_bytes.h).
static_memory() {
    [ "$most_static$address" != 0yes ] || return 0 # the sanitizer adds static variables
    size -A "$object" | awk -v name="$c_file" -v most="$most_static" '
        /^\.(tm_)?(data|bss|tdata|tbss)/ { bytes += $2 }
        END {
            if (bytes > most)
                print name " has " bytes " bytes of static variables, of which " most " are enough" \
                    (most > 0 ? ": allocate them" : ": what a rank knows belongs to its call")
        }'
}

# The address sanitizer has one function of its own before main(), and one after it, of 8 bytes each in a table.
sections() {
    objdump -hw "$object" | awk -v name="$c_file" -v address="$address" -v needless="$needless" '
        $1 !~ /^[0-9]+$/ { next }
        address && $2 ~ /^\.(init|fini)_array\.[0-9]+$/ && !seen[substr($2, 1, 5)]++ && $3 ~ /^0+8$/ { next }
        $2 !~ /^\.(text|rodata|data|bss|tdata|tbss|eh_frame|comment|note|debug|group|llvm)([._][A-Za-z0-9._-]+)?$/ &&
            !(address && $2 == "asan_globals") || $3 !~ /^[0-9a-f]+$/ {
            print name " has a section \x27" $2 "\x27 (a function that runs before main?)" needless
        }
        / CODE/ && $2 !~ /^\.text/ { print name " has code in " $2 " (a nested function?)" needless }'
    objdump -t "$object" | awk -v name="$c_file" '/^[0-9a-f]+ ......O \.text/ { print name " has data among its code: \x27" $NF "\x27" }'
}

# Where a call through a pointer or a return is checked at run time (stage_jumps.c), no function may turn this off by an
# attribute.
calls() {
    local command returns=
    command=$(compile_command)
    [[ $command = *-mindirect-branch=thunk-extern* ]] || return 0
    [[ $command != *-mfunction-return=* ]] || returns=checked
    objdump -d --no-show-raw-insn "$object" | awk -v file="$c_file" -v returns="$returns" '
        /^[0-9a-f]+ <.*>:$/ { name = $2 }
        /[[:space:]](notrack |bnd )?l?(call|jmp)q? +\*/ {
            print file " has a call that is not checked, in " name " an attribute?"
        }
        returns && /[[:space:]](bnd |repz? )?l?i?ret[qwlf]?([[:space:]]|$)/ {
            print file " has a return that is not checked, in " name " an attribute?"
        }'
    hidden_functions
}

# A call through a pointer may go where endbr64 stands (stage_jumps.c): these bytes may be in no constant.
hidden_functions() {
    local program all
    for program in "$build/$stage"/*; do
        [ -x "$program" ] || continue
        all=$(objdump -s -j ddp_text "$program" | sed -n -E 's/^ [0-9a-f]+ (.{35}).*/\1/p' | tr -d ' \n' | sed 's/../ &/g' |
            grep -o ' f3 0f 1e fa' | wc -l)
        [ "$all" -eq "$(objdump -d -j ddp_text "$program" | grep -c -E '[[:space:]]endbr64')" ] ||
            echo "$c_file has a constant or an offset with the bytes f3 0f 1e fa, at which a function begins"
    done
}

# Of preprocessed text: each string becomes "" if it is an identifier or empty, "!" if it has what could end a line of
# assembler, and else "?". Status 1: there is a raw string; or a quote without a partner in its line, which the compiler
# allows in a pragma. What follows it would look like the text of a string here.
without_strings() {
    LC_ALL=C awk '{
        text = ""
        while (match($0, /"([^"\\]|\\.)*"|\047([^\047\\]|\\.)*\047/)) {
            found = substr($0, RSTART, RLENGTH)
            text = text substr($0, 1, RSTART - 1)
            refused = refused || found ~ /^"/ && text ~ /(^|[^A-Za-z0-9_$])(u8|[uUL])?R$/
            text = text (found !~ /^"/ ? "0" : found ~ /^"([A-Za-z_][A-Za-z0-9_]*)?"$/ ? "\"\"" : \
                found ~ /^"[^\\;#|]*"$/ ? "\"?\"" : "\"!\"")
            $0 = substr($0, RSTART + RLENGTH)
        }
        refused = refused || /["\047]/
        print text $0
    }
    END { exit refused }'
}

# Reads one line of text without strings. Prints each attribute, up to its last parenthesis, as a line.
attributes() {
    LC_ALL=C awk '{
        while (match($0, /__attribute(__)?|\[ *\[/)) {
            depth = substr($0, RSTART, 1) == "[" ? 2 : 0
            $0 = substr($0, RSTART + RLENGTH)
            for (i = 1; i <= length($0); i++) {
                character = substr($0, i, 1)
                if (character ~ /[[(]/) depth++
                if (character ~ /[])]/ && --depth <= 0) break
            }
            print substr($0, 1, i)
        }
    }'
}

# Of text without strings, in one line: pragmas go to its end, because the compiler takes them out of what they stand in
# (their brackets count for nothing); and brackets are spelled in one way.
in_order() {
    awk '/^[[:space:]]*#/ { pragmas = pragmas " " $0; next } { printf "%s ", $0 } END { print pragmas }' |
        sed -E 's/<:/[/g; s/:>/]/g; s/<%/{/g; s/%>/}/g'
}

# True if a declaration with "register" names one.
takes_registers() {
    grep -o -E '\b(register|asm|__asm|__asm__)\b|[][(){};]' | awk '
        /^[[({]$/ { depth++ }
        /^[[({;]$/ { declares[depth] = 0 }
        /^[])}]$/ { depth-- }
        /^register$/ { declares[depth] = 1 }
        /asm/ && declares[depth] { found = 1 }
        END { exit !found }'
}

# No string may bring text to the assembler: what follows asm is a name, without a sum that leads into the middle of a
# function. No register and no stack is taken over, and no sanitizer is turned off or spoken to.
strings_are_harmless() {
    local text over_the_stack
    text=$(cat)
    ! tr '\n' ' ' <<<"$text" | sed 's/" *"//g' | grep -q -E '__(asan|lsan|ubsan|sanitizer)_' || return 1
    text=$(without_strings <<<"$text") || return 1
    text=$(in_order <<<"$text")
    ! takes_registers <<<"$text" || return 1
    over_the_stack='setjmp|longjmp|eh_|unwind_|dwarf_|init_dwarf|frame_|return|extract_return|frob_return|apply'
    text=$(sed -E 's/\b(asm|__asm|__asm__) *\( *("" *)+\)//g' <<<"$text")
    ! grep -q -E "\b__builtin_($over_the_stack)" <<<"$text" || return 1
    ! attributes <<<"$text" | grep -q '"!"' &&
        ! grep -q -E '\b(asm|__asm|__asm__)\b|no_sanitize|no_address_safety|sanitizer_instr' <<<"$text"
}

compile_command() { # of ddp.c, to assembler on standard output
    sed -n 's/^ *"command": "\(.*\/'"$c_file"'\)\( *\\"\)\?",\?$/\1\2/p' "$build/compile_commands.json" |
        sed -E 's/\\"/"/g; s/ -o [^ ]+ -c / -o - -S /'
}

# A stage gets a handle (tests/stages/stage_calls.c), and what is behind it is not its matter. Nor are the tests, nor
# what stands beside ddp.c and is not handed in.
private_headers() {
    local command name
    command=$(compile_command)
    (cd "$build" && eval "${command/ -S / -E }" 2>/dev/null) | sed -n -E 's/^# [0-9]+ "([^<].*)".*/\1/p' | sort -u |
        (cd "$build" && xargs -d '\n' realpath -m --) | sort -u | while IFS= read -r name; do
        case ${name#"$top"/*/} in
        comm/process_group.h) ;;
        comm/*) [ "$stage" = collectives ] || echo "$c_file includes ${name#"$top"/}, which is for common/comm alone" ;;
        esac
        case ${name#"$top"/} in
        "$stage/$c_file" | "$stage"/buckets.[h] | "$stage"/readiness.[h] | "$stage"/sharded.[h]) ;;
        "$stage"/shards.[h] | "$stage"/gathers.[h] | "$stage"/weights.[h] | "$stage"/collectives.[h]) ;; # given, too
        "$stage"/*) echo "$c_file includes ${name#"$top"/}, which is not handed in: only $c_names is" ;;
        tests/* | train/*) echo "$c_file includes ${name#"$top"/}$needless" ;;
        esac
    done
}

# The compiler marks what came from asm in its output. It does not mark what is in the strings of asm names and of
# attributes: so these must be harmless. Nor may an attribute (or a pragma) turn a sanitizer off.
assembler() {
    local command text
    command=$(compile_command)
    if [[ $command != *' -o - -S '* ]] || ! text=$(cd "$build" && eval "$command" 2>/dev/null); then
        echo "symbols.sh: cannot tell how $c_file was compiled"
    elif grep -q -E '^[^"]*(#APP|file scope inline assembly)' <<<"$text"; then # gcc's mark, or clang's
        echo "$c_file has assembler (asm)$needless"
    elif ! (cd "$build" && eval "${command/ -S / -E }" 2>/dev/null) | tr -d '\000' | grep -a -v '^# [0-9]' |
        strings_are_harmless; then
        echo "$c_file has assembler (asm, a raw string, one with \\ ; # | in an attribute, a quote in a pragma), a builtin" \
            "that takes over the stack, or turns a sanitizer off$needless"
    fi
}

look() {
    object=$build/CMakeFiles/$target.dir/$stage/$c_file.o
    case $c_file in
    collectives.c) defined='(broadcast|ring_(reduce_scatter|all_gather|all_reduce)|halving_doubling_all_reduce)' ;;
    *) defined="${c_file%.c}_[a-z_]+" ;;
    esac
    names && static_memory && sections && calls && private_headers && assembler
}

found=$(for c_file in "${c_files[@]}"; do look; done 2>&1)
[ -z "$found" ] || { sort -u <<<"$found"; exit 1; }
