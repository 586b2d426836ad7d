#!/bin/sh
# What pages name is there: links and the headings that they lead to; in code (`..` and blocks) files, options of mok and of the scripts, MOK_
# variables, and names of tests. Usage: pages.sh SOURCE_DIR [PAGE...], by default all pages of the tree.
set -eu
cd "$1"
shift
[ $# -gt 0 ] || set -- README.md docs/*.md bench/ladder/LADDER.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Of other programs: ncu, pkg-config. Files that somebody makes by what the page says, among them those of runs that nobody has made yet.
foreign=' --clock-control --section --define-variable '
made=' timeline.svg scale_h200x8.json sweep_backward_h200x2.json '
find README.md LICENSE Makefile CMakeLists.txt include src cli bench tests examples scripts cmake docs data -type f > "$work/files"
sed 's|.*|/&|' "$work/files" > "$work/rooted"
# Where options, variables and tests are defined or used; not the pages themselves.
grep -v -e '\.md$' -e '\.svg$' -e '\.json$' -e '\.safetensors$' -e '^tests/source/pages' "$work/files" | xargs cat > "$work/text"
tr -cs 'A-Za-z0-9_' '\n' < "$work/text" | sort -u > "$work/words"
grep -ohE -e '--[a-z][a-z-]*[a-z]' "$work/text" | sort -u > "$work/options"
grep -ohE '\{"[a-z-]+", "MOK_[A-Z_]+"' src/base/options.c | cut -d'"' -f2 | sed 's/^/--/' >> "$work/options"

failed=0 num=0
complain() {
    echo "$page: $1 $2 is not there"
    failed=1
}

# Headings as links name them.
headings() { sed -n 's/^##* //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9_ -]//g; s/ /-/g'; }

for page in "$@"; do
    grep -oE '\]\([^)]+\)' "$page" | sed 's/^](//; s/)$//' | grep -v '^http' | sort -u > "$work/links" || true
    while read -r link; do
        num=$((num + 1)) file=${link%%#*} heading=${link#*#}
        target=$page
        [ -z "$file" ] || target=$(dirname "$page")/$file
        if [ ! -e "$target" ]; then
            complain link "$link"
        elif [ "$heading" != "$link" ]; then
            headings "$target" | grep -qxF -e "$heading" || complain heading "$link"
        fi
    done < "$work/links"

    # A span of code may go over the end of a line.
    awk '/^```/ { inside = !inside; next } inside { print; next } { text = text " " $0 }
         END { n = split(text, part, "`"); for (i = 2; i <= n; i += 2) print part[i] }' "$page" | sed 's|build/[^ ]*||g' > "$work/code"
    grep -oE '[A-Za-z0-9_./-]*[A-Za-z0-9_]\.(c|h|cu|cuh|sh|py|md|json|svg|cmake|safetensors)\b|\b(src|docs|tests|bench|cli|include|data|examples|scripts|cmake)/[A-Za-z0-9_./-]+' \
        "$work/code" | sed 's|^\.*/||; s|/$||' | sort -u > "$work/named"
    while read -r name; do
        num=$((num + 1))
        case "$made" in *" ${name##*/} "*) continue ;; esac
        [ -e "$name" ] || grep -qE -e "/$(echo "$name" | sed 's/[.]/[.]/g')\$" "$work/rooted" || complain file "$name"
    done < "$work/named"
    grep -oE -e '(^|[^a-z0-9-])--[a-z][a-z-]*[a-z]' "$work/code" | sed 's/^[^-]*//' | sort -u > "$work/named" || true
    while read -r name; do
        num=$((num + 1))
        case "$foreign" in *" $name "*) continue ;; esac
        grep -qxF -e "$name" "$work/options" || complain option "$name"
    done < "$work/named"
    grep -oE '\b(MOK_[A-Z_0-9]+|(test|gpu|source|cli)_[a-z_0-9]+)\b' "$work/code" | sort -u > "$work/named" || true
    while read -r name; do
        num=$((num + 1))
        grep -qxF -e "$name" "$work/words" || complain name "$name"
    done < "$work/named"
done
echo "$num names looked up"
[ $num -gt 0 ] && exit $failed
