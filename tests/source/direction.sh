#!/bin/sh
# Who includes whom (docs/design.md): base <- {plan, peer, trace, route, quant} <- pass <- {cpu, cuda} <- api <- {cli, tests, bench}, and
# base <- ref <- {cli, tests, bench}. Usage: direction.sh SOURCE_DIR
set -eu
cd "$1"
find src cli bench tests -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) | sort | xargs awk '
BEGIN {
    inner = "plan peer trace route quant"
    may["base"] = "base"
    n = split(inner, name, " ")
    for (i = 1; i <= n; i++) {
        may[name[i]] = "base " name[i]
    }
    may["pass"] = "base " inner " pass"
    may["cpu"] = may["pass"] " cpu"
    may["cuda"] = may["pass"] " cuda"
    may["api"] = may["pass"] " cpu cuda api"
    may["ref"] = "base ref"
    for (folder in may) {
        known[folder] = 1
    }
}
FNR == 1 {
    files++
    split(FILENAME, part, "/")
    from = part[1] == "src" ? part[2] : ""
    if (from != "" && !(from in known)) {
        printf "%s: src/%s is not in the list of folders\n", FILENAME, from
        failed++
    }
}
from != "" && /^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    includes++
    if (split(quoted[2], path, "/") < 2) {
        next # a file beside this one
    }
    to = path[1]
    if (!(to in known)) {
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
