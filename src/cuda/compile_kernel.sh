#!/bin/sh
# Runs nvcc and looks at what the assembler says of each kernel. A spill, a stack frame, an ignored register budget or serialised wgmma is an error.
# nvcc writes full paths of sources into kernels and has no option to map them. So it is run in the source folder and gets that folder as
# /proc/self/cwd: profilers that are started there find the sources. What it says to others, its log and DEPFILE, gets the folder's own name again.
# Usage: cd SOURCE_DIR && compile_kernel.sh LOG DEPFILE NVCC ARGUMENTS...   (with -Xptxas -v and -MF DEPFILE among them)
# MOK_MAY_SPILL=1 in the environment: a build for a sanitizer alone, where spills and stack frames are no errors.
set -u
log=$1
depfile=$2
shift 2
# name_folder FILE FOLDER: puts FOLDER in the place of /proc/self/cwd.
name_folder() {
    sed "s|/proc/self/cwd/|$(printf '%s' "$2" | sed 's/[&|\\]/\\&/g')/|g" "$1" > "$1.named" && mv "$1.named" "$1"
}
here=$(pwd)
code=0
"$@" > "$log" 2>&1 || code=$?
name_folder "$log" "$here"
if [ "$code" -ne 0 ]; then
    cat "$log" >&2
    exit 1
fi
name_folder "$depfile" "$(printf '%s' "$here" | sed 's/ /\\ /g')" || exit 1
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
