#!/bin/sh
# Who includes whom (docs/design.md): base <- {plan, peer, trace, route, quant} <- pass <- {cpu, cuda} <- api <- {cli, tests, bench}, and
# base <- ref <- {cli, tests, bench}. Inside src/cuda, room by room: hw <- src/cuda itself <- {gemm, schedule} <- {staged, fused} <- ops, and
# fused <- {fused/forward, fused/backward}. Usage: direction.sh SOURCE_DIR
set -eu
cd "$1"
find src cli bench tests -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) | sort | xargs awk '
# Files of `room` may include those of `others` and of its own. All of them must be known already, so that no list can make a circle.
function allow(room, others,    name, n, i) {
    n = split(others, name, " ")
    for (i = 1; i <= n; i++) {
        if (!(name[i] in may)) {
            printf "the list of rooms: %s may include %s, which does not stand before it\n", room, name[i]
            failed++
        }
    }
    may[room] = others " " room
}
# The room that a path of an include, or of a file below src, belongs to: its folder; outside of src/cuda its first folder.
function room_of(path) {
    sub("/[^/]*$", "", path)
    if (path !~ "^cuda/") {
        sub("/.*", "", path)
    }
    return path
}
BEGIN {
    inner = "base plan peer trace route quant"
    allow("base", "")
    n = split(inner, name, " ")
    for (i = 2; i <= n; i++) {
        allow(name[i], "base")
    }
    allow("pass", inner)
    allow("cpu", inner " pass")
    below = inner " pass cuda/hw"
    allow("cuda/hw", inner)
    allow("cuda", below)
    allow("cuda/gemm", below " cuda")
    allow("cuda/schedule", below " cuda")
    allow("cuda/staged", below " cuda cuda/gemm")
    allow("cuda/fused", below " cuda cuda/gemm")
    allow("cuda/fused/forward", below " cuda cuda/gemm cuda/fused")
    allow("cuda/fused/backward", below " cuda cuda/gemm cuda/fused")
    allow("cuda/ops", below " cuda cuda/gemm cuda/schedule cuda/staged cuda/fused")
    allow("api", inner " pass cpu cuda cuda/ops")
    allow("ref", "base")
}
FNR == 1 {
    files++
    from = ""
    if (FILENAME ~ "^src/") {
        from = room_of(substr(FILENAME, 5))
        if (!(from in may)) {
            printf "%s: src/%s is not in the list of folders\n", FILENAME, from
            failed++
        }
    }
}
from != "" && /^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    includes++
    if (index(quoted[2], "/") == 0) {
        next # a file beside this one
    }
    to = room_of(quoted[2])
    if (!(to in may)) {
        printf "%s:%d: includes \"%s\", and src/%s is not in the list of folders\n", FILENAME, FNR, quoted[2], to
        failed++
    } else if (index(" " may[from] " ", " " to " ") == 0) {
        printf "%s:%d: src/%s may not include \"%s\"; it may include: %s\n", FILENAME, FNR, from, quoted[2], may[from]
        failed++
    }
}
END {
    printf "%d files, %d includes, %d wrong\n", files, includes, failed
    exit failed > 0 || files == 0 || includes == 0
}'
