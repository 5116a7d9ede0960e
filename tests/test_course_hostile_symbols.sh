#!/usr/bin/env bash
# test_course_hostile_symbols.sh: symbols.sh rejects what no solution needs, and accepts what one may have. In seconds.
#
# usage: test_course_hostile_symbols.sh ROOT
# shellcheck disable=SC2016 # what is quoted is for the compiler
set -u
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/lib.sh"
export LC_ALL=C
root=$(cd "$1" && pwd) || exit 1

# ---- names: objects as the starter's build makes them ----

mpi=$(mpicc -show | grep -o -E -- "-I[^ ]+" | tr "\n" " ") # two private headers include mpi.h
object() { # TEXT [OPTION...]: compiles it after a small but complete ddp.c
    local flags="-std=gnu11 -D_GNU_SOURCE -O2 -w $mpi ${*:2}"
    { echo 'int ddp_before_backward(const void *ddp) { return ddp != 0; }' && echo "$1"; } >"$scratch/ddp.c"
    # shellcheck disable=SC2086 # lists of words
    "${CC:-cc}" $flags -o "$place/CMakeFiles/ddp.dir/stage1/ddp.c.o" -c "$scratch/ddp.c" || fail "does not compile: $1"
    echo "  \"command\": \"${CC:-cc} $flags -o CMakeFiles/ddp.dir/stage1/ddp.c.o -c $scratch/ddp.c\"," \
        >"$place/compile_commands.json"
    "$scratch/tests/stages/symbols.sh" stage1 "$place" >"$scratch/out" 2>&1
}

rejected() { # PATTERN TEXT [OPTION...]
    ! object "${@:2}" || fail "accepted: $2"
    grep -q -e "$1" "$scratch/out" || fail "$2: the message does not match '$1': $(cat "$scratch/out")"
}

accepted() { # TEXT [OPTION...]
    object "$@" || fail "rejected: $1: $(cat "$scratch/out")"
}

