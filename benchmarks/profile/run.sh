#!/usr/bin/env bash
# Profile ResNet-50 in FP16, and check that profiling changes nothing:
#     run.sh MODEL.onnx WORK_FOLDER OUT_FOLDER
# A step that failed stops no other, one that is done is not done again; what it printed is in OUT_FOLDER/STEP.txt.
# BUILD_FLAGS replaces the flags of every build, BATCHES the batch sizes: elsewhere than on a GPU without cuBLAS.
set -u
model=$1 work=$2 out=$3
# cuBLAS and cuDNN may be missing on a test host; the other tactics do without them
build_flags=${BUILD_FLAGS---rewrite none --tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS}
batches=${BATCHES:-1,64}
mkdir -p "$work" "$out"
export XDG_CACHE_HOME=$work/cache # measured peaks are kept there, not in the user's own folder
. "$(dirname "$0")/../shared/step.sh"
r50=$work/r50
latency="--contract trtexec-11 --duration 3"

# Every build asks for detailed profiling verbosity; there is no option to be set
# shellcheck disable=SC2086  # flags are words
LIMIT=280 step build python -m trtopt build "$model" -o "$r50" --batch "$batches" $build_flags
step before python -m trtopt bench "$r50" $latency --json "$out/before.json"
LIMIT=400 step profile python -m trtopt profile "$r50" --probe-peaks --trace -o "$out/profile"
step memory python -m trtopt profile "$r50" --memory --trace -o "$out/memory"
step after python -m trtopt bench "$r50" $latency --json "$out/after.json"
# Expected: SAME. Two runs apart from one another, so between contexts of two processes
step same python -m trtopt compare "$out/before.json" "$out/after.json" --json "$out/same.json"

# Layers of replays against layers of plain runs
step layers-graph python -m trtopt bench "$r50" --graph --duration 0.5 --layers --json "$out/layers-graph.json"
step layers-plain python -m trtopt bench "$r50" --no-graph --duration 0.5 --layers --json "$out/layers-plain.json"
step plain python -m trtopt profile "$r50" --batch "${batches##*,}" --result "$out/layers-plain.json" -o "$out/plain"
step difference python -m trtopt explain "$out/profile" "$out/plain"

# The measured part alone between cudaProfilerStart and cudaProfilerStop; the figures must be those of `before`
step cuda-profiler python -m trtopt bench "$r50" $latency --cuda-profiler --json "$out/cuda-profiler.json"
step cuda-profiler-same python -m trtopt compare "$out/before.json" "$out/cuda-profiler.json"

LIMIT=500 step tests-gpu python -m pytest -q -p no:cacheprovider "$(dirname "$0")/../../tests/gpu/test_profiling.py"
grep -H "^exit status" "$out"/*.txt
