#!/bin/sh
# circles.sh on small trees: modules that use each other in one direction pass; a circle of includes, or of calls alone, fails.
# Usage: circles_wrong.sh SOURCE_DIR CC
set -eu
source=$1 cc=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# expect CODE NAME [LIBRARY]: circles.sh on $work/tree.
expect() {
    code=0
    sh "$source/tests/source/circles.sh" "$work/tree" ${3:+"$3"} > "$work/log" 2>&1 || code=1
    if [ "$code" -ne "$1" ]; then
        echo "$2: exit code $code, expected $1"
        cat "$work/log"
        failed=1
    fi
}
# library: of the sources of the tree.
library() {
    rm -f "$work/lib.a" "$work"/*.o
    (cd "$work" && $cc -Itree/src -c tree/src/base/*.c && ar rcs lib.a ./*.o)
}
mkdir -p "$work/tree/src/base"
cd "$work/tree/src/base"
echo 'int a(void);' > a.h
echo 'int b(void);' > b.h
printf '#include "base/a.h"\n#include "b.h"\nint a(void) { return b(); }\n' > a.c
printf '#include "base/b.h"\nint b(void) { return 1; }\n' > b.c
library
expect 0 "a uses b" "$work/lib.a"
printf '#include "base/b.h"\n#include "base/a.h"\nint b(void) { return 1; }\n' > b.c
expect 1 "two that include each other"
printf '#include "base/b.h"\nint a(void);\nint b(void) { return a(); }\n' > b.c
expect 0 "includes of two that call each other"
library
expect 1 "two that call each other" "$work/lib.a"
printf '#include "base/b.h"\nint b(void) { return 1; }\n' > b.c
printf '#include "c.h"\nint b(void);\n' > b.h
printf '#include "base/a.h"\n' > c.h
expect 1 "three that include each other"
exit $failed
