#!/usr/bin/env bash
# Everything measured on this page, on a machine with an NVIDIA GPU, TensorRT 8.6, pycuda and cuda-python:
#     run.sh MODEL.onnx OUT_DIR           (MODEL.onnx from export_resnet50.py)
set -u
model=$1 out=$2 here=$(dirname "$0") work=$(mktemp -d)
mkdir -p "$out"
# cuBLAS and cuDNN may be missing on a test host; convolution tactics do without them
build="python -m trtopt build $model --batch 1,8,32,128 --tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS"

$build -o "$work/first" --timing-cache "$work/shared.cache"
$build -o "$work/second" --timing-cache "$work/shared.cache"
cp "$work/first/manifest.json" "$out/manifest.first.json"
cp "$work/second/manifest.json" "$out/manifest.second.json"

for binding in cuda-python pycuda; do
  for contract in trtexec-10 trtexec-11; do
    for graph in graph no-graph; do
      TRTOPT_CUDA=$binding python -m trtopt bench "$work/first" --contract $contract --$graph --duration 1.5 \
        --json "$work/$binding.$contract.$graph.json" 2>&1 | tee -a "$out/tables.txt"
    done
  done
  TRTOPT_CUDA=$binding python "$here/host_cost.py" "$work/first" "$out/host_cost.$binding.json"
done
python -m trtopt bench "$work/first" --batch 1,128 --layers --memory --duration 0.5 \
  --json "$work/layers.json" | tee -a "$out/tables.txt"
tar czf "$out/results.tar.gz" -C "$work" $(cd "$work" && ls *.json)
