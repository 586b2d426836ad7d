# For the scripts of this folder, which read it from the root of the repository, before they build or write anything. Plain sh.

# Prints the head of a script when it was asked for, and ends. Arguments: the script, then its own.
give_help() {
    case ${2:-} in
    -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$1"
        exit 0
        ;;
    esac
}

# The GPUs of this machine that CUDA_VISIBLE_DEVICES leaves: visible (0,1,..), gpus (how many), gpu (h200). Without one the script ends here: 77, as
# `mok bench` does.
find_gpus() {
    command -v nvidia-smi > /dev/null || no_gpu "nvidia-smi is not found"
    visible=$(nvidia-smi --query-gpu=index --format=csv,noheader 2> /dev/null) || no_gpu "nvidia-smi failed"
    [ -n "$visible" ] || no_gpu "nvidia-smi names none"
    visible=${CUDA_VISIBLE_DEVICES:-$(echo "$visible" | paste -sd, -)}
    gpus=$(echo "$visible" | tr , '\n' | wc -l)
    gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1 | tr '[:upper:]' '[:lower:]' | sed 's/^nvidia //; s/ .*//')
}

no_gpu() {
    echo "$(basename "$0"): no GPU: $1" >&2
    exit 77
}

# A mistake in what the script was given. Argument: the sentence.
refuse() {
    echo "$(basename "$0"): $1" >&2
    exit 2
}
