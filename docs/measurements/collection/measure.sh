#!/usr/bin/env bash
# One engine of the collection: build it from the emptied model, or measure it.
#     measure.sh build LIGHT.onnx.gz WORK_FOLDER LABEL BATCH|any [build options …]
#     measure.sh bench WORK_FOLDER OUT_FOLDER LABEL BATCH|any
# `any`: one engine for batches 1 to 32, tuned at 8.
set -eu
here=$(dirname "$0")
batches() { if [ "$1" = any ]; then echo 1,8,32; else echo "$1"; fi; }

build() {
  light=$1 work=$2 label=$3 batch=$4
  shift 4
  model=$work/$(basename "$light" .gz)
  mkdir -p "$work"
  (
    flock 9
    [ -s "$model" ] || python "$here/../weights.py" fill "$light" "$model"
  ) 9>"$model.lock"
  [ "$batch" = any ] && set -- --dynamic "$@"
  python -m trtopt build "$model" -o "$work/$label-$batch" --batch "$(batches "$batch")" --no-rewrite "$@"
}

bench() {
  work=$1 out=$2 label=$3 batch=$4
  mkdir -p "$out"
  cp "$work/$label-$batch/manifest.json" "$out/$label-$batch.manifest.json"
  python -m trtopt bench "$work/$label-$batch" --batch "$(batches "$batch")" --duration 1.5 \
    --json "$out/$label-$batch.json"
}

"$@"
