#!/usr/bin/env bash
# Refill one model of the collection, build it for one batch size and measure it:
#     measure.sh LIGHT.onnx.gz WORK_FOLDER OUT_FOLDER LABEL BATCH [build options …]
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
# cuBLAS and cuDNN may be missing on a test host; the other tactics do without them
python -m trtopt build "$model" -o "$build" --batch "$batch" --no-rewrite --timing-cache "$model.cache" \
  --tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS "$@" || exit
cp "$build/manifest.json" "$out/$label-$batch.manifest.json"
python -m trtopt bench "$build" --duration 1.5 --json "$out/$label-$batch.json"
