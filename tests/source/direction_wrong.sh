#!/bin/sh
# direction.sh on small trees: includes that follow the order of the rooms pass, each one against it fails. Usage: direction_wrong.sh SOURCE_DIR
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 tried=0
# expect CODE FILE INCLUDE: direction.sh on a tree of this one file.
expect() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/cli" "$work/tree/bench" "$work/tree/tests" "$work/tree/$(dirname "$2")"
    echo "#include \"$3\"" > "$work/tree/$2"
    code=0
    sh "$source/tests/source/direction.sh" "$work/tree" > "$work/log" || code=1
    tried=$((tried + 1))
    if [ "$code" -ne "$1" ]; then
        echo "$2 that includes $3: exit code $code, expected $1"
        cat "$work/log"
        failed=1
    fi
}
source=$1
while read -r code file include; do
    expect "$code" "$file" "$include"
done << 'END'
0 src/plan/a.h base/b.h
0 src/cuda/a.c cuda/hw/b.cuh
0 src/cuda/gemm/a.cu cuda/b.h
0 src/cuda/staged/a.c cuda/gemm/b.h
0 src/cuda/fused/forward/a.cuh cuda/fused/b.cuh
0 src/cuda/fused/backward/a.cuh cuda/fused/backward/b.cuh
0 src/cuda/ops/a.c cuda/staged/b.h
0 src/cuda/ops/a.c cuda/fused/b.h
1 src/base/a.h plan/b.h
1 src/plan/a.h trace/b.h
1 src/cpu/a.c cuda/b.h
1 src/ref/a.c plan/b.h
1 src/cuda/hw/a.cuh cuda/b.h
1 src/cuda/a.c cuda/gemm/b.h
1 src/cuda/a.c cuda/fused/b.h
1 src/cuda/a.c cuda/ops/b.h
1 src/cuda/gemm/a.cuh cuda/fused/b.cuh
1 src/cuda/schedule/a.c cuda/staged/b.h
1 src/cuda/staged/a.c cuda/fused/b.h
1 src/cuda/staged/a.c cuda/ops/b.h
1 src/cuda/fused/a.h cuda/staged/b.h
1 src/cuda/fused/a.cuh cuda/fused/forward/b.cuh
1 src/cuda/fused/forward/a.cuh cuda/fused/backward/b.cuh
1 src/cuda/fused/backward/a.cuh cuda/fused/forward/b.cuh
1 src/cuda/ops/a.c cuda/fused/forward/b.h
1 src/cuda/room_that_is_not_known/a.c base/b.h
1 src/folder_that_is_not_known/a.c base/b.h
1 src/cuda/ops/a.c api/b.h
END
echo "$tried trees"
[ "$tried" -gt 0 ] && exit $failed
