#!/usr/bin/env bash
# test_includes.sh: which directory may include headers of which other. notes/architecture.md has the drawing. The files
# of common/ call each other in no circle. The core needs no MPI. And: each script that people start sets the locale.
#
# usage: test_includes.sh ROOT LIBRARY CORE     LIBRARY: lockstep_common; CORE: lockstep_core
set -u
library=$(realpath "$2")
core=$(realpath "$3")
cd "$1" || exit 2
failures=0

# may_not DIRECTORY PATTERN WHY: no file below DIRECTORY includes a header that matches.
may_not() {
    local found
    [ -d "$1" ] || return 0
    found=$(grep -r -n -E "^#include [<\"]($2)" --include='*.[ch]' --include='*.cu' "$1")
    [ -n "$found" ] || return 0
    failures=$((failures + 1))
    echo "FAIL: $3:"
    echo "$found"
}

# The directories of the rules must exist, or a rule would hold only because its directory was renamed.
# (backends/ is asked for: a copy of the project may lack them.)
for room in common/base common/device common/autograd common/nn common/optim common/data common/comm common/ddp \
    train/cli train/files train/report train/guard train/loop; do
    [ -d "$room" ] || { echo "FAIL: there is no $room/: is this test out of date?"; failures=1; }
done
may_not common 'train/|backends/|dnnl' "common/ knows neither the program around it nor what may replace its parts"
may_not common/base '(device|autograd|nn|optim|data|comm|ddp)/|ddp.h' "base/ lies at the bottom"
may_not common/device '(autograd|nn|optim|data|comm|ddp)/|ddp.h' "device/ knows kernels alone"
may_not common/comm '(autograd|nn|optim|data|ddp)/|ddp.h' "comm/ knows nothing of models: addresses, counts and names"
may_not common/autograd '(nn|optim|data|comm|ddp)/|ddp.h' "autograd/ knows nothing of DDP: it raises events"
may_not common/nn '(optim|data|comm|ddp)/|ddp.h' "a model knows nothing of its training"
may_not common/optim '(nn|data|comm|ddp)/|ddp.h' "an optimizer knows parameters alone"
may_not common/data '(device|autograd|nn|optim|comm|ddp)/|ddp.h' "data/ knows base/ alone"
may_not common/ddp '(nn|data|optim)/|ddp.h' "what stages share knows parameters, the tape and collectives"
may_not train/guard 'train/(cli|files|report|loop)' "guard/ watches a group, whatever is trained"
may_not train/files 'train/(cli|report|guard|loop)' "files/ knows formats alone"
may_not train/report 'train/(cli|guard|loop)' "report/ gets numbers, and knows nothing of training"
may_not train/cli 'train/(report|guard|loop)' "the command line does not know what follows it"
may_not backends/onednn '(autograd|nn|optim|data|comm|ddp|train|backends/gpu)/|ddp.h' "backends/onednn/ replaces a part of device/"
may_not backends/gpu 'train/(cli|files|report|guard|loop)' "backends/gpu/ is a device and a backend"
private=$(cd common && ls comm/*.h | grep -v -E '/(process_group|collective|observer|backend)\.h$' | paste -s -d '|')
open="process_group.h, collective.h, observer.h, backend.h"
for room in common/*/ train backends tools/bench stage[0-9]_*; do
    [ "$room" = common/comm/ ] || may_not "$room" "$private" "of comm/'s headers, others know $open alone"
done
for stage in stage[0-9]_*; do
    may_not "$stage" 'train/|backends/|nn/|data/|comm/[^p]' "a stage knows ddp.h, and what common/ offers stages"
    number=${stage:5:1}
    may_not "$stage" "stage[$((number + 1))-9]_" "a stage knows earlier stages, and no later one"
done
may_not common 'stage[0-9]_' "common/ is what no stage is about"

# no_circle WHAT: of the pairs "A B" on stdin, for "A needs B".
no_circle() {
    local found
    found=$(tsort 2>&1 >/dev/null) && return
    failures=$((failures + 1))
    echo "FAIL: a circle of $1:"
    echo "$found"
}
no_circle "headers of common/" < <(cd common && grep -r -o -E '^#include "[^"]+"' --include='*.h' . |
    sed -E 's|^\./(.*):#include "(.*)"|\1 \2|')
no_circle "files of common/, by the functions that they call" < <(nm -A -P -g "$library" |
    sed -E 's/^[^[]*\[(.*)\.o\]: /\1 /' | awk '
        $3 != "U" { home[$2] = $1 }
        $3 == "U" { needs[$1 " " $2] }
        END {
            for (need in needs) {
                split(need, words)
                if (words[2] in home) print words[1], home[words[2]]
            }
        }')

# The core's files, and the stages, include mpi.h neither themselves nor by way of another header. (Everything that
# another implementation of process_group.h is linked with. -MG: a header that is not found is listed, too.)
of_core=()
for file in common/*/*.c; do
    ar t "$core" | grep -q -x -F "${file##*/}.o" && of_core+=("$file")
done
[ ${#of_core[@]} -gt 30 ] || { echo "FAIL: the core has ${#of_core[@]} files: is this test out of date?"; failures=1; }
for file in "${of_core[@]}" stage[0-9]_*/*.c; do
    "${CC:-cc}" -M -MG -Icommon -I. "$file" | grep -q -E '(^|[ /])mpi\.h( |$)' || continue
    failures=$((failures + 1))
    echo "FAIL: $file includes mpi.h, perhaps by way of another header, but the core needs no MPI"
done

# A script that is started (one without #! is sourced) says export LC_ALL=C, itself or by way of build.sh: tools then write
# English messages and decimal points, and sort and match bytes. (ctest sets it for the tests that it runs.)
for script in course/*.sh course/gradescope/* scripts/*.sh tools/*.sh tools/bench/*.sh tests/mutants/*.sh tests/test_course*.sh \
    tests/test_results.sh tests/guard/attack.sh tests/guard/slurm.sh tests/train/weights_hashes.sh; do
    [[ $(head -n 1 "$script") = '#!'* ]] || continue
    grep -q -E '^(export LC_ALL=C( |$)|source .*/build\.sh")' "$script" && continue
    failures=$((failures + 1))
    echo "FAIL: $script lacks the line: export LC_ALL=C"
done
[ "$failures" -eq 0 ] && echo "all includes are allowed"
exit $((failures > 0))
