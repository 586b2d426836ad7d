#!/bin/sh
# What mok says and with which code it ends when something is wrong: each row is a code, the exact sentence, and a command line.
# Usage: cli_errors.sh MOK BAD_FILES GOLDEN_DIR
set -eu
mok=$1
golden=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$2" "$golden" "$work"
cd "$work"
unset MOK_BACKEND MOK_PEER MOK_MINIBATCH MOK_SAVED
rows=0
failed=0

# expect CODE SENTENCE ARGUMENT...: the first line of standard error must be SENTENCE; standard output is empty unless the job was done.
expect() {
    code=$1
    sentence=$2
    shift 2
    rows=$((rows + 1))
    got=0
    timeout 60 "$mok" "$@" > out 2> err || got=$?
    said=$(head -n 1 err | sed "s|$golden|GOLDEN|g")
    if [ "$got" -ne "$code" ] || [ "$said" != "$sentence" ] || { [ -s out ] && ! grep -q -e '^result: ok$' out; }; then
        printf 'mok %s\n  ended with %s, expected %s\n  said     %s\n  expected %s\n' "$*" "$got" "$code" "$said" "$sentence"
        failed=$((failed + 1))
    fi
}

qwen="--config $golden/qwen3_moe/config.json --input $golden/qwen3_moe/io.safetensors --backend cpu"
layer=model.layers.0.mlp
good="--weights $golden/qwen3_moe/layer.safetensors --backend cpu"

# Usage: 2.
expect 2 "mok: 'frobnicate' is no command" frobnicate
expect 2 "mok --version: argument 'x' is not expected" --version x
expect 2 "mok --help: argument 'run' is not expected" --help run
expect 2 "mok help: argument 'run' is not expected" help run
expect 2 "mok run: option --ranks is '0': must be a whole number from 1 to 64" run --ranks 2 --ranks 0
expect 2 "mok run: --weights is required" run
expect 2 "mok run: --input is required" run --weights f
expect 2 "mok run: option '--frobnicate' is not known" run --frobnicate
expect 2 "mok run: option '-x' is not known" run -x
expect 2 "mok run: argument 'f' is not expected" run f
expect 2 "mok run: option '--ranks' needs a value" run --ranks
expect 2 "mok run: option --ranks is '0': must be a whole number from 1 to 64" run --ranks 0
expect 2 "mok run: option --ranks is '2x': must be a whole number from 1 to 64" run --ranks=2x
expect 2 "mok run: option --ranks is ' 2': must be a whole number from 1 to 64" run --ranks ' 2'
expect 2 "mok run: option --no-oracle takes no value" run --no-oracle=1
expect 2 "mok run: option --minibatch is '100': must be a whole number from 0 to 2147483520, a multiple of 128, or auto (0)" run --minibatch 100
expect 2 "mok run: option --backend is 'tpu': must be one of auto|cpu|cuda" run --backend tpu
expect 2 "mok bench: --top-k is 4: must be at most --experts, 3" bench --experts 3 --backend cpu
expect 2 "mok bench: --skew is 'even': must be one of balanced|zipf|hot|real" bench --skew even --backend cpu
expect 2 "mok bench: --skew real has routes for 64 experts, top 8: the shape has 32, top 4" bench --skew real --backend cpu
expect 2 "mok bench: argument 'gem' is not expected" bench gem
expect 2 "mok bench: --pass needs --sweep" bench --pass sideways --backend cpu
expect 2 "mok bench: --summary needs --sweep" bench --summary --backend cpu
expect 2 "mok bench: --timeline needs --sweep" bench --timeline t.svg --backend cpu
expect 2 "mok bench: --confirm needs --sweep" bench --confirm 0 --backend cpu
expect 2 "mok bench: --ctas needs --timeline" bench --ctas 4 --backend cpu
expect 2 "mok bench: --sweep needs the cuda backend" bench --sweep path=fused --backend cpu
expect 2 "mok bench: --zero-copy needs the cuda backend" bench --zero-copy --backend cpu
expect 2 "mok bench: --no-stages needs the cuda backend" bench --no-stages --backend cpu
expect 2 "mok bench: --routes needs --skew real" bench --routes f --backend cpu
expect 2 "mok bench: --routes needs --skew real" bench --routes f --skew zipf --backend cpu
if ! "$mok" bench gemm --hidden 60 2>&1 | grep -q 'this build has no CUDA'; then
    expect 2 "mok bench: --hidden is 60: must be a multiple of 8 from 8 to 1048576" bench gemm --hidden 60
