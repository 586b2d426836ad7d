#!/bin/sh
# Makes sure that Debian packages are there: installs what is missing when root, else prints the line to run and fails.
# Usage: packages.sh PACKAGE...
set -eu
if ! command -v dpkg-query > /dev/null; then
    # Not Debian: CMake will say what it does not find.
    for tool in cc cmake ninja pkg-config; do
        command -v $tool > /dev/null || { echo "$tool not found: install the equivalents of: $*" >&2; exit 1; }
    done
    exit 0
fi
missing=
for package in "$@"; do
    status=$(dpkg-query -W -f='${Status}' "$package" 2> /dev/null || true)
    [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "These packages are missing. Run:" >&2
    echo "  sudo apt-get update && sudo apt-get install -y$missing" >&2
    exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
# The package lists may be missing or old: only then fetch them, and try once more.
# shellcheck disable=SC2086
apt-get install -y --no-install-recommends $missing > /dev/null 2>&1 ||
    { apt-get update > /dev/null && apt-get install -y --no-install-recommends $missing > /dev/null; }
