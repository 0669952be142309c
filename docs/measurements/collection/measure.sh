#!/usr/bin/env bash
# Refill one model of the collection, build it for one batch size, or with `any` for 1 to 32 tuned at 8, and measure it:
#     measure.sh LIGHT.onnx.gz WORK_FOLDER OUT_FOLDER LABEL BATCH|any [build options …]
set -u
light=$1 work=$2 out=$3 label=$4 batch=$5
shift 5
here=$(dirname "$0")
model=$work/$(basename "$light" .gz)
mkdir -p "$work" "$out"
(
  flock 9
  [ -s "$model" ] || python "$here/../weights.py" fill "$light" "$model"
) 9>"$model.lock"
build=$work/$label-$batch
batches="--batch $batch"
[ "$batch" = any ] && batches="--batch 1,8,32 --dynamic"
# cuBLAS and cuDNN may be missing on a test host; the other tactics do without them
python -m trtopt build "$model" -o "$build" $batches --no-rewrite --timing-cache "$model.cache" \
  --tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS "$@" || exit
cp "$build/manifest.json" "$out/$label-$batch.manifest.json"
python -m trtopt bench "$build" --batch "${batches//[!0-9,]/}" --duration 1.5 --json "$out/$label-$batch.json"
