#!/usr/bin/env bash
# Build one model of the collection for batches 1, 8 and 32, one after the other with one timing cache, and
# measure each:
#     measure.sh MODEL.onnx WORK_FOLDER OUT_FOLDER LABEL [--shape …]
set -u
model=$1 work=$2 out=$3 label=$4
shift 4
mkdir -p "$work" "$out"
for batch in ${BATCHES:-1 8 32}; do
  build=$work/$label-$batch
  # cuBLAS and cuDNN may be missing on a test host; the other tactics do without them
  if timeout 300 python -m trtopt build "$model" -o "$build" --batch "$batch" "$@" --no-rewrite \
    --tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS --timing-cache "$work/$(basename "$model").cache"; then
    cp "$build/manifest.json" "$out/$label-$batch.manifest.json"
    timeout 60 python -m trtopt bench "$build" --duration 1.5 --json "$out/$label-$batch.json"
  else
    cp -r "$build"* "$out/" 2>/dev/null
    echo "$label, batch $batch: build failed with status $?"
  fi
done
