/* nvToolsExt.h: the emulator's version of NVTX's header: ranges and marks for a profiler, which the emulator simulates
 * if LOCKSTEP_EMULATED_PROFILER is set (emulator.h). */
#ifndef LOCKSTEP_TESTS_NVTOOLSEXT_H
#define LOCKSTEP_TESTS_NVTOOLSEXT_H

#define NVTX_NO_PUSH_POP_TRACKING (-2) /* there is no profiler */

int nvtxRangePushA(const char *message); /* returns its level, from 0 */
int nvtxRangePop(void);                  /* the level that it ends; negative: none was open */
void nvtxMarkA(const char *message);

#endif
