#!/usr/bin/env bash
# What trtopt's numbers are worth, on one GPU, with ResNet-50 in FP16:
#     run.sh MODEL.onnx WORK_FOLDER OUT_FOLDER
# A step that failed stops no other, one that is done is not done again; what it printed is in OUT_FOLDER/STEP.txt.
set -u
model=$1 work=$2 out=$3
here=$(dirname "$0")
# cuBLAS and cuDNN may be missing on a test host; the other tactics do without them
sources="--tactic-sources EDGE_MASK_CONVOLUTIONS,JIT_CONVOLUTIONS"
mkdir -p "$work" "$out"
. "$here/../shared/step.sh"
r50=$work/r50
LIMIT=280 step build python -m trtopt build "$model" -o "$r50" --batch 1,64 --jobs 2 --rewrite none $sources
step bare_loop python "$here/bare_loop.py" "$r50" "$out/bare_loop.json"
step ledger python -m trtopt compare "$r50" --batch 1,64 --duration 1.5 --json "$out/ledger.json" \
  --across-contracts trtexec-10,trtexec-11
step control python -m trtopt compare "$r50" --batch 1 --duration 1 --control 20 --json "$out/control.json"
for streams in 1 2 4 8; do
  step "streams-$streams" python -m trtopt bench "$r50" --batch 1 --streams $streams --duration 1 \
    --json "$out/streams-$streams.json"
done
step contracts-serving python -m trtopt bench "$r50" --contract serving --duration 1 --json "$out/serving.json"
step contracts-pageable python -m trtopt bench "$r50" --contract trtexec-10 --no-pinned --duration 1 \
  --json "$out/pageable.json"
step noise python -m trtopt bench "$r50" --duration 3 --json "$out/noise.json"
step load-500 python -m trtopt bench "$r50" --batch 1 --duration 1 --load poisson:500 --json "$out/load-500.json"
step load-2000 python -m trtopt bench "$r50" --batch 1 --duration 1 --load poisson:2000 --json "$out/load-2000.json"
step max-latency python -m trtopt bench "$r50" --batch 1 --duration 1 --max-latency p99=5ms --json "$out/max-latency.json"
for run in $(seq "${LUCK:-12}"); do
  step "luck-$run" python -m trtopt bench "$r50" --batch 1 --duration 1 --json "$out/luck-$run.json"
done
