#!/bin/bash
# Runs the GPU tests and the benchmarks of one GPU, on a machine without a network.
#
#   bash run.sh                 all pieces (from the folder that `make bundle-gpu` writes)
#   bash run.sh tests train-tree   these alone
#   KIT=DIR bash bench/gpu.sh   in a clone: DIR holds the wheels and the tokenizer
#
# Every piece writes one result file into $OUT (else ./results), and is skipped where that file is there: after an
# interruption the same command goes on. Messages are in $OUT/log.txt.
# PYTHON: the interpreter with torch and transformers. WORK: a folder for packages and models, about 30 GB.

set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
KIT=$(realpath "${KIT:-.}") OUT=$(realpath -m "${OUT:-results}") WORK=${WORK:-/tmp/genenv-gpu}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT" "$WORK"
if [ ! -e "$WORK/site/.done" ]; then
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade \
        --target "$WORK/site" "$KIT"/wheels/*.whl && touch "$WORK/site/.done" || exit 2
fi
export PYTHONPATH="$WORK/site:$PWD/src" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
MODELS=$WORK/models
failed=()

# piece NAME SECONDS SHAPE COMMAND...: the command's standard output is the result; {model} is the model's folder.
piece() {
    local name=$1 seconds=$2 shape=$3 begin=$SECONDS code=0
    shift 3
    [ ${#wanted[@]} = 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
    if [ -e "$OUT/$name.json" ]; then
        echo "$name: there already"
        return 0
    fi
    echo "=== $name: $*" >>"$OUT/log.txt"
    {
        { [ "$shape" = none ] || "$PYTHON" bench/random_models.py "$shape" --tokenizer "$KIT/tokenizer" --out "$MODELS" >&2; } &&
            timeout --kill-after=10 "$seconds" "${@//\{model\}/$MODELS/$shape}" >"$OUT/$name.part"
    } 2>>"$OUT/log.txt" || code=$?
    if [ $code = 0 ]; then
        mv "$OUT/$name.part" "$OUT/$name.json"
        echo "$name: $((SECONDS - begin)) s"
        cat "$OUT/$name.json"
    else
        echo "$name: FAILED after $((SECONDS - begin)) s (status $code; 124 is its limit of $seconds s)"
        cat "$OUT/$name.part" 2>/dev/null
        rm -f "$OUT/$name.part"
        tail -n 8 "$OUT/log.txt"
        failed+=("$name")
    fi
}

# The tests marked gpu; files without one are not even imported, as they may need packages that are not here.
gpu_tests() {
    local files log=$OUT/tests.log code
    mapfile -t files < <(grep -rl --include='test_*.py' 'mark\.gpu' tests)
    [ ${#files[@]} -gt 0 ] || { echo '{"tests": "none is marked gpu"}'; return 0; }
    # Another version of torch may warn of other things than the one that is pinned.
    "$PYTHON" -m pytest -q -m gpu -W default -p no:cacheprovider "${files[@]}" >"$log"
    code=$?
    cat "$log" >&2
    echo "{\"tests\": \"$(tail -n 1 "$log")\"}"
    rm "$log"
    return $code
}
if [ "${1:-}" = --gpu-tests ]; then
    gpu_tests
    exit
fi

wanted=("$@")
bench() {
    local name=$1 seconds=$2 shape=$3
    shift 3
    piece "$name" "$seconds" "$shape" "$PYTHON" "$@" --model '{model}' --dtype bfloat16
}

piece tests 240 none bash bench/gpu.sh --gpu-tests
bench sample-64 180 qwen3-0.6b bench/generate.py --prompts 64 --length 96 --new 64 --repeats 3
bench sample-groups 180 qwen3-0.6b bench/generate.py --prompts 32 --group 8 --length 512 --new 256 --repeats 2
bench train-tree 180 qwen3-0.6b bench/update.py --groups 8 --rollouts 8 --prompt 512 --completion 512 --kl 0 \
    --microbatch 0 --repeats 3 --without exact
# TRL refuses groups of one: two long attempts at one prompt are timed beside it, one at each of two by us alone.
bench train-long 180 qwen3-0.6b bench/update.py --groups 1 --rollouts 2 --prompt 4096 --completion 4096 --kl 0 \
    --microbatch 0 --peer-batch 2 --repeats 3 --without exact
bench train-long-apart 180 qwen3-0.6b bench/update.py --groups 2 --rollouts 1 --prompt 4096 --completion 4096 --kl 0 \
    --microbatch 0 --repeats 3 --without trl exact
bench train-exact 180 qwen3-0.6b bench/update.py --groups 2 --rollouts 4 --prompt 256 --completion 256 --repeats 1
bench round 240 qwen3-0.6b bench/round.py --prompts 8 --group 8 --length 512 --new 512 --microbatch 0 --repeats 1
bench sample-static 300 qwen3-0.6b bench/generate.py --static --without transformers --repeats 3
bench train-4b 240 qwen3-4b bench/update.py --groups 2 --rollouts 1 --prompt 4096 --completion 4096 --kl 0 \
    --microbatch 0 --repeats 2 --without trl exact
bench sample-7b 240 qwen2.5-7b bench/generate.py --prompts 64 --length 512 --new 256 --repeats 2 --without transformers
bench train-7b 240 qwen2.5-7b bench/update.py --groups 4 --rollouts 8 --prompt 512 --completion 256 --kl 0 \
    --microbatch 0 --repeats 2 --without trl exact
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}; $OUT/log.txt says why"
    exit 1
fi
