#!/bin/sh
# The library exports exactly the functions that mok.h declares, the version script lists the same, and a missing GPU driver does not keep
# it from loading. Usage: exports.sh SOURCE_DIR LIBRARY
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A declaration may run over several lines: join them up to the semicolon, then take the name before the first parenthesis.
tr '\n' ' ' < "$1/include/mok/mok.h" | sed 's/;/;\n/g' | grep -e 'MOK_EXPORT [^#]*(' | grep -v -e '#define' |
    sed 's/.*MOK_EXPORT//; s/(.*//; s/.*[ *]//' | sort > "$work/declared"
tr ';' '\n' < "$1/src/api/mok.map" | grep -o -e 'mok_[a-z0-9_]*' | sort > "$work/listed"
nm -D --defined-only "$2" | awk '$2 ~ /^[TBDRVW]$/ { sub(/@.*/, "", $3); print $3 }' | sort > "$work/exported"
failed=0
if ! diff "$work/declared" "$work/listed" > "$work/diff"; then
    echo "mok.h (<) and mok.map (>) differ:"; cat "$work/diff"; failed=1
fi
if ! diff "$work/declared" "$work/exported" > "$work/diff"; then
    echo "mok.h (<) and the library (>) differ:"; cat "$work/diff"; failed=1
fi
readelf -d "$2" | grep -e NEEDED > "$work/needed"
if grep -q -e 'libcuda\.so' "$work/needed"; then
    echo "the library needs the GPU driver to load:"; cat "$work/needed"; failed=1
fi
echo "$(wc -l < "$work/declared") functions declared, $(wc -l < "$work/exported") exported, $(wc -l < "$work/needed") libraries needed"
[ -s "$work/declared" ] || failed=1
exit $failed
