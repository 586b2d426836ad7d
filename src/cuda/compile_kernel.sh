#!/bin/sh
# Runs nvcc and looks at what the assembler says of each kernel. A spill, a stack frame, an ignored register budget or serialised wgmma is an error.
# Usage: compile_kernel.sh LOG NVCC ARGUMENTS...   (with -Xptxas -v among them)
# MOK_MAY_SPILL=1 in the environment: a build for a sanitizer alone, where spills and stack frames are no errors.
set -u
log=$1
shift
if ! "$@" > "$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
grep -e 'warning' "$log" >&2
kernels=$(grep -c -e 'Compiling entry function' "$log")
if [ "$kernels" -eq 0 ]; then
    echo "compile_kernel.sh: no kernel in $log: is -Xptxas -v missing?" >&2
    exit 1
fi
# C7508: setmaxnreg ignored. C7510 and its kin: wgmma serialised.
spills="[1-9][0-9]* bytes spill\|[1-9][0-9]* bytes stack frame"
[ "${MOK_MAY_SPILL:-0}" = 1 ] && spills='(none)'
if grep -e "$spills" -e 'setmaxnreg.*ignored' -e 'C7508' -e 'C75[01][0-9].*wgmma' "$log" >&2; then
    echo "compile_kernel.sh: the lines above are not allowed; see $log" >&2
    exit 1
fi
exit 0
