#!/usr/bin/env bash
# Faults on a GPU, and that nothing else is harmed by them:
#     gpu_faults.sh MINIGO.onnx WORK_FOLDER OUT_FOLDER
# A sticky CUDA error in two of six points of a sweep, then a sweep with a point that needs more device memory than there is.
set -u
model=$1 work=$2 out=$3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$work" "$out"
. "$here/../shared/step.sh"
digits=$here/../../models/digits/digits.onnx
# cuBLAS and cuDNN may be missing on a test host; the other tactics do without them
flags="--tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS --rewrite none --duration 0.5"
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

# shellcheck disable=SC2086  # flags are words
LIMIT=300 step sticky python -m trtopt sweep "$digits" -o "$work/sticky" --batch 1,8,32 --precision fp32,fp16 \
  --data wild_input:images $flags
cp "$work/sticky/sweep.json" "$out/sticky.json"
# The same without the fault, in the same folder: what was measured is kept, what failed is measured
# shellcheck disable=SC2086
LIMIT=300 step sticky-after python -m trtopt sweep "$digits" -o "$work/unharmed" --batch 1,8,32 --precision fp32,fp16 $flags
cp "$work/unharmed/sweep.json" "$out/unharmed.json"

python "$here/hold_memory.py" 2048 > "$out/held.txt" 2>&1 &
holder=$!
trap 'kill $holder' EXIT
for _ in $(seq 60); do grep -qs held "$out/held.txt" && break; sleep 0.5; done
# shellcheck disable=SC2086
LIMIT=400 step memory python -m trtopt sweep "$model" -o "$work/memory" --batch 1,8192 $flags
cp "$work/memory/sweep.json" "$out/memory.json"
grep -H "^exit status" "$out"/*.txt
