#!/bin/sh
# Every exported function of the public header stands under a comment: one that begins a line above it, with no blank line and no type
# between. Usage: comments.sh SOURCE_DIR
set -eu
awk '
/^[ \t]*$/ || /^(typedef|struct|enum|#|})/ { commented = 0 }
/^\/\*/ { inside = 1 }
inside && /\*\// { inside = 0; commented = 1; next }
/^MOK_EXPORT/ {
    functions++
    if (!commented) {
        match($0, /mok_[a-z0-9_]+\(/)
        printf "%s:%d: %s has no comment above it\n", FILENAME, FNR, substr($0, RSTART, RLENGTH - 1)
        failed++
    }
}
END {
    printf "%d functions, %d without a comment\n", functions, failed
    exit failed > 0 || functions == 0
}' "$1/include/mok/mok.h"
