#!/usr/bin/env bash
# One engine of one model of the collection, in two steps that may lie apart:
#     measure.sh build LIGHT.onnx.gz WORK_FOLDER OUT_FOLDER LABEL BATCH[,BATCH…] [build option …]
#     [BASELINE=LABEL] measure.sh measure WORK_FOLDER OUT_FOLDER LABEL BATCH[,BATCH…]
# More than one batch size: one engine for all of them, tuned at the second. With BASELINE, the label of another
# engine in WORK_FOLDER, the two are measured in turns besides.
set -eu
step=$1
shift
if [ "$step" = build ]; then
  light=$1 work=$2 out=$3 label=$4 batches=$5
  shift 5
  model=$work/$label.onnx
  mkdir -p "$work" "$out"
  [ -s "$model" ] || python "$(dirname "$0")/../shared/weights.py" fill "$light" "$model"
  IFS=, read -ra sizes <<< "$batches"
  range=$batches
  if [ ${#sizes[@]} -gt 1 ]; then
    range=${sizes[0]},${sizes[1]},${sizes[-1]}
    set -- --dynamic "$@"
  fi
  # the manifest lists what TensorRT chose to run wider; that is no reason not to measure
  python -m trtopt build "$model" -o "$work/$label" --batch "$range" --rewrite none --allow-fallback "$@"
  rm "$model"
  cp "$work/$label/manifest.json" "$out/$label.manifest.json"
else
  work=$1 out=$2 label=$3 batches=$4
  python -m trtopt bench "$work/$label" --batch "$batches" --duration 1 --json "$out/$label.json"
  if [ -n "${BASELINE-}" ]; then
    # 3 and 5: slower, or that is open, which are findings
    python -m trtopt compare "$work/$BASELINE" "$work/$label" --batch "$batches" --duration 2 \
      --json "$out/$label.compare.json" || case $? in 3|5) ;; *) false ;; esac
  fi
fi
