#!/usr/bin/env bash
# Measure the engines that build.sh made: both contracts, with and without graphs, with both CUDA bindings:
#     bench.sh WORK_DIR OUT_DIR
set -u
work=$1 out=$2 here=$(dirname "$0")
mkdir -p "$out" "$out/results"
for binding in cuda-python pycuda; do
  for contract in trtexec-10 trtexec-11; do
    for graph in graph no-graph; do
      echo "TRTOPT_CUDA=$binding trtopt bench --contract $contract --$graph"
      TRTOPT_CUDA=$binding python -m trtopt bench "$work/first" --contract $contract --$graph --duration 1.5 \
        --json "$out/results/$binding.$contract.$graph.json" 2>&1
    done
  done
  TRTOPT_CUDA=$binding python "$here/host_cost.py" "$work/first" "$out/host_cost.$binding.json"
done | tee "$out/bench.txt"
python -m trtopt bench "$work/first" --batch 1,128 --layers --memory --duration 0.5 \
  --json "$out/results/layers-memory.json" | tee "$out/layers-memory.txt"
