#!/bin/sh
# transform.sh FILE.cu: prints it as C++. Launches are CUDA's own syntax; they become calls:
#     kernel<Half><<<grid, block, 0, stream>>>(x, n);
#     emulated_launch("kernel<Half>", kernel<Half>, grid, block, 0, stream)(x, n);
# All other text is unchanged, line by line, so that the compiler's messages and a debugger show the .cu file.
printf '#line 1 "%s"\n' "$1"
exec sed 's/\([A-Za-z_][A-Za-z0-9_]*\(<[^<>]*>\)\{0,1\}\)<<<\(.*\)>>>(/emulated_launch("\1", \1, \3)(/' "$1"
