# ---- how it is compiled ----
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()
set(LOCKSTEP_SANITIZE "" CACHE STRING "empty, 'address' (with undefined behaviour) or 'thread'")
if(NOT LOCKSTEP_SANITIZE MATCHES "^(address|thread)?$")
    message(FATAL_ERROR "LOCKSTEP_SANITIZE is '${LOCKSTEP_SANITIZE}': give 'address', 'thread', or nothing")
endif()
option(LOCKSTEP_NATIVE "use all instructions of this machine's processor" ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON) # for editors
set(CMAKE_C_STANDARD 11)
add_compile_definitions(_GNU_SOURCE)
add_compile_options(-Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
                    -fopenmp-simd -fno-math-errno -fno-trapping-math $<$<CONFIG:Release>:-O3> # gcc vectorises
                    $<$<C_COMPILER_ID:Clang,AppleClang>:-Wno-pass-failed>
                    $<$<BOOL:${LOCKSTEP_NATIVE}>:-march=native>)
if(LOCKSTEP_SANITIZE STREQUAL "address") # -g: reports name lines
    set(sanitizers -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g)
elseif(LOCKSTEP_SANITIZE STREQUAL "thread")
    set(sanitizers -fsanitize=thread -fno-omit-frame-pointer -g)
endif()
add_compile_options(${sanitizers})
add_link_options(${sanitizers} -Wl,-z,relro,-z,now)