fi
expect 2 "mok bench: --skew does not go with 'gemm'" bench gemm --skew zipf
expect 2 "mok bench: --sweep does not go with 'gemm'" bench gemm --sweep path=fused
expect 2 "mok bench: --shared does not go with 'gemm'" bench gemm --shared 64
expect 2 "mok bench: --ring does not go with 'gemm'" bench gemm --hidden 64 --ring 3
expect 2 "mok bench: --backend does not go with 'gemm'" bench --backend cpu gemm
expect 2 "mok bench: --commit needs --json" bench --commit abc --backend cuda
expect 2 "mok bench: --commit needs --json" bench gemm --commit abc
expect 2 "mok bench: --commit needs the cuda backend" bench --commit abc --json f --backend cpu
expect 2 "mok bench: --zero-copy does not go with --pass backward, which takes no x" \
    bench --sweep path=fused --pass backward --zero-copy --backend cuda
expect 2 "mok bench: --timeline is 't.txt': must be a name that ends in .json or .svg" bench --sweep path=fused --timeline t.txt --backend cuda
expect 2 "mok bench: --look-ahead does not go with --path staged" bench --path staged --look-ahead 2 --backend cuda
# The path auto is the fused one, which looks ahead: what is refused is something else, with or without a GPU.
rows=$((rows + 1))
"$mok" bench --look-ahead 2 --shape none --backend cuda > out 2> err || :
if ! grep -q -e '^mok bench: ' err || grep -q -e 'look-ahead' err; then
    echo "mok bench --look-ahead 2 with the path auto:"
    cat err
    failed=$((failed + 1))
fi
expect 2 "mok bench: --reserve-sms needs the cuda backend" bench --reserve-sms 2 --backend cpu
if ! "$mok" bench gemm --hidden 60 2>&1 | grep -q 'this build has no CUDA'; then
    for point in backend=cpu peer=mpi device=1; do
        expect 2 "mok bench: --sweep: ${point%=*} is the same at all points" bench --sweep "path=fused;ring=2,$point" --backend cuda
    done
    expect 2 "mok bench: --sweep: 'fused' is not NAME=VALUE" bench --sweep fused --backend cuda
fi
expect 2 "mok run: --reserve-sms needs the cuda backend" run --weights f --input f --reserve-sms 2 --backend cpu
expect 2 "mok trace: --reserve-sms needs the cuda backend" trace --out f.svg --reserve-sms 2 --backend cpu
expect 2 "mok trace: --ctas needs the cuda backend" trace --out f.svg --ctas 1 --backend cpu
expect 2 "mok trace: --summary needs the cuda backend" trace --out f.svg --summary --backend cpu
expect 2 "mok trace: --look-ahead does not go with --path staged" trace --out f.svg --look-ahead 1 --path staged --backend cuda
expect 2 "mok info: --ring has no effect without a shape: it is about a group of one" info --ring 3
expect 2 "mok info: --backend has no effect without a shape: it is about a group of one" info --json - --backend cpu
expect 2 "mok info: --device needs the cuda backend" \
    info --experts 4 --top-k 2 --hidden 64 --intermediate 32 --tokens 8 --device 0 --backend cpu
for option in path=fused saved=2 keep-rows=0 minibatch=128 ring=2 look-ahead=1 comm-workers=1 compute-workers=1 reserve-sms=2; do
    expect 2 "mok verify: option --${option%=*} has no effect here: each case has its own" verify --backend cpu "--$option"
done
expect 2 "mok verify: --json does not go with --list" verify --list --json -
expect 2 "mok verify: --peer-timeout does not go with --list" verify --list --peer-timeout 100
expect 2 "mok verify: --quick does not go with names of cases" verify --quick idle-rank
expect 2 "mok verify: --ranks does not go with names of cases" verify --ranks 2 idle-rank
expect 77 "mok verify: no case has 7 ranks: --list prints them" verify --list --ranks 7
expect 77 "mok verify: no quick case has 7 ranks: --list prints them" verify --list --quick --ranks 7
expect 2 "mok trace: --out is required, a name that ends in .json or .svg" trace
for name in timeline.txt x.png - .svg json; do
    expect 2 "mok trace: --out is '$name': must be a name that ends in .json or .svg" trace --out "$name"
