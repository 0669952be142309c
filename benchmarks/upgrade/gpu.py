"""Upgrades on a GPU: TensorRT at two optimisation levels stands for two versions.

    python benchmarks/upgrade/gpu.py -o OUT

Builds two small models in FP16 at levels 1 and 4 and compares them; then a right engine and a wrong one.
What each command printed is in OUT/NAME.txt, its record in OUT/NAME.json, and the exit codes in
OUT/summary.json: a comparison that it has is not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cases import plant, write

ROOT = Path(__file__).resolve().parents[2]
LEVELS = ("1", "4")
MODELS = ("digits", "digits_transformer")
WRONG = ("residual", "one wrong channel")
LIMIT_S = 100


def trtopt(name: str, out: Path, *arguments: str | Path) -> int:
    """Run a command; what it printed goes into a file. Returns its exit code, 124 past the limit."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "trtopt", *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, text = 124, str(error)
    seconds = time.perf_counter() - start
    shown = " ".join(["trtopt", *(str(one).replace(f"{ROOT}/", "") for one in arguments)])
    (out / f"{name}.txt").write_text(f"$ {shown}\n{text}exit code {code}, {seconds:.0f} s\n")
    print(f"{name}: exit code {code}, {seconds:.0f} s", flush=True)
    return code


def main() -> None:
    """The clean upgrades first, then the wrong one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--backend", default="tensorrt")
    out, backend = (given := parser.parse_args()).output, given.backend
    out.mkdir(parents=True, exist_ok=True)
    summary = out / "summary.json"
    codes: dict[str, int] = json.loads(summary.read_text()) if summary.exists() else {}
    level = "--opt-level" if backend == "tensorrt" else "--graph-optimization"
    low, high = LEVELS if backend == "tensorrt" else ("disable", "all")

    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)

        def build(name: str, model: Path, value: str) -> Path:
            folder, half = place / f"{name}-{value}", ("--precision", "fp16", "--allow-fallback")
            common = ("--batch", "4", "--backend", backend, level, value)
            trtopt(f"build-{name}-{value}", out, "build", model, "-o", folder, *common, *half)
            return folder

        def compare(name: str, old: Path, new: Path) -> None:
            options = ("--upgrade", "--duration", "0.5", "--backend", backend, "--json", out / f"{name}.json")
            codes[name] = trtopt(name, out, "compare", old, new, *options)
            summary.write_text(json.dumps(codes, indent=1) + "\n")

        for model in MODELS:
            if model not in codes:
                path = ROOT / "models" / model / f"{model}.onnx"
                compare(model, *(build(model, path, value) for value in (low, high)))
        if "wrong" not in codes:
            right, wrong = (
                build(name, write(WRONG[0], place / f"{name}.onnx", fault), high)
                for name, fault in (("right", ""), ("wrong", WRONG[1]))
            )
            compare("wrong", right, plant(right, wrong, place / "planted"))


if __name__ == "__main__":
    main()
