"""Precision receipts of a build folder: the types its engines run in against the requested ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trtopt.builder.shapes import shapes_at
from trtopt.errors import ArtifactError, BuildError
from trtopt.files.bounded_reading import reading_as
from trtopt.files.manifests import read_listed
from trtopt.inspect.graph import read_graph
from trtopt.inspect.inspector import read_inspector
from trtopt.inspect.join import join
from trtopt.inspect.receipt import faults, receipt, share_of
from trtopt.onnxio.model_file import load
from trtopt.records import Manifest, PrecisionReceipt
from trtopt.targets import target_of


def receipts_of(folder: Path, manifest: Manifest) -> dict[str, PrecisionReceipt]:
    """A receipt by weights for each engine whose layers the builder described, by the engine's file."""
    described = [engine for engine in manifest.engines if engine.layers]
    if not described:
        return {}
    graphs = {graph.sha256: graph for graph in map(manifest.graph_of, described)}
    models = {key: load(folder / Path(graph.path).name).proto for key, graph in graphs.items()}
    found = {}
    for engine in described:
        name = str(engine.layers)
        with reading_as("an engine's layers", folder / name, "build again: the folder has lost it"):
            text = read_listed(folder, manifest, name).decode()
        try:
            description = read_inspector(text, name)
        except ArtifactError:  # an engine whose layers have no detail tells no types
            continue
        model = models[manifest.graph_of(engine).sha256]
        graph = read_graph(model, shapes_at(manifest.onnx.inputs, engine.plan, engine.plan.batch.opt[0]))
        layers, _ = join(description, None, graph)
        found[engine.path] = receipt(layers, weakly_typed=target_of(engine.plan.backend).weakly_typed)
    return found


def check_receipts(
    receipts: Mapping[str, PrecisionReceipt], *, was_measured: bool = False
) -> tuple[str, ...]:
    """Fail if the engines do not run in the requested precision; say so if they were measured to be the best.

    Raises:
        BuildError: an engine does not; see `inspect.receipt` for the limits.
    """
    notes = []
    for name, found in receipts.items():
        if fallen := faults(found):
            worst = fallen[0]
            where = " + ".join(worst.nodes) or worst.layer
            notes.append(
                f"{name}: {share_of(fallen):.1%} of the weights run in a wider type than the graph requests, "
                f"first of all {where!r} in {worst.ran} instead of {worst.requested}"
            )
    if notes and not was_measured:
        raise BuildError(
            notes[0],
            "the folder is complete: accept it with --allow-fallback, or see `trtopt profile` and "
            "`trtopt lint` for the cause",
        )
    return tuple(notes)
