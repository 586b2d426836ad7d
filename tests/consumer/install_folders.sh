#!/bin/sh
# Library and include folders given as names below the prefix and as full paths: what mok.pc says of them, and where the tool looks for the library.
# Configures only. Usage: install_folders.sh SOURCE_DIR CC
set -eu
source=$1 cc=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# expect LIBDIR INCLUDEDIR PKG_LIBDIR PKG_INCLUDEDIR RPATH: PKG_.. as pkg-config prints them for a file at its place.
expect() {
    rm -rf "$work/build" "$work/at"
    cmake -S "$source" -B "$work/build" -DCMAKE_C_COMPILER="$cc" -DMOK_TESTS=OFF -DMOK_WITH_CUDA=OFF -DMOK_WITH_MPI=OFF \
        -DCMAKE_INSTALL_PREFIX="$work/at/prefix" -DCMAKE_INSTALL_LIBDIR="$1" -DCMAKE_INSTALL_INCLUDEDIR="$2" > "$work/log" 2>&1 ||
        { cat "$work/log"; exit 1; }
    case $1 in
    /*) place=$1/pkgconfig ;;
    *) place=$work/at/prefix/$1/pkgconfig ;;
    esac
    mkdir -p "$place"
    cp "$work/build/mok.pc" "$place"
    libdir=$(PKG_CONFIG_PATH=$place pkg-config --variable=libdir mok)
    includedir=$(PKG_CONFIG_PATH=$place pkg-config --variable=includedir mok)
    # What is left of the way up from the file: "lib/pkgconfig/../..".
    libdir=$(realpath -m "$libdir") includedir=$(realpath -m "$includedir")
    rpath=$(sed -n 's/^ *RPATH "\\\{0,1\}\(.*\)")$/\1/p' "$work/build/cli/cmake_install.cmake" | head -n 1)
    if [ "$libdir" != "$3" ] || [ "$includedir" != "$4" ] || [ "$rpath" != "$5" ]; then
        printf 'LIBDIR %s, INCLUDEDIR %s:\n  %s  %s  %s\nexpected\n  %s  %s  %s\n' "$1" "$2" "$libdir" "$includedir" "$rpath" "$3" "$4" "$5"
        failed=1
    fi
}
prefix=$work/at/prefix
expect lib include "$prefix/lib" "$prefix/include" "\$ORIGIN/../lib"
expect lib/x86_64-linux-gnu include/mok-0 "$prefix/lib/x86_64-linux-gnu" "$prefix/include/mok-0" "\$ORIGIN/../lib/x86_64-linux-gnu"
expect "$work/at/other/lib" include "$work/at/other/lib" "$prefix/include" "$work/at/other/lib"
expect "$work/at/other/lib" "$work/at/dev/include" "$work/at/other/lib" "$work/at/dev/include" "$work/at/other/lib"
expect lib "$work/at/dev/include" "$prefix/lib" "$work/at/dev/include" "\$ORIGIN/../lib"
# mok.pc was written for the configured prefix, where the library folder has a full path.
if cmake -S "$source" -B "$work/build" -DCMAKE_INSTALL_LIBDIR="$work/at/other/lib" > "$work/log" 2>&1 &&
    cmake --install "$work/build" --prefix "$work/at/third" > "$work/log" 2>&1; then
    echo "another prefix than the configured one was taken beside a full path"
    failed=1
fi
grep -q -e 'the prefix must be the configured' "$work/log" || { cat "$work/log"; failed=1; }
exit $failed
