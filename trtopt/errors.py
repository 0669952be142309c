"""The exception tree. Every error says what is wrong and where (`problem`) and what to do (`remedy`).

TrtoptError                     exit code 1
├── UsageError                  exit code 2: flags or recipes that are wrong or contradict each other
├── ModelError                  the ONNX file
│   ├── InvalidModelError       not ONNX, truncated, empty, duplicate names, weights missing
│   ├── UnsupportedOpError      an operator that the backend or the opset does not know
│   └── FixedBatchError         exit code 2: another batch requested than the one fixed in the file
├── DataError                   input data that does not fit the model
├── BuildError                  the builder failed; the last log lines are in the message
│   ├── RefusedGraphError       TensorRT refuses the graph
│   └── TimingCacheError        a timing cache that must not be used here
├── ArtifactError               a build folder, an engine or a result file that cannot be trusted or used
│   ├── WrongPathError          exit code 2: a file or folder of the wrong kind
│   └── IncompatibleEngineError made by another flavour, version or for another GPU
├── DeviceError                 something the machine lacks, or a device call that failed
│   ├── BackendMissingError     a library is not installed
│   ├── NoGpuError              no CUDA device
│   ├── DeviceMemoryError       out of device memory
│   └── GraphCaptureError       this work cannot be captured in a CUDA graph
├── MeasurementError            nothing could be measured
├── BoundError                  exit code 3: the engine to start from misses an accuracy bound
├── PlanError                   exit code 3: no setup meets all bounds; says which bound costs what
├── ServingError                a request to `trtopt.serving` that gets no answer
│   ├── QueueFullError          rejected: the queue is full
│   ├── WorkerError             the worker that had it failed, or none is left
│   └── ClosedError             sent to a closed pool or batcher
└── OutputError                 a result that cannot be written
"""

from __future__ import annotations


class TrtoptError(Exception):
    """Base of all errors that a user can cause or meet: `problem` states it, `remedy` says what to do.

    The first line of `problem` stands by itself; details, such as a worker's last words, follow on others.
    """

    exit_code = 1

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    @property
    def summary(self) -> str:
        """`problem` without its details, for a note."""
        return self.problem.partition("\n")[0]

    def __str__(self) -> str:
        return f"{self.problem}\n  → {self.remedy}" if self.remedy else self.problem


class UsageError(TrtoptError):
    """Flags or recipes that are wrong or contradict each other."""

    exit_code = 2


class ModelError(TrtoptError):
    """Something is wrong with the ONNX file."""


class InvalidModelError(ModelError):
    """The file is not ONNX, is truncated or empty, has duplicate names or lacks its weights."""


class UnsupportedOpError(ModelError):
    """An operator that the backend, or the model's opset, does not know."""


class FixedBatchError(ModelError):
    """Another batch size was requested than the one fixed in the file."""

    exit_code = 2


class DataError(TrtoptError):
    """Input data that does not fit the model."""


class BuildError(TrtoptError):
    """The builder failed."""


class RefusedGraphError(BuildError):
    """TensorRT refuses the graph, whatever the machine: the message has its words."""


class TimingCacheError(BuildError):
    """A timing cache that must not be used here: the message says why."""


class ArtifactError(TrtoptError):
    """A build folder, engine or result file that cannot be trusted or used."""


class WrongPathError(ArtifactError):
    """A file or folder that the user named is missing or of the wrong kind."""

    exit_code = 2


class IncompatibleEngineError(ArtifactError):
    """An engine made by another flavour or version of TensorRT, or for another GPU."""


class DeviceError(TrtoptError):
    """Something the machine lacks, or a device call that failed."""


class BackendMissingError(DeviceError):
    """A library that is needed is not installed."""


class NoGpuError(DeviceError):
    """The machine has no CUDA device that can be used."""


class DeviceMemoryError(DeviceError):
    """Out of device memory."""


class GraphCaptureError(DeviceError):
    """This work cannot be captured in a CUDA graph; no remedy: the caller continues without."""


class MeasurementError(TrtoptError):
    """There was nothing could be measured."""


class BoundError(TrtoptError):
    """What everything else is measured against misses a bound itself."""

    exit_code = 3


class PlanError(TrtoptError):
    """No measured setup meets all bounds: the message says which bound costs what."""

    exit_code = 3


class ServingError(TrtoptError):
    """A request that gets no answer; what is wrong with the request itself is a DataError."""


class QueueFullError(ServingError):
    """Rejected, not accepted: as many requests are waiting as may wait."""


class WorkerError(ServingError):
    """The worker that had the request failed, or no worker is left."""


class ClosedError(ServingError):
    """The pool or batcher has been closed."""


class OutputError(TrtoptError):
    """A result cannot be written to the requested place."""


def _tree(root: type[TrtoptError]) -> dict[str, type[TrtoptError]]:
    names = {root.__name__: root}
    for child in root.__subclasses__():
        names |= _tree(child)
    return names


def rebuild(name: str, problem: str, remedy: str) -> TrtoptError:
    """The error that `name` names, as a worker process reported it; unknown names become `TrtoptError`."""
    return _tree(TrtoptError).get(name, TrtoptError)(problem, remedy)
