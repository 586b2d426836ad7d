#!/bin/sh
# What mok writes goes where it was sent, and nothing else is lost: inputs stay, links are followed, FIFOs and devices stay what they are,
# a place that cannot be written is named before the work. Usage: cli_outputs.sh MOK GOLDEN_DIR
set -eu
mok=$1
golden=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failed=0
check() { # check NAME CONDITION...
    name=$1
    shift
    "$@" || { echo "wrong: $name"; failed=1; }
}
cp "$golden"/qwen3_moe/*.safetensors "$golden/qwen3_moe/config.json" .
cp layer.safetensors weights_before
cp config.json config_before
ln -s layer.safetensors link_to_weights
ln layer.safetensors hard_link
# run CODE ARGUMENT...: mok run of the golden layer.
run() {
    wanted=$1
    shift
    got=0
    timeout 60 "$mok" run --weights layer.safetensors --input io.safetensors --backend cpu "$@" > out 2> err || got=$?
    [ "$got" -eq "$wanted" ] || { echo "wrong: run $* ended with $got, expected $wanted"; cat err; failed=1; }
}
said() { check "sentence '$1'" [ "$(head -n 1 err)" = "$1" ]; }

# A run that compares nothing has shown nothing: rows alone (two of zeros), no oracle.
hidden=$(sed -n 's/.*"hidden_size": *\([0-9]*\).*/\1/p' config.json)
header=$(printf '{"hidden_states":{"dtype":"BF16","shape":[2,%d],"data_offsets":[0,%d]}}' "$hidden" $((4 * hidden)))
{
    # shellcheck disable=SC2059 # the length of the header, little-endian, below 256
    printf "\\$(printf '%03o' ${#header})\\0\\0\\0\\0\\0\\0\\0"
    printf '%s' "$header"
    head -c $((4 * hidden)) /dev/zero
} > rows.safetensors
run 77 --input rows.safetensors --no-oracle --json unchecked.json
check "nothing checked, in text" grep -q -x 'result: nothing checked' out
check "nothing checked, in JSON" grep -q '"result":[[:space:]]*"nothing checked"' unchecked.json
run 0 --input rows.safetensors
check "rows alone against the oracle" grep -q -x 'result: ok' out

# Inputs are never overwritten, under no name.
for file in layer.safetensors ./layer.safetensors link_to_weights hard_link "$work/layer.safetensors"; do
    for option in output json; do
        run 2 --$option "$file"
        said "mok run: --$option would overwrite the file of --weights, layer.safetensors"
    done
done
run 2 --json io.safetensors
said "mok run: --json would overwrite the file of --input, io.safetensors"
run 2 --output config.json
said "mok run: --output would overwrite the file of --config, config.json"
check "nothing ran" [ ! -s out ]
check "the weights are there" cmp layer.safetensors weights_before
check "the config is there" cmp config.json config_before
cp layer.safetensors y.partial
got=0
"$mok" run --weights y.partial --config config.json --input io.safetensors --backend cpu --output y > out 2> err || got=$?
check "the partial file is an input" [ "$got" -eq 2 ]
check "the partial file is there" cmp y.partial weights_before
rm y.partial

# Two outputs are two files.
mkdir folder
for pair in "same same" "same ./folder/../same" "same same.partial"; do
    # shellcheck disable=SC2086
    set -- $pair
    run 2 --output "$1" --json "$2"
    said "mok run: --output and --json are one file, $2"
done

# Links are followed; a file that was there is replaced as a whole.
echo before > real.json
chmod 600 real.json
ln -s real.json link.json
run 0 --json link.json
check "the link is a link" [ -L link.json ]
check "its target is written" grep -q -e '"result":' real.json
check "the rights stay" [ "$(stat -c %a real.json)" = 600 ]
ln -s absent.json dangling.json
run 0 --json dangling.json
check "a link to nothing is a link" [ -L dangling.json ]
check "its target is made" grep -q -e '"result":' absent.json

