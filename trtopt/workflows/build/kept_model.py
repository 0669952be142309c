"""The user's model in the build folder, rewritten if requested."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from trtopt.errors import InvalidModelError, ModelError, TrtoptError
from trtopt.files.atomic import cannot_write, scratch_beside, write_atomically
from trtopt.files.manifests import MANIFEST
from trtopt.onnxio import model_file
from trtopt.onnxio.external_data import external_files
from trtopt.onnxio.model_info import load_graph, read_onnx
from trtopt.recipe import Rewriting
from trtopt.records import Backend, OnnxArtifact, RewriteSummary, to_json
from trtopt.records.tensors import NO_REQUEST, IoRequest, TypedTensor
from trtopt.targets import ONNXRUNTIME, target_of
from trtopt.workflows.build.engines import MODEL_FILE, TIMING_CACHE_FILE
from trtopt.workflows.listener import Listener

TRACE_FILE = "rewrite.json"
_ONE_SIZE_BYTES = 1 << 30
"""Weights from this size on are verified at one size of each dynamic axis instead of two."""


def rewritten(
    onnx: OnnxArtifact,
    source: Path,
    copy: Path,
    backend: Backend,
    rewriting: Rewriting,
    add_rule: tuple[str, ...] = (),
) -> tuple[OnnxArtifact | None, RewriteSummary | None, str]:
    """Rewrite the model at `source` into `copy` for this TensorRT: by all rules, or those that earned it.

    By `add_rule` too, which need not be on for it.

    A model that cannot be rewritten or verified is built unchanged, with a note.

    Returns:
        The rewritten model, None if `source` is used unchanged; what the manifest says of the rewrite,
        None if there was none; and a note.
    """
    from trtopt.rewrite.catalogue import build_rules
    from trtopt.rewrite.driver import RuleFailed
    from trtopt.rewrite.rewrite import rewrite_model

    size = sum(file.stat().st_size for file in (source, *external_files(load_graph(source), source)))
    free = _available_memory()
    if free is not None and size > free:  # weights are mapped; each run would read them from the disk again
        told = f"its weights take {_gib(size)}, of memory {_gib(free)} are free"
        return None, None, f"not rewritten: {told}"
    sizes = 1 if size >= _ONE_SIZE_BYTES else 2
    target = target_of(backend).name
    rules = {"default": build_rules(target), "all": None, "none": ()}[rewriting]
    try:
        trace = rewrite_model(
            source, copy, target=target, rules=rules, add=add_rule, sizes=sizes, write_unchanged=False
        )
    except RuleFailed as failure:
        remedy = "build with --rewrite none, or build what `trtopt rewrite --keep-going` writes"
        raise TrtoptError(failure.problem, f"{remedy}; please report the model") from failure
    except ModelError as error:
        return None, None, f"not rewritten: {error.problem}"
    trace = msgspec.structs.replace(trace, source=source.name, out=copy.name)
    text = to_json(trace)
    write_atomically(copy.with_name(TRACE_FILE), text)
    summary = trace.summary(TRACE_FILE, hashlib.sha256(text).hexdigest())
    if not trace.applied:
        return None, summary, "nothing to rewrite"
    done = ", ".join(f"{count} {name}" for name, count in summary.applied.items())
    note = (
        f"rewritten: {trace.nodes_before} nodes are now {trace.nodes_after} ({done}), verified on "
        f"{summary.inputs_checked} inputs; details are in {TRACE_FILE}"
    )
    limits = "".join(f"; {limit}" for limit in trace.notes)
    return msgspec.structs.replace(read_onnx(copy), parent=onnx.sha256), summary, f"{note}{limits}"


def _available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    reason = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return int(reason[1]) * 1024 if reason else None


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


_OWN_NAMES = {MODEL_FILE, TIMING_CACHE_FILE, MANIFEST}


@dataclass(frozen=True)
class Kept:
    """The user's model in the build folder, its rewrite, and its inputs and outputs with another type."""

    onnx: OnnxArtifact
    rewrite: RewriteSummary | None
    notes: tuple[str, ...]
    io: tuple[TypedTensor, ...] = ()


