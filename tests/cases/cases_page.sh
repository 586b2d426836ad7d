#!/bin/sh
# docs/cases.md against the tree: each name in the last column of a table is a row of the case table, a test function, a test file or a CTest
# name; and each line that a row of the case table covers has a line on the page. Usage: cases_page.sh SOURCE_DIR BUILD_DIR CTEST
set -u
source=$1 build=$2 ctest=$3
page=$source/docs/cases.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

"$ctest" --test-dir "$build" -N | sed -n 's/^ *Test *#[0-9]*: *//p' > "$work/known"
grep -ohE '\.name = "[^"]*"' "$source/src/ref/cases.c" | cut -d'"' -f2 >> "$work/known"
find "$source/tests" -name '*.c' -exec grep -ohE '^static void [a-z_0-9]+\(void \*\*state\)' {} + | sed 's/^static void //; s/(.*//' >> "$work/known"
find "$source/tests" -name '*.c' -exec basename {} .c \; >> "$work/known"

sed -n 's/^| *[[P].*| *\([^|]*\) *|$/\1/p' "$page" | grep -oE '`[^`]+`' | tr -d '`' | sort -u > "$work/named"
lines=$(wc -l < "$work/named")
if [ "$lines" -lt 100 ]; then
    echo "only $lines names were found on the page"
    failed=1
fi
while read -r name; do
    grep -qxF -e "$name" "$work/known" || { echo "docs/cases.md names '$name': no case or test is called so"; failed=1; }
done < "$work/named"

grep -ohE '\.covers = "[^"]*"' "$source/src/ref/cases.c" | cut -d'"' -f2 | tr ' ' '\n' | grep -E '^[A-LP][0-9]+$' | sort -u > "$work/covered"
while read -r line; do
    grep -qF -e "[$line](" -e "| $line |" "$page" || { echo "the case table covers $line: docs/cases.md has no such line"; failed=1; }
done < "$work/covered"
echo "$lines names, $(wc -l < "$work/covered") lines of the case table"
exit $failed
