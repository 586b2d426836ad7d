#!/bin/sh
# No circle of modules in src: a source and its header are one, which uses another when it includes its header, or calls what it defines (as the
# objects of the libraries tell). Who includes whom folder by folder: direction.sh. Usage: circles.sh SOURCE_DIR [LIBRARY.a...]
set -eu
cd "$1"
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

# look KIND: $work/edges has no loop.
look() {
    edges=$(wc -l < "$work/edges")
    if [ "$edges" -eq 0 ] || ! tsort "$work/edges" > "$work/order" 2> "$work/loops"; then
        echo "circle of $1:"
        cat "$work/loops"
        failed=1
    fi
    echo "$edges $1"
}

find src -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) | sort | xargs awk '
FNR == 1 {
    from = FILENAME
    sub("^src/", "", from)
    sub("[.][a-z]*$", "", from)
    folder = from
    sub("[^/]*$", "", folder)
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    to = quoted[2]
    sub("[.][a-z]*$", "", to)
    to = index(to, "/") == 0 ? folder to : to
    if (to != from) {
        print from, to
    }
}' | sort -u > "$work/edges"
look includes

if [ "$#" -gt 0 ]; then
    for library in "$@"; do
        nm -A "$library"
    done 2> "$work/ignored" | awk '
    {
        split($1, part, ":")
        object = part[2]
        sub("[.].*$", "", object)
    }
    $(NF - 1) ~ /^[TDBRVW]$/ { home[$NF] = object }
    $(NF - 1) == "U" {
        caller[++num] = object
        name[num] = $NF
    }
    END {
        for (i = 1; i <= num; i++) {
            if (name[i] in home && home[name[i]] != caller[i]) {
                print caller[i], home[name[i]]
            }
        }
    }' | sort -u > "$work/edges"
    look calls
fi
exit $failed
