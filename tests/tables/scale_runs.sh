#!/bin/sh
# bench/scale without a GPU: test_scale.py. Usage: scale_runs.sh SOURCE_DIR
set -eu
if ! command -v python3 > /dev/null || ! command -v bash > /dev/null; then
    echo "no python3 or no bash"
    exit 77
fi
exec python3 "$1/tests/tables/test_scale.py" "$1"
