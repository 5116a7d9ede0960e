/* stage_jumps.c: where calls through a pointer and returns of a graded ddp.c or collectives.c may go. The starter's
 * CMakeLists.txt lets the compiler put jumps to here in their place. libddp.a: or, in assignment 0, libcollectives.a.
 */
#include "base/check.h"

#ifdef LOCKSTEP_CALLS_ARE_CHECKED

#if LOCKSTEP_STAGE == 0
#define FILE_OF_STUDENT "collectives.c"
#else
#define FILE_OF_STUDENT "ddp.c"
#endif

/* ---- calls through a pointer ---- */

/* Not static, and used: only the assembler below calls it. */
_Noreturn void stage_refuse_call(void);
_Noreturn void stage_refuse_call(void)
{
    FAULT(FILE_OF_STUDENT " calls through a pointer where none of its functions begins");
}

/* gcc (-mindirect-branch=thunk-extern) makes each indirect call of ddp.c a call of one of these, by the register with
 * the address. They go there if a function of libddp.a begins there. */
#define CHECKED_JUMP(register, scratch)                                                                                \
    ".globl __x86_indirect_thunk_" register "\n__x86_indirect_thunk_" register ":\n"                                  \
    "push %" scratch "\nlea __start_ddp_text(%rip), %" scratch "\ncmp %" scratch ", %" register "\njb 1f\n"           \
    "lea __stop_ddp_text-4(%rip), %" scratch "\ncmp %" scratch ", %" register "\nja 1f\n"                             \
    "cmpl $0xfa1e0ff3, (%" register ")\njne 1f\npop %" scratch "\njmp *%" register "\n1: jmp stage_refuse_jump\n"
__asm__(".text\nstage_refuse_jump: and $-16, %rsp\ncall stage_refuse_call\n"
        CHECKED_JUMP("rax", "r11") CHECKED_JUMP("rbx", "r11") CHECKED_JUMP("rcx", "r11") CHECKED_JUMP("rdx", "r11")
        CHECKED_JUMP("rsi", "r11") CHECKED_JUMP("rdi", "r11") CHECKED_JUMP("rbp", "r11") CHECKED_JUMP("r8", "r11")
        CHECKED_JUMP("r9", "r11") CHECKED_JUMP("r10", "r11") CHECKED_JUMP("r11", "r10") CHECKED_JUMP("r12", "r11")
        CHECKED_JUMP("r13", "r11") CHECKED_JUMP("r14", "r11") CHECKED_JUMP("r15", "r11")
        "stage_end_of_jumps:\n");

/* ---- returns ---- */

_Noreturn void stage_refuse_return(void);
_Noreturn void stage_refuse_return(void)
{
    FAULT(FILE_OF_STUDENT " returns to where it was not called: it has written over a return address on the stack");
}

/* A jump if the register's value does not lie between two labels. */
#define UNLESS_BETWEEN(start, end, register, to)                                                                       \
    "lea " start "(%rip), %rcx\ncmp %rcx, %" register "\njb " to "\nlea " end "(%rip), %rcx\ncmp %rcx, %" register       \
    "\nja " to "\n"
/* A jump to label 9 if a call through a pointer stands there: FF, and 2 in the middle of the next byte. */
#define IF_CALL_OF(bytes) "movzwl -" bytes "(%r11), %ecx\nand $0x38ff, %ecx\ncmp $0x10ff, %ecx\nje 9f\n"

/* gcc (-mfunction-return=thunk-extern) makes each return of ddp.c a jump to here. It returns if a call stands before
 * the place: in libddp.a, one by its distance; in the rest of the program, a call of a function of libddp.a, or one
 * through a pointer. */
__asm__(".text\n.globl __x86_return_thunk\n__x86_return_thunk:\nmov (%rsp), %r11\n"
        UNLESS_BETWEEN("__start_ddp_text", "__stop_ddp_text", "r11", "1f") "jmp 2f\n"
        "1: " UNLESS_BETWEEN("__executable_start", "etext", "r11", "8f")
        "2: cmpb $0xe8, -5(%r11)\njne 3f\nmovslq -4(%r11), %r10\nadd %r11, %r10\n"
        UNLESS_BETWEEN("__start_ddp_text", "__stop_ddp_text", "r10", "4f") "ret\n"
        "4: " UNLESS_BETWEEN("stage_refuse_jump", "stage_end_of_jumps", "r10", "3f") "ret\n"
        "3: " UNLESS_BETWEEN("__start_ddp_text", "__stop_ddp_text", "r11", "5f") "jmp 8f\n"
        "5: " IF_CALL_OF("2") IF_CALL_OF("3") IF_CALL_OF("4") IF_CALL_OF("6") IF_CALL_OF("7")
        "8: and $-16, %rsp\ncall stage_refuse_return\n9: ret\n");

#endif
