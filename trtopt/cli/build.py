"""`trtopt build`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trtopt.cli.locked import or_locked
from trtopt.cli.options.accuracy_bounds import bounds_options
from trtopt.cli.options.alarms import check_alarms, strict_option
from trtopt.cli.options.batch import parse_range
from trtopt.cli.options.data import data_option
from trtopt.cli.options.json_output import JsonOutput, json_option, takes_stdout, write_json
from trtopt.cli.options.measuring import backend_choice, nvtx_option
from trtopt.cli.options.model import OnnxFile
from trtopt.cli.options.output import output_option
from trtopt.cli.options.recipe import RecipeFlags, cache_dir_option, recipe_options
from trtopt.cli.options.sections import SectionedCommand

if TYPE_CHECKING:
    from trtopt.precision.bounds import Bounds


@click.command(cls=SectionedCommand)
@click.argument("model", required=False, type=OnnxFile())
@output_option("FOLDER", "Build folder to create [default: MODEL.trtopt].")
@click.option(
    "--batch",
    "batches",
    multiple=True,
    metavar="N,N,…",
    callback=lambda context, option, texts: [parse_range(text) for text in texts],
    help="Batch sizes, one engine each [default: 1]. With --dynamic its MIN,OPT,MAX; several --batch give "
    "it several optimisation profiles.",
)
@backend_choice("What to build with [default: auto: TensorRT-RTX if there is no GPU].")
@data_option(
    "Real inputs for --precision, which decide what stays FP32, and the scales", aliases=("--calib",)
)
@recipe_options()
@click.option(
    "--selection-budget",
    type=int,
    metavar="N",
    help="Quantised engines to build for each batch size at most, in forms that may be faster [default: 3].",
)
@click.option(
    "--verdict/--no-verdict",
    default=None,
    help="Measure int8, fp8 and int4 against FP16, and use FP16 where they are slower [default: yes].",
)
@bounds_options()
@cache_dir_option
@click.option("--allow-fallback", is_flag=True, help="Accept layers that ran wider than the graph requests.")
@nvtx_option
@click.option("--memory", is_flag=True, help="Trace the builder's allocations of device memory.")
@click.option("--force", is_flag=True, help="Replace a build of another model.")
@json_option("trtopt.build", "the manifest")
@strict_option
@or_locked
def build(
    model: Path,
    output: Path | None,
    batches: list[tuple[int, ...]],
    backend: str | None,
    data: str | None,
    selection_budget: int | None,
    verdict: bool | None,
    bounds: Bounds,
    allow_fallback: bool,
    nvtx: bool,
    memory: bool,
    force: bool,
    strict: bool,
    cache_dir: Path | None,
    json: JsonOutput | None,
    recipe: RecipeFlags,
) -> None:
    """Build engines from MODEL, an ONNX file, into a folder.

    The folder holds one engine per batch size (or one dynamic engine), the ONNX file they were built from,
    their logs and manifest.json. Fails if more than 1 % of an engine's weights run in a wider type than the
    graph requests, where TensorRT reports types. For FP16 on TensorRT 8.6 the limit is half of the weights,
    because it may choose FP32 where that is faster. What measured fastest fails only with --strict.
    """
    from trtopt.cli.console import show, show_notes, warn
    from trtopt.cli.progress import listening
    from trtopt.report.notes import plain
    from trtopt.report.profile import build_memories_summary, receipts_summary
    from trtopt.report.text import build_summary, engine_notes
    from trtopt.report.verdict import verdict_summary
    from trtopt.workflows.build.build import build as run, default_output
    from trtopt.workflows.profile.precision_receipt import check_receipts, receipts_of
    from trtopt.workflows.workbench import memories_of

    target = output or default_output(model)
    wanted = recipe.recipe(
        {
            "batch": batches[0] if len(batches) == 1 else None,
            "ranges": batches if len(batches) > 1 else None,
            "backend": backend,
            "calib": data,
            "selection_budget": selection_budget,
            "verdict": verdict,
            "bounds": bounds.given or None,
        }
    )
    with listening() as listener:
        manifest = run(
            model,
            target,
            wanted,
            force=force,
            nvtx=nvtx,
            memory=memory,
            cache_dir=cache_dir,
            listener=listener,
        )
    receipts = receipts_of(target, manifest)
    memories = build_memories_summary(memories_of(target, manifest))
    verdict_parts = () if manifest.verdict is None else (verdict_summary(manifest.verdict),)
    write_json(json, manifest)
    verdict_notes = () if manifest.verdict is None else manifest.verdict.notes
    warn(manifest.alarms)
    parts = (build_summary(manifest, str(target)), receipts_summary(receipts), memories, *verdict_parts)
    show(*parts, err=takes_stdout(json))
    notes = dict.fromkeys((*manifest.notes, *engine_notes(manifest), *verdict_notes))
    show_notes(plain(notes), err=takes_stdout(json))
    if not allow_fallback:
        was_measured = manifest.verdict is not None and not strict
        show_notes(plain(check_receipts(receipts, was_measured=was_measured)), err=takes_stdout(json))
    check_alarms(manifest.alarms, strict=strict)
