#!/bin/sh
# pages.sh on pages of one line: what is there passes, each thing that is not there is found, and said of its page. Usage: pages_wrong.sh SOURCE_DIR
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 tried=0
while read -r code line; do
    tried=$((tried + 1))
    printf '# Some heading\n\n%s\n' "$line" > "$work/$tried-$code.md"
done << 'END'
0 `src/base/status.h`, `status.h`, `MOK=build/cli/nothing bench/layer.sh`, `--keep-rows`, `MOK_RING`, `test_schedule`, [here](#some-heading)
1 [there](#no-heading)
1 [there](nowhere.md)
1 `src/base/nothing.h`
1 `nothing.cuh`
1 `src/nothing/`
1 `mok run --nothing-like-this 3`
1 `MOK_NOTHING=1`
1 `test_nothing_at_all`
END
code=0
sh "$1/tests/source/pages.sh" "$1" "$work"/*.md > "$work/log" || code=$?
[ "$code" -eq 1 ] || { echo "exit code $code, expected 1"; failed=1; }
for page in "$work"/*.md; do
    said=$(grep -c -F -e "$page: " "$work/log" || true)
    case $page in *-0.md) expected=0 ;; *) expected=1 ;; esac
    [ "$said" -eq "$expected" ] || { echo "$(tail -n 1 "$page"): $said complaints, expected $expected"; failed=1; }
done
echo "$tried pages"
exit $failed