done
# A value that goes with others, but not here, is named with what has set it.
for from in option variable; do
    peer=--peer saved=--saved
    [ $from = option ] || { peer=MOK_PEER saved=MOK_SAVED; }
    # given VARIABLE OPTION VALUE EXPECT...: the option or its variable, and then as expect.
    given() {
        variable=$1 option=$2 value=$3
        shift 3
        if [ $from = option ]; then
            expect "$@" "$option" "$value"
        else
            export "$variable=$value"
            expect "$@"
            unset "$variable"
        fi
    }
    why="must be threads, for the dense products need all cores of this process"
    for value in mpi nccl external; do
        given MOK_PEER --peer $value 2 "mok bench: $peer is $value: $why" bench
    done
    given MOK_PEER --peer nccl 2 "mok verify: $peer is nccl: must be threads, external or mpi" verify idle-rank
    given MOK_PEER --peer mpi 2 "mok verify: $peer is mpi: must be threads or external with backend cuda" verify --backend cuda
    why="for programs that bring their own memory: must be threads, mpi or nccl here"
    given MOK_PEER --peer external 2 "mok run: $peer is external, $why" run --weights f --input f
    given MOK_PEER --peer external 2 "mok trace: $peer is external, $why" trace --out f.svg
    for command in "run --weights f --input f" "bench --backend cpu" "trace --backend cpu --out f.svg"; do
        # shellcheck disable=SC2086
        given MOK_SAVED --saved 0 2 "mok ${command%% *}: $saved is 0: must be at least 1, for the backward pass of this command" $command
    done
    if ! "$mok" info --json - | grep -q -e '"cuda":[[:space:]]*true'; then
        why="is nccl, which needs one for every rank (MOK_ERR_NO_DEVICE)"
        given MOK_PEER --peer nccl 77 "mok run: no usable GPU: $peer $why" run --weights f --input f
        given MOK_PEER --peer nccl 77 "mok trace: no usable GPU: $peer $why" trace --out f.svg
    fi
done
expect 2 "mok verify: 'no-such-case' is no case: --list prints them" verify no-such-case
expect 2 "mok info: a shape needs --experts, --top-k, --hidden, --intermediate and --tokens" info --hidden 64
MOK_MINIBATCH=many
export MOK_MINIBATCH
expect 2 "mok info: MOK_MINIBATCH is 'many': must be a whole number from 0 to 2147483520, a multiple of 128, or auto (0)" info
unset MOK_MINIBATCH
log=${MOK_LOG-}
for value in abc 3; do
    MOK_LOG=$value
    export MOK_LOG
    expect 2 "mok info: MOK_LOG is '$value': must be 0 (nothing), 1 (failures) or 2 (choices as well)" info
done
MOK_LOG=
MOK_RINGS=3
export MOK_RINGS
expect 2 "mok: warning: MOK_RINGS is set in the environment and nobody reads it; the nearest known name is MOK_RING" info --hidden 64
unset MOK_RINGS
# Variables without an effect on the command, whatever else it is asked for, or because of other options. Nothing of those that have one.
set_in="is set in the environment and"
# Variables of the test's own environment (sanitized programs have longer limits there) would be warned of, too.
others=$(env | sed -n 's/^\(MOK_[A-Z_]*\)=.*/-u \1/p' | grep -v -e 'MOK_LOG$' || true)
# warns VARIABLE=VALUE SENTENCE ARGUMENT...: the first line of standard error; "" = none of a variable.
warns() {
    setting=$1
    sentence=$2
    shift 2
    rows=$((rows + 1))
    # shellcheck disable=SC2086 # the words of $others
    env $others "$setting" "$mok" "$@" > out 2> err || true
    said=$(grep -m 1 -e "^mok: warning: .* $set_in" err || true)
    if [ "$said" != "$sentence" ]; then
        printf '%s mok %s\n  said     %s\n  expected %s\n' "$setting" "$*" "$said" "$sentence"
        failed=$((failed + 1))
    fi
}
no_device="rank r works on GPU r modulo their number; CUDA_VISIBLE_DEVICES says which there are"
for line in run "trace --peer external" "bench --peer mpi" "verify --list"; do
    warns MOK_DEVICE=1 "mok: warning: MOK_DEVICE $set_in has no effect on mok ${line%% *}: $no_device" $line
