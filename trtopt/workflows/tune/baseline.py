"""The baseline: today's defaults, built, checked and measured before anything is tried."""

from __future__ import annotations

import time
from pathlib import Path

from trtopt.errors import BoundError, UsageError
from trtopt.records import Ledger, TuneBaseline
from trtopt.workflows.invocation import command_line, now
from trtopt.workflows.tune.built import Built
from trtopt.workflows.tune.evaluation import Evaluation, lowest_cosine
from trtopt.workflows.tune.setup import Setup
from trtopt.workflows.tune.tuned_folder import kept_baseline


def built_baseline(setup: Setup, evaluation: Evaluation, folder: Path) -> tuple[Ledger, Built]:
    """The baseline in `folder`, which is to be made, and a ledger without entries."""
    samples, name = setup.samples, setup.source
    began_s, limit_s = time.monotonic(), setup.limit_s(setup.budget_s)
    built = evaluation.build_baseline(folder, limit_s)
    build_s = time.monotonic() - began_s
    checked = evaluation.check(built, limit_s, setup.quiet)
    if checked.violations:
        where = f"--backend {setup.builder.backend.name} --batch {built.batch}"
        on = "" if samples.name is None else f" --data {samples.name}"
        raise BoundError(
            f"the baseline misses the bound: {checked.violations[0].text}",
            f"loosen the bound, or see all outputs: trtopt build {name} -o baseline {where}; "
            f"trtopt check baseline --against {name}{on}",
        )
    found = evaluation.measure(built, limit_s)
    evaluation.profile(built, limit_s)
    total_s = time.monotonic() - began_s + samples.seconds
    if total_s >= setup.budget_s:
        raise UsageError(
            f"--budget {setup.request.budget}: building, checking and measuring the baseline took "
            f"{total_s:.0f} s{samples.share}",
            f"give --budget {max(1, round(total_s * 10 / 60))}m or more, or use `trtopt build`",
        )
    baseline = TuneBaseline(
        cost=found.cost,
        copied=found.copied,
        engine=kept_baseline(built),
        inputs=built.manifest.onnx.inputs,
        unit=setup.measure.unit,
        accuracy=lowest_cosine(checked),
        build_s=build_s,
        measure_s=total_s - build_s,
        total_s=total_s,
    )
    setup.listener.note(f"baseline: {found.cost:.4g} {baseline.unit}, in {total_s:.0f} s")
    ledger = Ledger(
        created=now(),
        argv=command_line(),
        model=setup.source.name,
        terms=setup.terms,
        baseline=baseline,
        run_spread=setup.run_spread,
    )
    return ledger, built
