"""Each rule's small graphs before and after, for building on a GPU host and comparing the layers.

    python docs/measurements/fusion_audit.py FOLDER [TARGET]

Writes `RULE-N-before.onnx` and `RULE-N-after.onnx` for every graph on which a rule fires, and `audit.json`
that tells for each which fusion the rule claims. Build both with `trtopt build` and compare the inspector's
layers: fewer layers, or the layer that the rule names, is the proof; no difference means that TensorRT did it
already. Graphs whose opset the target does not read are left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.rewrite_graphs import FIRES, model
from trtopt.rewrite import rewrite_model
from trtopt.rewrite.catalogue import RULES
from trtopt.rewrite.target import target_named


def main() -> None:
    """Write the pairs."""
    folder, target = Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "8.6"
    folder.mkdir(parents=True, exist_ok=True)
    claims = {rule.name: rule.enables for rule in RULES}
    audit = []
    for number, case in enumerate(FIRES):
        if case.opset > target_named(target).opset:
            continue
        before, after = (folder / f"{case.rule}-{number}-{side}.onnx" for side in ("before", "after"))
        onnx.save(model(case.text, case.opset), before)
        trace = rewrite_model(before, after, target=target, rules=[case.rule])
        if trace.applied:
            claim = claims[case.rule] or "cleaning only"
            audit.append(
                {"rule": case.rule, "case": case.name, "claims": claim, "files": [before.name, after.name]}
            )
    (folder / "audit.json").write_text(json.dumps(audit, indent=2) + "\n")
    print(f"{len(audit)} pairs in {folder}")


if __name__ == "__main__":
    main()