done
for name in SAVED KEEP_ROWS MINIBATCH RING LOOK_AHEAD COMM_WORKERS COMPUTE_WORKERS RESERVE_SMS; do
    value=$([ $name = MINIBATCH ] && echo 128 || echo 1)
    warns MOK_$name=$value "mok: warning: MOK_$name $set_in has no effect on mok verify: each case has its own" verify --list
done
for name in PEER_TIMEOUT LOCAL_TIMEOUT; do
    warns MOK_$name=1 "mok: warning: MOK_$name $set_in has no effect on mok info: neither memory nor choice of a rank depends on it" info --hidden 64
done
warns MOK_RING=2 "mok: warning: MOK_RING $set_in has no effect without a shape: it is about a group of one" info
warns MOK_PEER_TIMEOUT=9000 "mok: warning: MOK_PEER_TIMEOUT $set_in does not go with --list" verify --list
long="has no effect on mok verify above 60000: --peer-timeout gives a peer more"
warns MOK_PEER_TIMEOUT=100000 "mok: warning: MOK_PEER_TIMEOUT $set_in $long" verify no-such-case
warns MOK_PEER_TIMEOUT=60000 "" verify no-such-case
warns MOK_PEER_TIMEOUT=100000 "" verify no-such-case --peer-timeout 90000
warns MOK_RESERVE_SMS=1 "mok: warning: MOK_RESERVE_SMS $set_in needs the cuda backend" trace --backend cpu --peer external
warns MOK_LOOK_AHEAD=1 "mok: warning: MOK_LOOK_AHEAD $set_in does not go with --path staged" run --path staged
warns MOK_RING=2 "" run
warns MOK_RING= "" verify --list
warns MOK_RING=2 "" info --hidden 64
MOK_LOG=0
warns MOK_RING=2 "" verify --list
MOK_LOG=$log
if ! "$mok" bench gemm --hidden 60 2>&1 | grep -q 'this build has no CUDA'; then
    MOK_CUBLAS=/no/such/file
    export MOK_CUBLAS
    expect 2 "mok bench: MOK_CUBLAS is '/no/such/file': no library can be loaded from there" bench gemm --hidden 64
    mkfifo library
    MOK_CUBLAS=./library
    expect 2 "mok bench: MOK_CUBLAS is './library': no library can be loaded from there" bench gemm --hidden 64
    unset MOK_CUBLAS
fi

expect 2 "mok run: option --weights is empty: must be FILE, see --help" run --weights ''
expect 2 "mok run: option --json is empty: must be FILE, see --help" run --json=
for command in "bench" "trace --out f.svg"; do
    # Far more tokens than there is memory: the sizes are refused before any data is made.
    # shellcheck disable=SC2086
    expect 2 "mok ${command%% *}: --shared is 3: must be a multiple of 8 from 0 to 1048576" \
        $command --backend cpu --shared 3 --tokens 100000000
done
# Sizes are named as they are given here.
size="info --experts 4 --top-k 2 --hidden 64 --intermediate 32 --tokens 8"
must="must be a multiple of 8 from 8 to 1048576"
# shellcheck disable=SC2086
{
    expect 2 "mok info: --hidden is 7: $must" $size --hidden 7
    expect 2 "mok info: --intermediate is 33: $must" $size --intermediate 33
    expect 2 "mok info: --shared is 3: must be a multiple of 8 from 0 to 1048576" $size --shared 3
}
for given in "--top-k 9" "--tokens 2147483647" "--tokens 2147483647 --ranks 64 --top-k 64 --experts 64" "--experts 1048576" "--ranks 1024" "--experts 20000 --backend cuda" \
    "--reserve-sms 200 --backend cuda" "--saved 65536 --tokens 100000000 --hidden 1048576 --backend cpu"; do
    rows=$((rows + 1))
    # shellcheck disable=SC2086
    "$mok" $size $given > out 2> err || :
    ! grep -e 'config\.' -e 'shape\.' -e 'top_k' err || { echo "mok $size $given speaks of a field of the library"; failed=$((failed + 1)); }
