#!/usr/bin/env bash
# Build ResNet-50 twice, the second time with the first one's timing cache:
#     build.sh MODEL.onnx WORK_DIR OUT_DIR         (MODEL.onnx from export_resnet50.py)
set -u
model=$1 work=$2 out=$3
mkdir -p "$work" "$out"
for turn in first second; do
  # cuBLAS and cuDNN may be missing on a test host; convolution tactics do without them
  python -m trtopt build "$model" -o "$work/$turn" --batch 1,8,32,128 --timing-cache "$work/shared.cache" \
    --tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS 2>&1 | tee -a "$out/build.txt"
  cp "$work/$turn/manifest.json" "$out/manifest.$turn.json"
done