# FIFOs and devices are written in place.
mkfifo fifo
timeout 60 cat fifo > from_fifo &
run 0 --json fifo
wait $!
check "the FIFO is a FIFO" [ -p fifo ]
check "the FIFO carries the report" grep -q -e '"result":' from_fifo
ln -s /dev/null null
run 0 --json null --output null
check "the device is a device" [ -c /dev/null ]
run 0 --json /dev/stdout
check "the table stands before the report" [ "$(grep -n -m 1 -e '^result: ok$' out | sed 's/:.*//')" -gt 1 ]
check "standard output carries the report" grep -q -e '"result":' out
run 3 --json /dev/full
said "mok run: /dev/full: cannot be written: No space left on device (MOK_ERR_IO)"
check "the full device is a device" [ -c /dev/full ]

# Text that did not arrive is a failure.
for command in --version --help "info" "run --help" "info --json -" "verify --list" \
    "run --weights layer.safetensors --input io.safetensors --backend cpu" "trace --backend cpu --tokens 16 --out trace.svg" \
    "verify --backend cpu idle-rank"; do
    got=0
    # shellcheck disable=SC2086
    timeout 60 "$mok" $command > /dev/full 2> err || got=$?
    check "mok $command on a full device" [ "$got" -eq 3 ]
    check "mok $command says so" grep -q -e 'cannot be written' err
done

# What cannot be written is named before the work.
for option in output json; do
    run 3 --$option folder
    said "mok run: folder: cannot be written: Is a directory (MOK_ERR_IO)"
    run 3 --$option absent_folder/file
    said "mok run: absent_folder/file: cannot be written: No such file or directory (MOK_ERR_IO)"
    check "nothing ran" [ ! -s out ]
done
mkdir taken.partial
run 3 --output taken
said "mok run: taken: cannot be written: File exists: taken.partial is made first, in the folder $(pwd -P) (MOK_ERR_IO)"
# The folder is that of the file, not of a link to it. Nobody can make files in /proc.
mkdir elsewhere elsewhere/real.partial
: > elsewhere/real
ln -s elsewhere/real link_elsewhere
run 3 --json link_elsewhere
said "mok run: link_elsewhere: cannot be written: File exists: real.partial is made first, in the folder $(pwd -P)/elsewhere (MOK_ERR_IO)"
rmdir elsewhere/real.partial
got=0
"$mok" info --json /proc/mok.json > out 2> err || got=$?
check "no file in /proc: code" [ "$got" -eq 3 ]
check "no file in /proc: folder" grep -q -e '^mok info: /proc/mok.json: cannot be written: .*: mok.json.partial is made first, in the folder /proc (MOK_ERR_IO)$' err
got=0
"$mok" info --json /mok_file_of_nobody.partial/x > out 2> err || got=$?
check "no folder: it has no partial file" grep -q -e '^mok info: /mok_file_of_nobody.partial/x: cannot be written: No such file or directory (MOK_ERR_IO)$' err
# A folder that takes no files; for the superuser every folder does.
if [ "$(id -u)" -ne 0 ]; then
    mkdir shut
    : > shut/file
    chmod 555 shut
    run 3 --json shut/file
    said "mok run: shut/file: cannot be written: Permission denied: file.partial is made first, in the folder $(pwd -P)/shut (MOK_ERR_IO)"
    check "nothing ran" [ ! -s out ]
    chmod 755 shut
fi
for command in "verify --quick --backend cpu --json" "bench --backend cpu --json" "trace --backend cpu --out"; do
    got=0
    # shellcheck disable=SC2086
    timeout 60 "$mok" $command absent_folder/file.json > out 2> err || got=$?
    check "$command: code" [ "$got" -eq 3 ]
    check "$command: nothing ran" [ ! -s out ]
    said "mok ${command%% *}: absent_folder/file.json: cannot be written: No such file or directory (MOK_ERR_IO)"
done
ln -s /dev/null picture.svg
"$mok" trace --backend cpu --tokens 16 --out picture.svg > out
check "trace writes in place" [ -L picture.svg ] && [ -c /dev/null ]
rmdir taken.partial
check "no partial file stays" [ -z "$(find . -name '*.partial')" ]
exit $failed