done

# Started by mpirun without --peer: every process would do the whole job. Process 0 says so, and names only peers that the command takes.
for launcher in OMPI_COMM_WORLD PMI; do
    peer="--peer is not given: mpi (CPU) or nccl (GPUs) makes each a rank"
    eval "export ${launcher}_SIZE=4 ${launcher}_RANK=0"
    expect 2 "mok run: mpirun has started 4 processes, but $peer" run --weights f --input f
    expect 2 "mok verify: mpirun has started 4 processes, but --peer is not given: mpi (CPU) makes each a rank" verify --backend cpu
    for command in "bench --backend cpu" "bench gemm"; do
        # shellcheck disable=SC2086
        expect 2 "mok bench: mpirun has started 4 processes, but all ranks are threads of one (--peer threads): start it without mpirun" $command
    done
    expect 2 "mok bench: --top-k is 4: must be at most --experts, 3" bench --experts 3 --backend cpu --peer threads
    expect 2 "mok trace: mpirun has started 4 processes, but $peer" trace --out f.svg
    eval "export ${launcher}_RANK=3"
    expect 2 "" run --weights f --input f
    MOK_PEER=threads
    export MOK_PEER
    expect 2 "mok run: --input is required" run --weights f
    MOK_PEER=
    expect 2 "" run --weights f
    unset MOK_PEER
    expect 2 "mok run: --input is required" run --weights f --peer=threads
    unset "${launcher}_SIZE" "${launcher}_RANK"
done

# Containers: 3.
for name in no_such text empty truncated overlap negative huge twice; do
    case $name in
    no_such) sentence="cannot be opened: No such file or directory" ;;
    text) sentence="header length 2338328219631577172 is more than 100000000 (is this a safetensors file?)" ;;
    empty) sentence="the file has 0 bytes; 8 bytes of header length must come first" ;;
    truncated)
        sentence="tensor \"$layer.experts.11.down_proj.weight\": data_offsets end 61440 is past the 60008 bytes of data in the file"
        ;;
    overlap) sentence="tensor \"b\": its data begin at 2, but the tensor before it ends at 4" ;;
    negative) sentence="header byte 28: number -4 must be written with digits alone" ;;
    huge) sentence="tensor \"a\": the shape's size does not fit 64 bits" ;;
    twice) sentence="tensor \"a\" is there twice" ;;
    esac
    # shellcheck disable=SC2086
    expect 3 "mok run: $name.safetensors: $sentence (MOK_ERR_IO)" run --weights $name.safetensors $qwen
done

# What is read must be a regular file, whatever else has the name: 3, at once.
mkfifo fifo
mkdir folder
for kind in fifo folder /dev/null /dev/zero; do
    refusal="$kind: is no regular file (MOK_ERR_IO)"
    # shellcheck disable=SC2086
    {
        expect 3 "mok run: $refusal" run --weights $kind $qwen
        expect 3 "mok run: $refusal" run $good --input $kind
        expect 3 "mok run: $refusal" run $good --input "$golden/qwen3_moe/io.safetensors" --config $kind
        expect 3 "mok bench: $refusal" bench --skew real --shape tiny-real --routes $kind --backend cpu
    }
done

# Routes of a trained model: 3. What was not given is named as such.
routes=data/qwen3moe-code/routing.safetensors
why="No such file or directory"
expect 3 "mok bench: $routes, the default of --routes, cannot be opened in the current folder: $why: --routes must name the file (MOK_ERR_IO)" \
    bench --skew real --shape tiny-real --backend cpu
expect 3 "mok bench: $routes: cannot be opened: $why (MOK_ERR_IO)" bench --skew real --shape tiny-real --routes $routes --backend cpu