def keep_model(
    onnx: OnnxArtifact,
    source: Path,
    folder: Path,
    backend: Backend,
    listener: Listener,
    *,
    rewrite: Rewriting,
    add_rule: tuple[str, ...] = (),
    io: IoRequest = NO_REQUEST,
    data: str | None = None,
) -> Kept:
    """The user's model in a folder, its inputs and outputs as requested, rewritten if requested and possible.

    `data` takes part in verifying the new inputs, which it has.
    """
    _check_roles(onnx)
    if not io.is_empty:
        return _typed(
            onnx, source, folder, backend, listener, rewrite=rewrite, add_rule=add_rule, io=io, data=data
        )
    kept, summary, notes = None, None, []
    if rewrite != "none" or add_rule:
        listener.phase(source.name, "rewriting the graph")
        kept, summary, note = rewritten(onnx, source, folder / MODEL_FILE, backend, rewrite, add_rule)
        notes.append(note)
    return Kept(kept or _copied(onnx, source, folder), summary, tuple(notes), _recorded(source))


def _check_roles(onnx: OnnxArtifact) -> None:
    """An engine has one buffer for each name."""
    inputs = {spec.name for spec in onnx.inputs}
    for spec in onnx.outputs:
        if spec.name in inputs:
            raise ModelError(
                f"{onnx.path}: {spec.name!r} is an input and an output, which engines cannot have",
                "leave it out of the outputs, or return it through an Identity under another name",
            )


def _recorded(source: Path) -> tuple[TypedTensor, ...]:
    """What a file says of its inputs and outputs, if trtopt typed them."""
    from trtopt.rewrite.typed_io.recorded import recorded_in

    return recorded_in(load_graph(source))


def with_typed_io(onnx: OnnxArtifact, io: IoRequest, backend: Backend) -> OnnxArtifact:
    """The model as its inputs and outputs will be, to check shapes before anything is written."""
    if io.is_empty:
        return onnx
    from trtopt.rewrite.typed_io.requested import check_formats, typed_specs

    check_formats(io, target_of(backend), in_engine=backend.name != ONNXRUNTIME)
    recorded = _recorded(Path(onnx.path))
    return msgspec.structs.replace(
        onnx,
        inputs=typed_specs(onnx.inputs, io, recorded),
        outputs=typed_specs(onnx.outputs, io, recorded),
    )


def _typed(
    onnx: OnnxArtifact,
    source: Path,
    folder: Path,
    backend: Backend,
    listener: Listener,
    *,
    rewrite: Rewriting,
    add_rule: tuple[str, ...],
    io: IoRequest,
    data: str | None,
) -> Kept:
    """The same of a model whose inputs and outputs get other types first."""
    from trtopt.rewrite.typed_io.requested import check_formats
    from trtopt.rewrite.typed_io.typed_graph import type_graph
    from trtopt.rewrite.typed_io.verification import describe

    listener.phase(source.name, "typing inputs and outputs")
    check_formats(io, target_of(backend), in_engine=backend.name != ONNXRUNTIME)
    with scratch_beside(folder / MODEL_FILE) as scratch:
        made = type_graph(model_file.load(source), io, data=data)
        file = scratch / MODEL_FILE
        model_file.save(made.model, file)
        kept = keep_model(
            read_onnx(file), file, folder, backend, listener, rewrite=rewrite, add_rule=add_rule
        )
    stated = tuple(one for one in made.tensors if one.dtype != "int8" or one.scale is not None)
    notes = describe(stated, made.checked)
    return Kept(
        msgspec.structs.replace(kept.onnx, parent=onnx.sha256),
        kept.rewrite,
        (*notes, *kept.notes),
        made.tensors,
    )


def _copied(onnx: OnnxArtifact, source: Path, folder: Path) -> OnnxArtifact:
    """Copy the model, and its external data under the names that the model knows, into the build folder."""
    files = external_files(load_graph(source), source)
    for name in {str(file.relative_to(source.parent)) for file in files} & _OWN_NAMES:
        raise InvalidModelError(
            f"{source}: keeps weights in {name!r}, a name that the build folder needs itself",
            "save the model again with another name for its weights",
        )
    try:
        for file in files:
            copy = folder / file.relative_to(source.parent)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
        shutil.copyfile(source, folder / MODEL_FILE)
    except OSError as error:
        raise cannot_write(folder, error) from None
    return msgspec.structs.replace(onnx, path=str(folder / MODEL_FILE))
