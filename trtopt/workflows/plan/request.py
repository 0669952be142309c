"""A plan's request, read and validated before anything is measured."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtopt.device.cuda import probe
from trtopt.device.ort.host import cpu_info, cpu_name
from trtopt.errors import DeviceError, UsageError
from trtopt.files.bounded_reading import read_bounded, reason_of
from trtopt.measure.load.arrivals import parse_goal
from trtopt.recipe import check_timeout
from trtopt.requests.serve import PlanRequest
from trtopt.serving.planning.search import MAX_ENGINES, Bounds
from trtopt.serving.planning.traffic import Process, Recorded, parse_process, parse_recorded
from trtopt.targets import ONNXRUNTIME
from trtopt.workflows.plan.measured_engines import Measured
from trtopt.workflows.sweep.folder import REPORT


@dataclass(frozen=True)
class RequestedArrivals:
    """How requests arrive, as it was named, and the hash of its file if it was one."""

    process: Process
    name: str
    sha256: str | None = None


def bounds_of(request: PlanRequest) -> Bounds:
    """The bounds of a plan, once the options are validated; nothing has been read by then."""
    bounds = Bounds(
        parse_goal(request.slo, "--slo"), request.memory_bytes, request.max_engines, request.for_triton
    )
    rate = request.rate
    if not 1 <= bounds.max_engines <= MAX_ENGINES:
        raise UsageError(f"--max-engines {bounds.max_engines}: out of range", f"give 1 to {MAX_ENGINES}")
    if bounds.memory_bytes is not None and bounds.memory_bytes < 1:
        raise UsageError(
            f"--memory {bounds.memory_bytes}: must be above 0", "give a bound like 8GiB, or omit it"
        )
    if rate is not None and not 0 < rate < float("inf"):
        raise UsageError(f"--rate {rate:g}: not a rate", "give requests per second, above 0")
    check_timeout(request.timeout)
    return bounds


def read_arrivals(text: str) -> RequestedArrivals:
    """A process by its name, or a file of arrivals."""
    path = Path(text)
    if not path.is_file():
        return RequestedArrivals(parse_process(text), text)
    try:
        content = read_bounded(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read as arrivals: {reason_of(error)}", "give another file"
        ) from None
    recorded = parse_recorded(content.decode(errors="replace"), text)
    return RequestedArrivals(recorded, text, hashlib.sha256(content).hexdigest())


def shares_of(measured: Measured, process: Process, lengths: Mapping[int, float]) -> dict[int, float]:
    """The share of requests by length; a model without lengths has the one length 0."""
    has_lengths = set(measured.buckets) != {0}
    recorded = process.lengths if isinstance(process, Recorded) else ()
    has_given = bool(lengths) or bool(recorded)
    if has_lengths and not has_given:
        raise UsageError(
            f"the sweep has lengths {', '.join(map(str, sorted(measured.buckets)))}, and the lengths of "
            "requests are unknown",
            "give them as --lengths 128:0.7,384:0.3, or in a file of arrivals with a length for each",
        )
    if not has_lengths and has_given:
        raise UsageError(
            "requests have lengths, and the sweep has none", "sweep with --axis, or omit the lengths"
        )
    longest, swept = max(recorded or lengths, default=0), sorted(measured.buckets)
    if has_lengths and longest > swept[-1]:
        raise UsageError(
            f"length {longest} is longer than any that was swept ({swept[-1]})",
            f"sweep with --axis {measured.axis}={','.join(map(str, (*swept, longest)))}, "
            "or plan without requests that are so long",
        )
    return dict(lengths) if has_lengths else {0: 1.0}


def on_another_machine(measured: Measured) -> list[str]:
    """Notes where something was not measured on this machine's device, as far as it has one of that kind."""
    there = measured.environment
    try:
        here = cpu_info() if there.backend.name == ONNXRUNTIME else probe.gpu(0)
    except DeviceError:  # nothing will be run here
        return []
    notes = []
    if (here.name, cpu_name()) != (there.device.name, there.cpu):
        notes.append(f"measured on {there.device.name}, {there.cpu}; planned on {here.name}, {cpu_name()}")
    other_devices = measured.sweep_devices - {here.name, there.device.name}
    return notes + [
        f"{REPORT} says that it is of {name}; planned on {here.name}" for name in sorted(other_devices)
    ]
