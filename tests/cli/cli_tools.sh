#!/bin/sh
# verify, info, bench and trace: that they run and do what they say, and that their JSON agrees with their text. Usage: cli_tools.sh MOK SOURCE_DIR
set -eu
mok=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
check() { # check NAME CONDITION...
    name=$1
    shift
    "$@" || { echo "wrong: $name"; failed=1; }
}
cd "$work"
shape="--experts 6 --top-k 2 --hidden 64 --intermediate 40 --shared 24 --tokens 150 --ranks 2"

"$mok" verify --list > list
check "list is long" [ "$(wc -l < list)" -ge 50 ]
first=$(sed -n '1s/ .*//p' list)
"$mok" verify --backend cpu "$first" idle-rank --json verify.json > verify
check "two cases pass" [ "$(grep -c -e '^PASS ' verify)" = 2 ]
check "summary" grep -q -e '^2 passed, 0 failed, 0 skipped; backend cpu, peer threads$' verify
got=0
"$mok" verify --backend cpu --ranks 7 > none 2> none_err || got=$?
check "no case: code" [ "$got" -eq 77 ]
check "no case: reason" grep -q -e '^mok verify: no case has 7 ranks: --list prints them$' none_err
check "verify JSON" grep -q -e '"passed":[[:space:]]*2' verify.json

"$mok" info --experts 64 --top-k 8 --hidden 256 --intermediate 128 --tokens 4096 --ranks 4 --backend cpu > info
check "info names the build" grep -q -e '^libmok [0-9]' info
check "info choice" grep -q -e '^  backend cpu, path fused, [1-9][0-9]* workers that move and [1-9][0-9]* that multiply$' info
check "info total" grep -q -e '^  total  *[1-9][0-9]* bytes' info
# Keeping nothing for backward takes less.
"$mok" info --experts 64 --top-k 8 --hidden 256 --intermediate 128 --tokens 4096 --ranks 4 --keep-rows 0 --backend cpu > info0
kept() { awk '$1 == "kept" { print $4 }' "$1"; }
check "keep-rows reaches the library" [ "$(kept info0)" -lt "$(kept info)" ]

"$mok" info --experts 2048 --top-k 8 --hidden 256 --intermediate 128 --tokens 4096 --ranks 1024 > info1024
check "info counts as many ranks as the library takes" grep -q -e '^  total  *[1-9][0-9]* bytes' info1024

# shellcheck disable=SC2086
"$mok" bench --backend cpu $shape --repeat 3 --json bench.json > bench
check "bench forward" grep -q -e '^forward ' bench
check "bench operations" grep -q -e '"operations":[[:space:]]*11980800$' -e '"operations":[[:space:]]*11980800,' bench.json
check "bench backward operations" grep -q -e '"operations":[[:space:]]*23961600,' bench.json
check "bench repeats" [ "$(grep -c -e '"all":' bench.json)" = 6 ]
# shellcheck disable=SC2086
"$mok" bench --backend cpu $shape --repeat 1 --skew hot > hot
check "bench skew" grep -q -e '^shape .*, hot$' hot
"$mok" bench --backend cpu --shape tiny-real --tokens 64 --ranks 2 --repeat 1 > named
check "bench named shape" grep -q -e '^shape  *64 experts, top 8, hidden 256, intermediate 128, shared 0, 64 tokens' named
got=0
"$mok" bench gemm --shape tiny-real --repeat 1 --warm-up 0 > gemm 2> gemm_err || got=$?
if [ "$got" -eq 77 ]; then
    check "bench gemm says what is missing" grep -q -e '^mok bench: .*\(no GPU\|no CUDA\|libcublas\)' gemm_err
else
    check "bench gemm" [ "$got" -eq 0 ]
    check "bench gemm has a line a GEMM and kind of groups" [ "$(grep -c -e '^tiny-real ' gemm)" = 14 ]
fi

# shellcheck disable=SC2086
"$mok" trace --backend cpu $shape --out trace.json > trace
# shellcheck disable=SC2086
"$mok" trace --backend cpu $shape --out trace.svg > trace_svg
events=$(sed -n 's/^trace.json: \([0-9]*\) events of 2 ranks, 0 dropped$/\1/p' trace)
check "events are written" [ "$(grep -c -e '"ph":"X"' trace.json)" = "$events" ]
for stage in pull gate+up push "shared gate+up" wgrad; do
    check "trace has $stage" grep -q -e "\"name\":\"$stage\"" trace.json
    check "picture has $stage" grep -q -e "<title>$stage " trace.svg
done
check "the picture is whole" [ "$(tail -n 1 trace.svg)" = "</svg>" ]

# Far more workers than CPUs: a warning, not a refusal. Two ranks are one worker a CPU too many, or just not.
cpus=$(getconf _NPROCESSORS_ONLN)
# shellcheck disable=SC2086
"$mok" trace --backend cpu $shape --out trace.json --comm-workers $((cpus * 2 - 1)) --compute-workers 1 > out 2> quiet
check "no warning at four workers a CPU" [ ! -s quiet ]
# shellcheck disable=SC2086
"$mok" trace --backend cpu $shape --out trace.json --comm-workers $((cpus * 2)) --compute-workers 1 > out 2> warned
check "a warning above four workers a CPU" [ "$(cat warned)" = \
    "mok: warning: $((cpus * 4 + 2)) workers of 2 ranks on $cpus CPUs: expect slow passes and time-outs" ]
exit $failed
