#!/bin/sh
# Installs the build into an empty prefix, moves it, builds the consumers against it by pkg-config and by find_package, and runs them. Nothing in the
# install knows where it was built or first stood.
# Usage: consumer.sh BUILD_DIR LIBDIR CC SANITIZERS
set -eu
build=$1 libdir=$2 cc=$3 sanitizers=$4
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/moved/prefix
flags="-Wall -Wextra -Werror -pedantic"
if [ -n "$sanitizers" ]; then
    flags="$flags -fsanitize=$sanitizers"
fi
case $cc in
*clang*) cxx=$(echo "$cc" | sed 's/clang/clang++/') ;;
*) cxx=g++ ;;
esac

cmake --install "$build" --prefix "$work/first" > "$work/install.log"
mkdir "$work/moved"
mv "$work/first" "$prefix"

# hold FILE WORD...: whether the words stand in the file, which may be a binary.
hold() {
    file=$1
    shift
    for word in "$@"; do
        ! grep -q -a -F -e "$word" "$file" || return 0
    done
    return 1
}
source=$(cd "$here/../.." && pwd)
find "$prefix" -type f > "$work/files"
[ "$(wc -l < "$work/files")" -ge 8 ] || { echo "hardly any file is installed"; cat "$work/files"; exit 1; }
failed=0
while read -r file; do
    # Checks of a sanitizer name their sources by full paths, whatever the compiler is told.
    if [ -z "$sanitizers" ] && hold "$file" "$source" "$build" "$work/first"; then
        echo "$file knows where it was built or first stood:"
        grep -a -o -e "\($source\|$build\|$work/first\)[A-Za-z0-9_/.-]*" "$file" | sort | uniq -c | sort -r -n | head -n 5
        failed=1
    fi
done < "$work/files"
[ "$failed" -eq 0 ] || exit 1
# Libraries stand by name: what find_package gives is looked for when it is called.
if grep -E -e '(^|[^A-Za-z0-9_}])/[^ ;"]*[.](so|a)([.0-9]*)([ ;"]|$)' "$prefix/$libdir"/cmake/mok/*.cmake; then
    echo "mok's CMake package names a library by its path"
    exit 1
fi

export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
outer=${LD_LIBRARY_PATH-}
export LD_LIBRARY_PATH="$prefix/$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mok_flags=$(pkg-config --cflags --libs mok)
$cc -std=c17 $flags "$here/consumer.c" $mok_flags -o "$work/by_pkgconfig_c"
$cxx -std=c++17 $flags "$here/consumer.cpp" $mok_flags -o "$work/by_pkgconfig_cpp"
static_flags="$(pkg-config --cflags mok) $(pkg-config --static --libs mok | sed 's/-lmok /-l:libmok.a /')"
$cc -std=c17 $flags "$here/consumer.c" $static_flags -o "$work/by_pkgconfig_static_c"
$cxx -std=c++17 $flags "$here/consumer.cpp" $static_flags -o "$work/by_pkgconfig_static_cpp"
$cc -std=c17 $flags "$here/../../examples/two_ranks.c" $mok_flags -lpthread -o "$work/two_ranks"
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }
if [ -e "$(cached MOK_NCCL_INCLUDE)/nccl.h" ]; then # it needs a GPU to run: tests/gpu/run.sh
    $cc -std=c17 $flags $mok_flags -isystem "$(cached MOK_CUDA_INCLUDE)" -isystem "$(cached MOK_NCCL_INCLUDE)" -c "$here/../../examples/gpu_training.c" \
        -o "$work/gpu_training.o"
fi

cmake -S "$here" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" > "$work/configure.log" 2>&1 || { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build" > "$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }

# Paths of the machine that built it stand in variables of the file alone.
if grep -e '^Libs.*[ L]/' -e '^Requires' "$PKG_CONFIG_PATH/mok.pc"; then
    echo "mok.pc: a library by its path, or a package that the shared library does not need"
    exit 1
fi

# The tool, where it is built, finds its library beside it.
[ ! -e "$prefix/bin/mok" ] || LD_LIBRARY_PATH=$outer "$prefix/bin/mok" --version

for program in "$work"/by_pkgconfig_c "$work"/by_pkgconfig_cpp "$work"/by_pkgconfig_static_c "$work"/by_pkgconfig_static_cpp \
    "$work"/build/consumer_c "$work"/build/consumer_cpp "$work"/build/consumer_static_c "$work"/build/consumer_static_cpp; do
    printf '%s: ' "$(basename "$program")"
    timeout 60 "$program"
done

# The README's example leaves its tensors to the end of the process, so leaks are not looked for.
ASAN_OPTIONS=detect_leaks=0 timeout 60 "$work/two_ranks" | tee "$work/two_ranks.out"
test "$(grep -c '^rank [01]: ' "$work/two_ranks.out")" -eq 2
