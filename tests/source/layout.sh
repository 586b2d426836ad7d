#!/bin/sh
# No source file is longer than 600 lines, and no two files of the repository have one name. Usage: layout.sh SOURCE_DIR
set -eu
cd "$1"
sources=$(find src include cli bench tests python examples scripts cmake -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' \
    -o -name '*.cuh' -o -name '*.cpp' -o -name '*.py' -o -name '*.sh' -o -name '*.cmake' \) 2>/dev/null | sort)
[ -n "$sources" ]
failed=0
for file in $sources; do
    lines=$(wc -l < "$file")
    if [ "$lines" -gt 600 ]; then
        echo "$file: $lines lines, at most 600: split it by idea"
        failed=1
    fi
done
# Names that tools fix, and data sets that all have the same members, are left out.
twice=$(echo "$sources" | sed 's|.*/||' | grep -v -e '^CMakeLists.txt$' -e '^README.md$' -e '^__init__.py$' | sort | uniq -d)
for name in $twice; do
    echo "the name $name is used by:" $(echo "$sources" | grep -e "/$name\$")
    failed=1
done
echo "$(echo "$sources" | wc -l) files looked at"
exit $failed
