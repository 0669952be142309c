"""From a model or its engines, and the model that they should agree with, to a report of differences."""

from __future__ import annotations

from pathlib import Path

from trtopt.data import open_data
from trtopt.data.feeds import seeded_source, specs_of
from trtopt.data.source import range_notes
from trtopt.errors import UsageError
from trtopt.onnxio import model_file
from trtopt.onnxio.disk_space import check_temporary_room
from trtopt.onnxio.model_info import read_onnx
from trtopt.onnxio.prepare import prepare
from trtopt.onnxio.weights import weight_alarms
from trtopt.precision.bounds import accuracy_alarms
from trtopt.precision.compare import layer_differences
from trtopt.precision.running import opening_bytes
from trtopt.recipe import batch_sizes
from trtopt.records.precision import CheckReport, LayerDifference
from trtopt.requests.models import CheckRequest
from trtopt.rewrite.typed_io.requested import recorded_in
from trtopt.workflows.bench.resolve_engines import check_own_run, check_trust, is_model, resolve_engines
from trtopt.workflows.precision.checker import Checker, Task
from trtopt.workflows.provenance import command_line, now


def check(request: CheckRequest) -> CheckReport:
    """Compare an ONNX file, or the engines of a build folder, with a reference model on ONNX Runtime.

    Returns:
        The differences of every output; `passed` is whether all bounds are met.

    Example:
        >>> report = trtopt.check("engines", "model.onnx", data="data.npz", min_cosine=0.99)
        >>> report.passed
        True
    """
    path, against, data = Path(request.path), Path(request.against), request.data
    batch, sizes = batch_sizes(request.batch), request.sizes
    if data is not None and sizes.given:
        raise UsageError("--shape and --axis: samples have shapes of their own", "omit them, or --data")
    task = Task(request.task) if request.task is not None else None
    if task is not None and data is None and not sizes.given:
        data = task.data
    checker = Checker(read_onnx(against), task, request.bounds)
    notes: list[str] = []
    listener = request.listener
    found: tuple[LayerDifference, ...] = ()
    if is_model(path):
        if batch or sizes.given:
            flag = "--batch" if batch else "--shape and --axis"
            raise UsageError(
                f"{flag}: an ONNX file runs on the samples in their own shapes",
                "give samples of those with --data",
            )
        read_onnx(path)  # what is wrong with it is said before it is run
        other = prepare(model_file.load(path))
        check_temporary_room(opening_bytes(checker.model) + opening_bytes(other), listener.note)
        checker.take_inputs_of(recorded_in(other.proto))
        source = open_data(data) if data is not None else seeded_source(checker.model)
        listener.phase(path.name, "comparing with the reference")
        subjects = [checker.model_file(path.name, other, source)]
        if request.layers:
            listener.phase(path.name, "comparing inner tensors")
            found = layer_differences(checker.model, other, source)
    elif request.layers:
        raise UsageError("--layers: an engine has no inner tensors to read", "give its ONNX file")
    else:
        check_trust(request.trust, [path])
        if request.bounds.any:
            check_own_run(path, request.backend, request.trust)
        with resolve_engines(path, request, notes) as there:
            checker.take_inputs_of(there.io)
            subjects = checker.engines(there.engines, data, listener, request.timeout)
    if data is not None:
        notes += range_notes(specs_of(checker.model.proto), open_data(data))
    return CheckReport(
        created=now(),
        argv=command_line(),
        model=str(path),
        against=str(against),
        against_sha256=checker.artifact.sha256,
        data=str(data) if data is not None else "random data",
        data_is_random=data is None,
        subjects=tuple(subjects),
        layers=found,
        notes=tuple(notes),
        alarms=(
            *weight_alarms(checker.model),
            *(alarm for subject in subjects for alarm in accuracy_alarms(subject.outputs)),
        ),
    )
