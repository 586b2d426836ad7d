#!/bin/sh
# Every header that is not a kernel's compiles on its own: as C17, the public ones as C++17 too, and, where nvcc is, as device code for
# sm_90a. Usage: headers.sh SOURCE_DIR CC NVCC (empty: none)
set -u
cd "$1" || exit 1
cc=$2 nvcc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 compiled=0
try() { # header, command...
    header=$1
    shift
    compiled=$((compiled + 1))
    "$@" > "$work/log" 2>&1 || { echo "$header does not compile on its own: $*"; head -20 "$work/log"; failed=1; }
}
for header in include/mok/*.h src/base/*.h src/plan/*.h src/pass/*.h src/peer/peer.h src/trace/*.h src/api/*.h; do
    echo "#include \"$PWD/$header\"" > "$work/alone.c"
    cp "$work/alone.c" "$work/alone.cu"
    cp "$work/alone.c" "$work/alone.cpp"
    flags="-Wall -Wextra -Werror -Wno-unused-function -Isrc -Iinclude -fsyntax-only"
    try "$header" "$cc" -std=gnu17 $flags "$work/alone.c"
    case $header in
    include/*) try "$header" "$cc" -x c++ -std=c++17 -pedantic $flags "$work/alone.cpp" ;;
    src/api/*) continue ;;
    esac
    [ -z "$nvcc" ] || try "$header" "$nvcc" -arch=sm_90a -std=c++17 -Isrc -Iinclude -cubin -o "$work/alone.cubin" "$work/alone.cu"
done
echo "$compiled compilations${nvcc:+, nvcc among them}"
[ "$compiled" -gt 0 ] && exit $failed
