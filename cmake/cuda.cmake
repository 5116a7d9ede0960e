# cuda.cmake: finds everything that train_cuda needs. Sets LOCKSTEP_WITH_CUDA. If it is ON, the targets CUDA::cudart,
# CUDA::cublas, LOCKSTEP::nccl and LOCKSTEP::nvtx exist, and the language CUDA is enabled.
#
# nvcc is searched on PATH, in $CUDA_HOME and in /usr/local/cuda. NCCL: in NCCL_ROOT, a directory that has
# include/nccl.h and lib/libnccl.so or lib/libnccl.so.2, then beside nvcc and in the system, and last in PyTorch's
# packages for the Python on PATH. NVTX, which consists of headers only, and cuBLAS: likewise.
set(LOCKSTEP_CUDA "OFF" CACHE STRING "build train_cuda: OFF, ON, or AUTO (where CUDA and NCCL are found)")
set(NCCL_ROOT "" CACHE PATH "where NCCL is: has include/ and lib/")
set(LOCKSTEP_WITH_CUDA OFF)

# Sets result to the compute capabilities of this machine's GPUs ("90"), if they are at least 80: older tensor cores do
# not have bf16. Empty without such a GPU.
function(lockstep_present_architectures result)
    set(present "")
    find_program(LOCKSTEP_NVIDIA_SMI nvidia-smi)
    mark_as_advanced(LOCKSTEP_NVIDIA_SMI)
    if(LOCKSTEP_NVIDIA_SMI)
        execute_process(COMMAND ${LOCKSTEP_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
                        OUTPUT_VARIABLE lines ERROR_QUIET)
        string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${lines}")
        string(REPLACE "." "" present "${capabilities}")
        list(FILTER present EXCLUDE REGEX "^[1-7].$")
    endif()
    set(${result} ${present} PARENT_SCOPE)
endfunction()

# Sets result to the directories of the Python packages nvidia/..., if there are any.
function(lockstep_python_nvidia result)
    find_program(LOCKSTEP_PYTHON NAMES python3 python)
    mark_as_advanced(LOCKSTEP_PYTHON)
    set(directories "")
    if(LOCKSTEP_PYTHON)
        execute_process(COMMAND ${LOCKSTEP_PYTHON} -c "import nvidia; print(*nvidia.__path__, sep=';')"
                        OUTPUT_VARIABLE directories ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    endif()
    set(${result} ${directories} PARENT_SCOPE)
endfunction()

# Finds cuBLAS if the toolkit has none.
function(lockstep_find_cublas)
    lockstep_python_nvidia(nvidia)
    set(major ${CUDAToolkit_VERSION_MAJOR})
    find_path(LOCKSTEP_CUBLAS_INCLUDE cublas_v2.h PATHS ${nvidia} PATH_SUFFIXES cu${major}/include cublas/include)
    find_library(LOCKSTEP_CUBLAS_LIBRARY libcublas.so.${major} PATHS ${nvidia} PATH_SUFFIXES cu${major}/lib cublas/lib)
    mark_as_advanced(LOCKSTEP_CUBLAS_INCLUDE LOCKSTEP_CUBLAS_LIBRARY)
    if(LOCKSTEP_CUBLAS_INCLUDE AND LOCKSTEP_CUBLAS_LIBRARY)
        get_filename_component(directory ${LOCKSTEP_CUBLAS_LIBRARY} DIRECTORY)
        add_library(CUDA::cublas INTERFACE IMPORTED GLOBAL)
        target_include_directories(CUDA::cublas SYSTEM INTERFACE ${LOCKSTEP_CUBLAS_INCLUDE})
        target_link_libraries(CUDA::cublas INTERFACE ${LOCKSTEP_CUBLAS_LIBRARY})
        target_link_options(CUDA::cublas INTERFACE LINKER:-rpath,${directory}) # libcublasLt.so is there, too
    endif()
endfunction()

# Finds NCCL and NVTX. Sets result to a sentence about what is missing; empty if nothing is.
function(lockstep_find_nccl result)
    lockstep_python_nvidia(nvidia)
    find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS ${NCCL_ROOT}/include ENV NCCL_ROOT ${CUDAToolkit_INCLUDE_DIRS}
              PATHS ${nvidia} PATH_SUFFIXES include nccl/include)
    find_library(LOCKSTEP_NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR
                 HINTS ${NCCL_ROOT} ENV NCCL_ROOT ${CUDAToolkit_LIBRARY_DIR}
                 PATHS ${nvidia} PATH_SUFFIXES lib lib64 nccl/lib)
    find_path(LOCKSTEP_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
              PATHS ${nvidia} PATH_SUFFIXES nvtx/include cu13/include)
    mark_as_advanced(LOCKSTEP_NCCL_INCLUDE LOCKSTEP_NCCL_LIBRARY LOCKSTEP_NVTX_INCLUDE)
    if(NOT LOCKSTEP_NCCL_INCLUDE OR NOT LOCKSTEP_NCCL_LIBRARY)
        set(${result} "no NCCL (2.18 or later): install libnccl-dev, or give -DNCCL_ROOT=DIR" PARENT_SCOPE)
        return()
    endif()
    file(STRINGS ${LOCKSTEP_NCCL_INCLUDE}/nccl.h version REGEX "^#define NCCL_(MAJOR|MINOR) ")
    string(REGEX REPLACE "[^0-9;]" "" version "${version}")
    list(JOIN version . version)
    if(version VERSION_LESS 2.18)
        set(${result} "NCCL ${version} in ${LOCKSTEP_NCCL_INCLUDE} is too old: 2.18 or later, see -DNCCL_ROOT=DIR" PARENT_SCOPE)
        return()
    endif()
    if(NOT LOCKSTEP_NVTX_INCLUDE)
        set(${result} "no nvtx3/nvToolsExt.h (package cuda-nvtx): install it, or give -DLOCKSTEP_NVTX_INCLUDE=DIR" PARENT_SCOPE)
        return()
    endif()
    set(${result} "" PARENT_SCOPE)
endfunction()

# The same for all of CUDA.
function(lockstep_find_cuda result)
    find_program(LOCKSTEP_NVCC nvcc HINTS ENV CUDACXX HINTS ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(LOCKSTEP_NVCC)
    if(NOT LOCKSTEP_NVCC)
        set(${result} "no nvcc on PATH, in $CUDA_HOME or in /usr/local/cuda" PARENT_SCOPE)
        return()
    endif()
    file(REAL_PATH ${LOCKSTEP_NVCC} nvcc)
    get_filename_component(bin ${nvcc} DIRECTORY)
    get_filename_component(toolkit ${bin} DIRECTORY)
    if(NOT DEFINED CUDAToolkit_ROOT)
        set(CUDAToolkit_ROOT ${toolkit})
    endif()
    find_package(CUDAToolkit 12.0 QUIET)
    if(NOT TARGET CUDA::cublas)
        lockstep_find_cublas()
    endif()
    if(NOT TARGET CUDA::cudart OR NOT TARGET CUDA::cublas)
        set(${result} "${LOCKSTEP_NVCC} is there, but no CUDA runtime (12.0 or later) or no cuBLAS beside it" PARENT_SCOPE)
        return()
    endif()
    lockstep_find_nccl(missing)
    set(${result} "${missing}" PARENT_SCOPE)
endfunction()

if(LOCKSTEP_CUDA STREQUAL "OFF")
    set(missing "LOCKSTEP_CUDA is OFF")
elseif(LOCKSTEP_SANITIZE)
    set(missing "the host's sanitizers do not see GPU memory, and the CUDA libraries do not suit them")
else()
    lockstep_find_cuda(missing)
endif()
if(NOT missing)
    if(NOT CMAKE_CUDA_ARCHITECTURES)
        lockstep_present_architectures(architectures)
        list(APPEND architectures 80 90)
        list(REMOVE_DUPLICATES architectures)
        list(SORT architectures COMPARE NATURAL)
        set(CMAKE_CUDA_ARCHITECTURES ${architectures} CACHE STRING "compute capabilities to compile for")
    endif()
    set(CMAKE_CUDA_RUNTIME_LIBRARY Shared) # the same one for .cu files and for C
    set(ENV{CUDACXX} ${LOCKSTEP_NVCC})
    include(CheckLanguage)
    check_language(CUDA) # compiles something, in a project of its own, and sets CMAKE_CUDA_COMPILER if that works
    if(NOT CMAKE_CUDA_COMPILER)
        set(missing "${LOCKSTEP_NVCC} does not compile here: is the host compiler too new? (CMAKE_CUDA_HOST_COMPILER)")
    endif()
endif()

if(missing)
    if(LOCKSTEP_CUDA STREQUAL "ON")
        message(FATAL_ERROR "LOCKSTEP_CUDA=ON, but: ${missing}")
    endif()
    message(STATUS "CUDA: off (${missing}): train_cuda is not built")
    return()
endif()

enable_language(CUDA)
find_package(CUDAToolkit 12.0 REQUIRED)
add_library(LOCKSTEP::nccl INTERFACE IMPORTED GLOBAL)
target_include_directories(LOCKSTEP::nccl INTERFACE ${LOCKSTEP_NCCL_INCLUDE})
target_link_libraries(LOCKSTEP::nccl INTERFACE ${LOCKSTEP_NCCL_LIBRARY})
add_library(LOCKSTEP::nvtx INTERFACE IMPORTED GLOBAL)
target_include_directories(LOCKSTEP::nvtx SYSTEM INTERFACE ${LOCKSTEP_NVTX_INCLUDE})
target_link_libraries(LOCKSTEP::nvtx INTERFACE ${CMAKE_DL_LIBS})

# The loader's search path. NCCL first, because CUDA's directory may have another NCCL than the chosen one. Not the
# system's directories: the loader searches them anyway, and they may have another CUDA. CMake assumes that the loader
# also searches CUDA's directory, which is not always so.
get_filename_component(nccl_directory ${LOCKSTEP_NCCL_LIBRARY} DIRECTORY)
if(NOT nccl_directory IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
    target_link_options(LOCKSTEP::nccl INTERFACE LINKER:-rpath,${nccl_directory})
endif()
target_link_options(LOCKSTEP::nccl INTERFACE LINKER:-rpath,${CUDAToolkit_LIBRARY_DIR})
set(LOCKSTEP_WITH_CUDA ON)
message(STATUS "CUDA: on (${CMAKE_CUDA_COMPILER_ID} ${CMAKE_CUDA_COMPILER_VERSION}, "
               "architectures ${CMAKE_CUDA_ARCHITECTURES}, NCCL ${LOCKSTEP_NCCL_LIBRARY}): train_cuda is built, too")