place=$scratch/build # as in a starter
mkdir -p "$scratch/tests/stages" "$scratch/stage1"
cp "$root"/course/{names,symbols}.sh "$root"/tests/stages/*.h "$scratch/tests/stages"
cp -r "$root/common" "$root/train" "$scratch"
mkdir -p "$place/CMakeFiles/common.dir/common/data" "$place/CMakeFiles/ddp.dir/stage1"
echo 'void work_wait(void) { } void job_abort(int s) { (void)s; } void pg_observe(void) { } void timeline_add(void) { }
    void tape_backward(void) { } void tape_record(void) { } void op_add(void) { } void optimizer_create(void) { }
    void start_send(void) { } void wait_for_messages(void) { } void combine(void) { } void not_declared(void) { }
    void device_choose_kernels(void) { } void model_create(void) { } void mlp_create(void) { } void gpt_create(void) { }
    void init_normal(void) { } void device_scale(void) { }' |
    "${CC:-cc}" -xc -c -o "$place/CMakeFiles/common.dir/common/work.c.o" -
unsharded='const void *ddp_partition(void *ddp) { (void)ddp; return 0; } void ddp_after_update(void) { }'
mkdir -p "$place/CMakeFiles/ddp.dir/stage5_sharded"
"${CC:-cc}" -xc -c -o "$place/CMakeFiles/ddp.dir/stage5_sharded/unsharded.c.o" - <<<"$unsharded"
echo 'void dataset_open(void) { }' | "${CC:-cc}" -xc -c -o "$place/CMakeFiles/common.dir/common/data/dataset.c.o" -

accepted ''
accepted 'void work_wait(void); void device_scale(void); void ddp_before_forward(void) { work_wait(), device_scale(); }'
accepted '#include <stdio.h>
    void ddp_before_forward(int i) { fprintf(stderr, "%d\n", i); printf("%d", i); fputs("x", stderr); }'
accepted '#include <assert.h>
    #include <math.h>
    #include <string.h>
    void ddp_before_forward(char *p, float *x) { assert(p); memset(p, 1, 9); *x = fabsf(sqrtf(*x)); }'
functions=(_exit quick_exit write read open fopen fdopen dprintf fork kill raise signal sigaction system execve syscall
    ptrace mmap mprotect dlsym socket atexit on_exit setenv MPI_Allreduce MPI_Finalize fgets fscanf setjmp longjmp
    pthread_create pthread_once tape_backward tape_record op_add optimizer_create job_abort dataset_open pg_observe
    timeline_add stage_begins judge_case_is_over _fail __printf __libc_system start_send wait_for_messages combine
    not_declared device_choose_kernels model_create mlp_create gpt_create init_normal ddp_partition)
rejected uses "$(printf 'long %s(); ' "${functions[@]}") long ddp_before_forward(void) {
    return 0 $(printf ' + %s(0, 0)' "${functions[@]}"); }" # all in one object: each is named
for function in "${functions[@]}"; do
    grep -q -e "uses '$function'" "$scratch/out" || fail "$function() is not named: $(cat "$scratch/out")"
done
rejected "uses 'stdin'" '#include <stdio.h>
    void *ddp_before_forward(void) { return stdin; }'
rejected "uses 'fork'" 'int step(void) __asm__("fork"); int ddp_before_forward(void) { return step(); }'
for name in main MPI_Allreduce free __wrap_free helper; do
    rejected "defines '$name'" "int $name(void) { return 0; }"
done
for name in ddp_partition ddp_after_update ddp_gather_weights; do
    rejected "defines '$name', which is given" "int $name(void) { return 0; }"
done
rejected "defines 'free'" '__attribute__((weak)) void free(void *p) { (void)p; }'
rejected 'ifunc' 'static void f(void) { } static void *g(void) { return f; }
    void ddp_before_forward(void) __attribute__((ifunc("g")));'
rejected 'init_array' 'static volatile int x; __attribute__((constructor)) static void f(void) { x++; }'
rejected 'init_array' 'static volatile int x; __attribute__((constructor(101))) static void f(void) { x++; }'
rejected 'fini_array' 'static volatile int x; __attribute__((destructor)) static void f(void) { x++; }'
for table in .preinit_array .ctors __libc_atexit; do
    rejected "section '$table" \
        "static void f(void) { } __attribute__((section(\"$table\"), used)) static void (*p)(void) = f;"
done
rejected 'code in' '__attribute__((section(".init"), used)) static void f(void) { }'
rejected 'data among its code' '__attribute__((section(".text#"), used)) static const char c[] = "\x0f\x05";'
nested='int ddp_after_backward(int (*f)(int (*)(int)), int k) { int g(int i) { return i + k; } return f(g); }'
! echo "$nested" | "${CC:-cc}" -xc -fsyntax-only - 2>/dev/null || rejected 'nested function' "$nested" # only gcc has them
rejected 'assembler' 'void ddp_before_forward(void) { __asm__ volatile("nop"); }'
rejected 'assembler' '__asm__(".byte 15, 5");'
rejected 'assembler' 'long ddp_x(long) __asm__("0f\n0:\tsyscall\n#"); long ddp_before_forward(void) { return ddp_x(1); }'
rejected 'assembler' '__attribute__((section(".text\n\tsyscall\n#"))) void ddp_before_forward(void) { }'
rejected 'assembler' '__attribute__((section(".text;ddp_x:mov $60,%eax;syscall;ret#"))) void ddp_before_forward(void) { }'
rejected 'assembler' '__attribute__((section(R"(.text
    syscall
    .section .text)"))) void ddp_before_forward(void) { }'
# The compiler ends a quote in a pragma with its line. And an attribute may have a brace.
for around in "#pragma x '" '#pragma x "' '_Pragma("x \047")'; do
    rejected 'assembler' "$around
        __attribute__((section(\".text\\n\\tsyscall\\n#\"))) void ddp_before_forward(void) { }
        $around"
done
rejected 'assembler' '__attribute__((aligned(sizeof(struct { char c; })), section(".rodata\n\tsyscall\n#"))) const int ddp_x = 1;'
accepted 'const char *ddp_before_forward(int i) { return i > 0 ? "LR" : i < 0 ? "R" : "u8R"; }'
rejected 'assembler' '<:<:gnu::section(".text\n\tsyscall\n#"):>:> void ddp_before_forward(void) { }'
rejected 'assembler' '__attribute__((section(
#pragma x )))
    ".text\n\tsyscall\n#"))) void ddp_before_forward(void) { }'
accepted 'void ddp_x(void) __asm__("ddp_before_forward"); void ddp_x(void) { }'
# A label with a sum leads into the middle of a function.
for label in '"ddp_before_backward+6"' '"ddp_before_backward" "+6"' '"ddp_before_backward"
    "+6"' '"ddp_before_backward-0"' '"1+ddp_before_backward"'; do
    rejected 'assembler' "long ddp_x(void) __asm__($label); long ddp_before_forward(void) { return ddp_x(); }"
done
# Nor does a solution take a register, or the stack, into its own hands.
for register in 'register char *sp __asm__("rsp");' 'register struct { int i; } *sp asm("rsp");' \
    'register
#pragma x ;
    char *sp __asm__("rsp");' 'register struct <% int i; %> *sp __asm("r12");' \
    'void ddp_x(void) { { } register long i __asm__("rbx"); i++; }'; do
    rejected 'assembler' "$register"
done
accepted '#include <stdio.h>
    int ddp_before_forward(register int k) { for (register int i = 0; i < 9; i++) k += i; return k; }
    int scan(const char *, ...) __asm__("sscanf");
    int ddp_y(register int i, int k) { return i + k + scan("1", "%d", &k); }'
for builtin in setjmp longjmp eh_return frame_address return_address apply apply_args unwind_init dwarf_cfa; do
    rejected 'a builtin' "void ddp_before_forward(void **p) { if (0) (void)sizeof(__builtin_$builtin); }" -fno-builtin
done
accepted '__attribute__((format(printf, 1, 2))) void ddp_x(const char *f, ...); void ddp_x(const char *f, ...) { (void)f; }
    __attribute__((optimize("O3,unroll-loops"))) void ddp_before_forward(int *p) { *p = __builtin_expect(*p, 1); }
    __attribute__((deprecated("use ddp_x(), 2+2"))) void ddp_y(void) { }'
[ "$(uname -m)" != x86_64 ] || accepted '__attribute__((target("avx2,fma"))) void ddp_before_forward(int *p) { *p = 0; }'
rejected 'of static variables' 'static char hidden[1 << 20]; char *ddp_x(int i); char *ddp_x(int i) { return &hidden[i]; }'
accepted 'static char small[1 << 17]; char *ddp_x(int i); char *ddp_x(int i) { return &small[i]; }'
for header in common/comm/group.h common/ddp/../comm/./observer.h tests/stages/judge.h train/guard/parts.h; do
    rejected "includes $(realpath -m "/$header" | cut -c 2-)" "#include \"$scratch/$header\"" "-I $scratch/common"
done
checked_calls='-mindirect-branch=thunk-extern -mindirect-branch-register -fcf-protection=branch'
pointer='int (*ddp_x)(void);'
attribute='__attribute__((indirect_branch("keep")))'
# shellcheck disable=SC2086 # a list of words
if "${CC:-cc}" $checked_calls -xc -fsyntax-only - 2>/dev/null <<<'int ddp_x;'; then
    accepted "$pointer int ddp_before_forward(void) { return ddp_x() + 1; }" $checked_calls
    rejected 'a call that is not checked' "$pointer $attribute int ddp_before_forward(void) { return ddp_x() + 1; }" \
        $checked_calls
    checked_calls+=' -mfunction-return=thunk-extern -fno-ipa-ra'
    accepted "$pointer int ddp_before_forward(void) { return ddp_x() + 1; }" $checked_calls
    rejected 'a return that is not checked' \
        '__attribute__((function_return("keep"))) int ddp_before_forward(int i) { return i; }' $checked_calls
fi
# A program has no hidden functions: an indirect call may go where endbr64 stands, also in the middle of an instruction.
# shellcheck disable=SC2086 # a list of words
if "${CC:-cc}" $checked_calls -xc -fsyntax-only - 2>/dev/null <<<'int ddp_x;'; then
    mkdir "$place/stage1"
    hidden() { # OFFSET: links a program with a store at this offset from a pointer, followed by "syscall; ret"
        object "void ddp_before_forward(char *p) { *(volatile unsigned *)(p + $1) = 0x90c3050f; }" $checked_calls || true
        objcopy --rename-section .text=ddp_text "$place/CMakeFiles/ddp.dir/stage1/ddp.c.o" "$scratch/hidden.o"
        echo 'void __x86_return_thunk(void) { } int main(void) { return 0; }' |
            "${CC:-cc}" -xc - -xnone "$scratch/hidden.o" -o "$place/stage1/test_hidden"
        "$scratch/tests/stages/symbols.sh" stage1 "$place" >"$scratch/out" 2>&1
    }
    ! hidden '(int)0xfa1e0ff3' || fail "accepted: a function in an offset"
    grep -q 'the bytes f3 0f 1e fa' "$scratch/out" || fail "not said: a function in an offset: $(cat "$scratch/out")"
    hidden '0x1a1e0ff3' || fail "rejected: an offset: $(cat "$scratch/out")"
    rm -r "$place/stage1"
fi
for attribute in 'no_sanitize("address")' __no_sanitize_address__ no_address_safety_analysis; do
    rejected 'turns a sanitizer off' "__attribute__(($attribute)) void ddp_before_forward(int *p) { p[9] = 1; }"
done
accepted '#include <pthread.h>
    #include <string.h>
    #include <stdio.h>
    void ddp_before_forward(void) {
        __attribute__((unused)) const char *lines = "\n; no_sanitize";
        fprintf(stderr, "no asm here, \"%s\": %c", lines, (char)34);
    }' -D_FORTIFY_SOURCE=2

sanitized=-fsanitize=address,undefined
if "${CC:-cc}" $sanitized -xc -o /dev/null - <<<'int main(void) { return 0; }' 2>/dev/null; then
    mv "$place" "$place-address"
    place=$place-address
    accepted 'const int ddp_stage_number = 1;' $sanitized
    rejected 'init_array' 'static volatile int x; __attribute__((constructor(99))) static void f(void) { x++; }' \
        $sanitized
    rejected "uses '_exit'" 'void _exit(int); void ddp_before_forward(void) { _exit(0); }' $sanitized
    accepted '#include <string.h>
        int ddp_before_forward(int n) { char text[n]; memset(text, n, (size_t)n); return text[n / 2]; }' $sanitized
    rejected "uses '__asan_poison_memory_region'" 'void __asan_poison_memory_region(void *p, unsigned long size);
        void ddp_before_forward(void) { __asan_poison_memory_region(0, 0); }' $sanitized
    # Where the plain build has no such call, because the compiler has found its condition to be false.
    for text in '__asan_allocas_unpoison(void *p, void *q)' '__asan_x(void *p, void *q) __asm__("__as" "an_allocas_unpoison")'; do
        rejected 'turns a sanitizer off' "void $text; void ddp_before_forward(int x) {
            if (!__builtin_constant_p(x + 1 > x)) ${text%%(*}(&x, &x + 1); }" $sanitized
    done
    rejected "defines '__asan_default_options'" 'const char *__asan_default_options(void) { return "exitcode=0"; }' \
        $sanitized
    rejected "defines '__asan_report_load4'" 'void __asan_report_load4(void *p) { (void)p; }' $sanitized
fi

finish