# Layers: 3.
# shellcheck disable=SC2086
{
    expect 3 "mok run: missing.safetensors: tensor \"$layer.experts.7.up_proj.weight\" is missing (MOK_ERR_IO)" \
        run --weights missing.safetensors $qwen
    file="mok run: shape.safetensors:"
    expect 3 "$file tensor \"$layer.experts.3.down_proj.weight\" has shape [48, 64]: the config says [64, 48] (MOK_ERR_IO)" \
        run --weights shape.safetensors $qwen
    expect 3 "mok run: dtype.safetensors: tensor \"$layer.experts.0.gate_proj.weight\" has dtype F16: must be BF16 (MOK_ERR_IO)" \
        run --weights dtype.safetensors $qwen
    file="mok run: bias.safetensors:"
    expect 3 "$file tensor \"$layer.experts.down_proj_bias\" is not zero at element 5: biases of experts are not supported (MOK_ERR_IO)" \
        run --weights bias.safetensors --config "$golden/gpt_oss/config.json" --input "$golden/gpt_oss/io.safetensors" --backend cpu
    expect 3 "mok run: GOLDEN/qwen3_moe/layer.safetensors: holds no layer \"model.layers.9.mlp\": --layer must be one of $layer (MOK_ERR_IO)" \
        run $good --layer model.layers.9.mlp --input "$golden/qwen3_moe/io.safetensors"
    expect 3 "mok run: GOLDEN/qwen3_moe/io.safetensors: holds no MoE layer: no tensor's name ends in .gate.weight or .router.weight (MOK_ERR_IO)" \
        run --weights "$golden/qwen3_moe/io.safetensors" --layer nope $qwen
    expect 3 "mok run: layers.safetensors: holds 6 MoE layers: --layer must be one of a, b, c, d and 2 more (MOK_ERR_IO)" \
        run --weights layers.safetensors $qwen
    expect 3 "mok run: layers.safetensors: holds no layer \"g\": --layer must be one of a, b, c, d and 2 more (MOK_ERR_IO)" \
        run --weights layers.safetensors --layer g $qwen
    expect 3 "mok run: config.json: cannot be opened: No such file or directory (MOK_ERR_IO)" \
        run --weights missing.safetensors --input "$golden/qwen3_moe/io.safetensors"

    # Inputs: 3.
    expect 3 'mok run: io_ids_type.safetensors: tensor "topk_ids" has dtype U64: must be I32 or I64 (MOK_ERR_IO)' \
        run $good --input io_ids_type.safetensors
    expect 3 'mok run: io_ids_width.safetensors: tensor "topk_ids" has shape [40, 8]: must be [40, 4] (MOK_ERR_IO)' \
        run $good --input io_ids_width.safetensors
    expect 3 'mok run: io_batch.safetensors: tensor "hidden_states" has shape [1, 40, 64]: must be [tokens, 64] (MOK_ERR_IO)' \
        run $good --input io_batch.safetensors
    expect 3 'mok run: io_other_model.safetensors: tensor "topk_ids" has shape [41, 2]: must be [41, 4] (MOK_ERR_IO)' \
        run $good --input io_other_model.safetensors
    expect 3 'mok run: io_without_input.safetensors: tensor "hidden_states" is missing (MOK_ERR_IO)' \
        run $good --input io_without_input.safetensors
    expect 3 'mok run: /no/such/folder/report.json: cannot be written: No such file or directory (MOK_ERR_IO)' \
        run $good --input "$golden/qwen3_moe/io.safetensors" --json /no/such/folder/report.json
    expect 3 'mok run: /no/such/folder/y.safetensors: cannot be written: No such file or directory (MOK_ERR_IO)' \
        run $good --input "$golden/qwen3_moe/io.safetensors" --output /no/such/folder/y.safetensors
}

# A limit of file size is an error like a full disk: no signal, and nothing stays behind.
rows=$((rows + 1))
got=0
# shellcheck disable=SC2086
(ulimit -f 10; exec "$mok" run $good --input "$golden/qwen3_moe/io.safetensors" --no-oracle --output big > out 2> err) || got=$?
if [ "$got" -ne 3 ] || ! grep -q -x -e 'mok run: big: cannot be written: File too large (MOK_ERR_IO)' err || [ -e big ] || [ -e big.partial ]; then
    echo "mok run --output under ulimit -f 10: ended with $got, expected 3 and a sentence:"
    cat err
    ls -l big*
    failed=$((failed + 1))
fi

MOK_RESERVE_SMS=4000
export MOK_RESERVE_SMS
rows=$((rows + 1))
# shellcheck disable=SC2086
"$mok" $size --backend cuda > out 2> err || :
grep -q -e '^mok info: MOK_RESERVE_SMS is 4000: ' -e 'no CUDA backend' err || { echo "MOK_RESERVE_SMS=4000:"; cat err; failed=$((failed + 1)); }
unset MOK_RESERVE_SMS

