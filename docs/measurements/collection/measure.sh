#!/usr/bin/env bash
# Refill one model of the collection, build one engine of it and measure that:
#     measure.sh LIGHT.onnx.gz WORK_FOLDER OUT_FOLDER LABEL BATCH|any [build options …]
# `any`: one engine for batches 1 to 32, tuned at 8.
set -eu
light=$1 work=$2 out=$3 label=$4 batch=$5
shift 5
model=$work/$(basename "$light" .gz)
built=$work/$label-$batch
mkdir -p "$work" "$out"
(
  flock 9
  [ -s "$model" ] || python "$(dirname "$0")/../weights.py" fill "$light" "$model"
) 9>"$model.lock"
batches=$batch
if [ "$batch" = any ]; then
  batches=1,8,32
  set -- --dynamic "$@"
fi
# what TensorRT chose to run wider is told by the manifest, and is no reason not to measure
python -m trtopt build "$model" -o "$built" --batch "$batches" --no-rewrite --allow-fallback "$@"
cp "$built/manifest.json" "$out/$label-$batch.manifest.json"
python -m trtopt bench "$built" --batch "$batches" --duration 1.5 --json "$out/$label-$batch.json"
