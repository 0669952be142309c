"""`trtopt build`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Folder to make [default: MODEL.trtopt]."
)
@click.option("--batch", metavar="N,N,…", help="Batch sizes, one engine each [default: 1].")
@click.option("--dynamic", is_flag=True, default=None, help="One engine for --batch MIN,OPT,MAX instead.")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME:MIN,OPT,MAX",
    help="Shapes of an input with dynamic axes besides the batch: ids:Nx1,Nx128,Nx512 (N is the batch).",
)
@click.option(
    "--profile", metavar="NAME|FILE", help="A recipe: a shipped profile or a TOML file; flags override it."
)
@click.option("--backend", metavar="auto|tensorrt|tensorrt-rtx|onnxruntime", help="What to build with.")
@click.option("--opt-level", type=int, help="Builder optimisation level, 0 to 5.")
@click.option(
    "--workspace", "workspace_mib", type=int, metavar="MIB", help="Bound on the builder's scratch memory."
)
@click.option("--tactic-sources", metavar="NAME,NAME,…", help="Where tactics may come from.")
@click.option("--timing-cache", metavar="FILE", help="Timing cache to read, extend and save.")
@click.option(
    "--compute-capability", metavar="CC,CC,…", help="GPUs to build for, such as 8.9 (TensorRT-RTX)."
)
@click.option(
    "--plugin", "plugins", multiple=True, metavar="LIB.so", help="Plugin library to load: native code."
)
@click.option(
    "--rewrite/--no-rewrite",
    default=None,
    help="Rewrite the graph first so that it fuses better [default: no].",
)
@click.option("--jobs", type=int, help="Engines built at once [default: 1].")
def build(
    model: Path,
    output: Path | None,
    batch: str | None,
    dynamic: bool | None,
    shapes: tuple[str, ...],
    profile: str | None,
    backend: str | None,
    opt_level: int | None,
    workspace_mib: int | None,
    tactic_sources: str | None,
    timing_cache: str | None,
    compute_capability: str | None,
    plugins: tuple[str, ...],
    rewrite: bool | None,
    jobs: int | None,
) -> None:
    """Build engines from MODEL, an ONNX file, into a folder.

    The folder holds one engine per batch size (or one dynamic engine), the ONNX they were built from, their
    logs and manifest.json.
    """
    from rich.console import Console

    from trtopt.cli.progress import listening
    from trtopt.pipeline.build import build as run
    from trtopt.pipeline.build import default_output
    from trtopt.recipe import parse_batches
    from trtopt.report.text import build_summary

    target = output or default_output(model)
    with listening() as listener:
        manifest = run(
            model,
            target,
            profile=profile,
            listener=listener,
            batch=parse_batches(batch) if batch is not None else None,
            dynamic=dynamic,
            shapes=_by_name(shapes),
            backend=backend,
            opt_level=opt_level,
            workspace_mib=workspace_mib,
            tactic_sources=_names(tactic_sources),
            timing_cache=timing_cache,
            compute_capability=_names(compute_capability),
            plugins=plugins or None,
            rewrite=rewrite,
            jobs=jobs,
        )
    Console().print(build_summary(manifest, str(target)))


def _names(text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",")) if text is not None else None


def _by_name(flags: tuple[str, ...]) -> dict[str, str] | None:
    """`NAME:SHAPES` flags as the recipe holds them; the form of each is judged there."""
    from trtopt.errors import UsageError
    from trtopt.recipe import parse_shape_flag

    by_name: dict[str, str] = {}
    for flag in flags:
        name, _ = parse_shape_flag(flag)
        if name in by_name:
            raise UsageError(f"--shape {name}: given twice", "give each input one --shape")
        by_name[name] = flag[len(name) + 1 :]
    return by_name or None