# Without a GPU a command says so with one status.
if ! "$mok" info --json - | grep -q -e '"cuda":[[:space:]]*true'; then
    for command in "run $good --backend cuda --input $golden/qwen3_moe/io.safetensors" "bench --backend cuda" "bench gemm --hidden 64" "bench gemm" \
        "trace --out f.svg --backend cuda" "verify --backend cuda idle-rank"; do
        rows=$((rows + 1))
        got=0
        # shellcheck disable=SC2086
        timeout 60 "$mok" $command > out 2> err || got=$?
        if [ $got -ne 77 ] || ! head -n 1 err | grep -q -e '^mok [a-z]*: .* (MOK_ERR_NO_DEVICE)$' -e '^mok [a-z]*: this build has no CUDA backend (MOK_ERR_NOT_BUILT)$'; then
            echo "mok $command: ended with $got, expected 77, and said"
            cat err
            failed=$((failed + 1))
        fi
    done
fi

# Results that differ: 1, and the place is named.
differ() {
    rows=$((rows + 1))
    got=0
    # shellcheck disable=SC2086
    "$mok" run $good --input "$1" --ranks 3 > out 2> err || got=$?
    if [ "$got" -ne 1 ] || ! grep -q -e "$2" out || ! grep -q -e '^result: MISMATCH$' out; then
        printf 'mok run with %s\n  ended with %s, expected 1 and "%s":\n' "$1" "$got" "$2"
        cat out err
        failed=$((failed + 1))
    fi
}
differ io_output.safetensors '^y rows, stored output  *40  *1 .*token 17 '
differ io_nan.safetensors '^y rows, stored output  *40  *1 .*inf .*token 20 '
differ io_ids.safetensors '^router ids, stored  *160  *1 .*token 9 k 2: expert [0-9]*, stored 4294967299$'
differ io_gradient.safetensors '^dx rows, stored  *40  *1 .*token 3 '

# NaN in a row of x makes NaN in that row of all results: equal, where the other side has it, too, and only there.
for name in io_nan_row io_nan_row_stored; do
    for ranks in 1 3; do
        rows=$((rows + 1))
        got=0
        # shellcheck disable=SC2086
        "$mok" run $good --input $name.safetensors --ranks $ranks > out 2> err || got=$?
        if [ "$got" -ne 0 ] || ! grep -q -e '^y rows, .*  40  *0  *0 ' out || ! grep -q -e '^result: ok$' out; then
            echo "mok run with $name.safetensors, $ranks ranks: ended with $got, expected 0 and 40 rows of y that are right:"
            cat out err
            failed=$((failed + 1))
        fi
    done
done
differ io_nan_row_alone.safetensors '^y rows, stored output  *40  *1 .*inf .*token 7 '

# Not available here: 77.
if ! "$mok" info --json - | grep -q -e '"cuda":[[:space:]]*true'; then
    rows=$((rows + 1))
    got=0
    # shellcheck disable=SC2086
    "$mok" run $good --backend cuda --input "$golden/qwen3_moe/io.safetensors" > out 2> err || got=$?
    [ "$got" -eq 77 ] || { echo "--backend cuda without a GPU ended with $got, expected 77"; cat err; failed=$((failed + 1)); }
fi

# One is said as one.
for command in "run $good --input $golden/qwen3_moe/io.safetensors" "trace --backend cpu --tokens 16 --out one.svg" \
    "bench --backend cpu --tokens 16 --hidden 64 --intermediate 32 --ranks 1 --repeat 1 --warm-up 0" \
    "trace --backend cpu --tokens 16 --comm-workers $(($(getconf _NPROCESSORS_ONLN) * 4 + 1)) --out one.svg"; do
    rows=$((rows + 1))
    # shellcheck disable=SC2086
    "$mok" $command > out 2> err || true
    if ! cat out err | grep -q -w -e '1 rank' || cat out err | grep -w -e '1 ranks' -e '1 CPUs'; then
        echo "mok $command: does not say '1 rank', or says '1 ranks'"
        failed=$((failed + 1))
    fi
done

echo "$rows command lines, $failed wrong"
[ "$failed" -eq 0 ]
