#!/bin/sh
# bench/scale without a GPU: test_scale.py. Usage: scale_runs.sh SOURCE_DIR
set -eu
command -v python3 > /dev/null && command -v bash > /dev/null || { echo "no python3 or no bash"; exit 77; }
exec python3 "$1/tests/tables/test_scale.py" "$1"
