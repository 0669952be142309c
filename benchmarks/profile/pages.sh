#!/usr/bin/env bash
# All that a report page of one model shows:
#     pages.sh MODEL.onnx WORK_FOLDER OUT_FOLDER BATCH[,BATCH…] [build option …]
# A step that failed stops no other, one that is done is not done again.
set -u
model=$1 work=$2 out=$3 batches=$4
shift 4
mkdir -p "$work" "$out"
export XDG_CACHE_HOME=$work/cache # measured peaks are kept there, not in the user's own folder
. "$(dirname "$0")/../shared/step.sh"
LIMIT=400 step build python -m trtopt build "$model" -o "$work/build" --batch "$batches" --allow-fallback "$@"
cp "$work/build/manifest.json" "$out"
step bench python -m trtopt bench "$work/build" --contract trtexec-11 --duration 1 --json "$out/result.json"
LIMIT=300 step profile python -m trtopt profile "$work/build" --probe-peaks --memory --trace -o "$out"
grep -H "^exit status" "$out"/*.txt
