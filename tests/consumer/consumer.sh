#!/bin/sh
# Installs the build into an empty prefix, builds the consumers against it by pkg-config and by find_package, and runs them.
# Usage: consumer.sh BUILD_DIR LIBDIR CC SANITIZERS
set -eu
build=$1 libdir=$2 cc=$3 sanitizers=$4
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
flags="-Wall -Wextra -Werror -pedantic"
if [ -n "$sanitizers" ]; then
    flags="$flags -fsanitize=$sanitizers"
fi
case $cc in
*clang*) cxx=$(echo "$cc" | sed 's/clang/clang++/') ;;
*) cxx=g++ ;;
esac

cmake --install "$build" --prefix "$prefix" > "$work/install.log"

export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
export LD_LIBRARY_PATH="$prefix/$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mok_flags=$(pkg-config --cflags --libs mok)
$cc -std=c17 $flags "$here/consumer.c" $mok_flags -o "$work/by_pkgconfig_c"
$cxx -std=c++17 $flags "$here/consumer.cpp" $mok_flags -o "$work/by_pkgconfig_cpp"
$cc -std=c17 $flags "$here/consumer.c" $(pkg-config --cflags mok) $(pkg-config --static --libs mok | sed 's/-lmok /-l:libmok.a /') -o "$work/by_pkgconfig_static"
$cc -std=c17 $flags "$here/../../examples/two_ranks.c" $mok_flags -lpthread -o "$work/two_ranks"

cmake -S "$here" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" > "$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build" > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }

# Paths of the machine that built it stand in variables of the file alone.
if grep -e '^Libs.*[ L]/' -e '^Requires' "$PKG_CONFIG_PATH/mok.pc"; then
    echo "mok.pc: a library by its path, or a package that the shared library does not need"
    exit 1
fi

for program in "$work/by_pkgconfig_c" "$work/by_pkgconfig_cpp" "$work/by_pkgconfig_static" "$work/build/consumer_c" "$work/build/consumer_cpp" \
    "$work/build/consumer_static"; do
    printf '%s: ' "$(basename "$program")"
    timeout 60 "$program"
done

# The README's example leaves its tensors to the end of the process, so leaks are not looked for.
ASAN_OPTIONS=detect_leaks=0 timeout 60 "$work/two_ranks" | tee "$work/two_ranks.out"
test "$(grep -c '^rank [01]: ' "$work/two_ranks.out")" -eq 2
