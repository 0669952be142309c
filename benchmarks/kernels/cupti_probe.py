"""What CUPTI's activity API does on this machine, through cupti-python; one step in one process.

    python benchmarks/kernels/cupti_probe.py OUT.json          # all steps, each for 40 s at most

A step that fails, hangs or dies is told with its traceback, and the others run. The kernels are of PTX that
the driver compiles: neither TensorRT nor NVRTC is needed.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib.metadata
import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LIMIT_S = 40
_ELEMENTS = 1 << 20
_PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry add_one(.param .u64 data) {
  .reg .b32 %r<6>; .reg .f32 %f<3>; .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [data]; cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r4, %r1, %r2, %r3;
  mul.wide.s32 %rd3, %r4, 4; add.s64 %rd4, %rd2, %rd3;
  ld.global.f32 %f1, [%rd4]; add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%rd4], %f2; ret;
}
"""


class Gpu:
    """A context, a stream, memory and one kernel."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        self.call(driver.cuInit(0))
        device = self.call(driver.cuDeviceGet(0))
        self.context = self.call(driver.cuDevicePrimaryCtxRetain(device))
        self.call(driver.cuCtxSetCurrent(self.context))
        module = self.call(driver.cuModuleLoadData(_PTX + b"\0"))
        self.kernel = self.call(driver.cuModuleGetFunction(module, b"add_one"))
        self.stream = self.call(driver.cuStreamCreate(1))  # non-blocking: does not wait for the default one
        self.memory = self.call(driver.cuMemAlloc(4 * _ELEMENTS))
        self.other = self.call(driver.cuMemAlloc(4 * _ELEMENTS))

    def call(self, result: tuple[Any, ...]) -> Any:
        """The value of a driver's call."""
        status, *values = result
        if int(status):
            raise RuntimeError(f"driver: {status}")
        return values[0] if values else None

    def launch(self, blocks: int = 256) -> None:
        """The kernel, once."""
        arguments = ((int(self.memory),), (ctypes.c_void_p,))
        launched = self.driver.cuLaunchKernel(
            self.kernel, blocks, 1, 1, 256, 1, 1, 0, self.stream, arguments, 0
        )
        self.call(launched)

    def work(self) -> None:
        """A memset, two kernels and a copy."""
        self.call(self.driver.cuMemsetD32Async(self.memory, 0, _ELEMENTS, self.stream))
        self.launch()
        self.launch(512)
        self.call(self.driver.cuMemcpyDtoDAsync(self.other, self.memory, 4 * _ELEMENTS, self.stream))

    def wait(self) -> None:
        """For the stream."""
        self.call(self.driver.cuStreamSynchronize(self.stream))

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """Replays a CUDA graph of `work`."""
        driver = self.driver
        self.call(driver.cuStreamBeginCapture(self.stream, driver.CUstreamCaptureMode(0)))
        work()
        graph = self.call(driver.cuStreamEndCapture(self.stream))
        executable = self.call(driver.cuGraphInstantiate(graph, 0))

        def replay() -> None:
            self.call(driver.cuGraphLaunch(executable, self.stream))
            self.wait()

        return replay


class Recording:
    """Records of the kinds asked for, as plain values."""

    def __init__(self, *kinds: str) -> None:
        from cupti import cupti

        self.cupti = cupti
        self.kinds = kinds
        self.records: list[dict[str, Any]] = []
        cupti.activity_register_callbacks(lambda: (8 << 20, 0), self._receive)
        for kind in kinds:
            cupti.activity_enable(int(getattr(cupti.ActivityKind, kind)))

    def _receive(self, activities: list[Any]) -> None:
        self.records += [fields(one) for one in activities]

    def flushed(self) -> list[dict[str, Any]]:
        """What has come since the last call."""
        self.cupti.activity_flush_all(1)
        found, self.records = self.records, []
        for one in found:
            with suppress(ValueError, KeyError):
                one["kind"] = self.cupti.ActivityKind(one["kind"]).name
        return found

    def dropped(self) -> int:
        """Records lost since the last call."""
        count = ctypes.c_size_t()
        self.cupti.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        return count.value


def fields(one: Any) -> dict[str, Any]:
    """All that a record says, by name; what cannot be read or kept is told by its type."""
    found: dict[str, Any] = {}
    for name in dir(one):
        if name.startswith("_") or name in ("ptr", "from_data", "from_ptr"):
            continue
        try:
            value = getattr(one, name)
        except Exception as error:  # noqa: BLE001  # any getter of an extension may fail in its own way
            found[name] = f"{type(error).__name__}: {error}"
            continue
        if not callable(value):
            found[name] = plain(value)
    return found


def plain(value: Any) -> Any:
    """A value that JSON keeps."""
    if isinstance(value, bool | float | str) or value is None:
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    try:
        return int(value)
    except (TypeError, ValueError):
        return f"{type(value).__name__}: {str(value)[:80]}"


def shown(records: list[dict[str, Any]], most: int = 12) -> dict[str, Any]:
    """How many of each kind, and the first of them."""
    return {"counts": Counter(str(one.get("kind")) for one in records), "first": records[:most]}


# ── steps ───────────────────────────────────────────────────────────────────────────────────────────────


def step_installed() -> dict[str, Any]:
    """Versions, libraries, and what cupti-python offers."""
    from cupti import cupti

    names = [name for name in dir(cupti) if not name.startswith("_")]
    found: dict[str, Any] = {
        "python": sys.version,
        "packages": {
            name: version_of(name) for name in ("cupti-python", "cuda-bindings", "nvtx", "tensorrt")
        },
        "offers": [name for name in names if not name.startswith("Activity")],
        "activity_kinds": {one.name: int(one) for one in cupti.ActivityKind},
        "errors": repr(getattr(cupti, "cuptiError", None)),
        "libraries": mapped("cupti"),
        "processor_may": Path("/proc/driver/nvidia/params").is_file()
        and [
            line
            for line in Path("/proc/driver/nvidia/params").read_text().splitlines()
            if "RmProfiling" in line or "Restrict" in line
        ],
    }
    for name in ("get_version", "get_timestamp", "get_thread_id_type"):
        with telling(found, name):
            found[name] = plain(getattr(cupti, name)())
    with telling(found, "result_names"):
        found["result_names"] = {one.name: int(one) for one in cupti.Result}
    return found


def step_errors() -> dict[str, Any]:
    """How exceptions look: an impossible kind, and a second subscriber."""
    from cupti import cupti

    Gpu()
    found: dict[str, Any] = {}
    with telling(found, "enable 9999"):
        cupti.activity_enable(9999)
    with telling(found, "enable PC_SAMPLING"):
        cupti.activity_enable(int(cupti.ActivityKind.PC_SAMPLING))
    with telling(found, "first subscriber"):
        found["subscriber"] = plain(cupti.subscribe(lambda *_: None, {}))
    with telling(found, "second subscriber"):
        cupti.subscribe(lambda *_: None, {})
    return found


def step_kinds() -> dict[str, Any]:
    """Which kinds can be enabled, and disabled again."""
    from cupti import cupti

    Gpu()
    cupti.activity_register_callbacks(lambda: (8 << 20, 0), lambda activities: None)
    found: dict[str, Any] = {}
    for kind in cupti.ActivityKind:
        if kind.name in ("INVALID", "COUNT", "FORCE_INT"):
            continue
        found[kind.name] = "enabled"
        with telling(found, kind.name):
            cupti.activity_enable(int(kind))
            cupti.activity_disable(int(kind))
    return found


def step_plain() -> dict[str, Any]:
    """Records of plain launches; enabled once the context is there."""
    gpu = Gpu()
    recording = Recording("CONCURRENT_KERNEL", "MEMCPY", "MEMSET")
    gpu.work()
    gpu.wait()
    found = shown(recording.flushed())
    for _ in range(1000):
        gpu.launch()
    gpu.wait()
    found["of 1000 launches"] = shown(recording.flushed(), 0)["counts"]
    with telling(found, "dropped"):
        found["dropped"] = recording.dropped()
    return found


def step_enabled_before_the_context() -> dict[str, Any]:
    """The same, enabled before CUDA is initialised."""
    recording = Recording("CONCURRENT_KERNEL", "MEMCPY", "MEMSET")
    gpu = Gpu()
    gpu.work()
    gpu.wait()
    return shown(recording.flushed(), 0)


def step_graph() -> dict[str, Any]:
    """Records of a graph's replays: captured before and after recording began."""
    gpu = Gpu()
    gpu.work()
    before = gpu.captured(gpu.work)
    before()
    recording = Recording("CONCURRENT_KERNEL", "MEMCPY", "MEMSET")
    found: dict[str, Any] = {}
    before()
    found["captured before"] = shown(recording.flushed())
    after = gpu.captured(gpu.work)
    recording.flushed()
    after()
    found["captured after"] = shown(recording.flushed())
    after()
    found["second replay"] = shown(recording.flushed())
    return found


def step_graph_as_a_whole() -> dict[str, Any]:
    """GRAPH_TRACE: one record a replay."""
    gpu = Gpu()
    gpu.work()
    recording = Recording("GRAPH_TRACE")
    replay = gpu.captured(gpu.work)
    replay()
    return shown(recording.flushed())


def step_calls() -> dict[str, Any]:
    """Calls of the driver beside kernels: the same correlation ids, and names by cbid."""
    gpu = Gpu()
    recording = Recording("CONCURRENT_KERNEL", "MEMCPY", "MEMSET", "DRIVER", "SYNCHRONIZATION")
    gpu.work()
    gpu.wait()
    records = recording.flushed()
    found = shown(records, 16)
    domain = int(recording.cupti.CallbackDomain.DRIVER_API)
    with telling(found, "names"):
        found["names"] = [
            recording.cupti.get_callback_name(domain, one["cbid"])
            for one in records
            if one["kind"] == "DRIVER"
        ]
    return found


def step_external() -> dict[str, Any]:
    """External correlation ids pushed around launches, plain and captured."""
    gpu = Gpu()
    recording = Recording("CONCURRENT_KERNEL", "EXTERNAL_CORRELATION", "DRIVER")
    cupti = recording.cupti
    kind = int(cupti.ExternalCorrelationKind.CUSTOM0)

    def work() -> None:
        for number in (11, 22):
            cupti.activity_push_external_correlation_id(kind, number)
            gpu.launch(64 * number)
            cupti.activity_pop_external_correlation_id(kind)

    work()
    gpu.wait()
    found = {"plain": shown(recording.flushed(), 16)}
    replay = gpu.captured(work)
    found["capturing"] = shown(recording.flushed(), 16)
    replay()
    found["replay"] = shown(recording.flushed(), 16)
    return found


def step_nvtx() -> dict[str, Any]:
    """MARKER records of NVTX ranges, with CUPTI as what NVTX injects."""
    gpu = Gpu()
    recording = Recording("CONCURRENT_KERNEL", "MARKER", "MARKER_DATA", "DRIVER")
    library = ctypes.CDLL(None)
    found: dict[str, Any] = {"injected": os.environ.get("NVTX_INJECTION64_PATH")}
    with telling(found, "package"):
        import nvtx

        with nvtx.annotate("outer", domain="probe"), nvtx.annotate("inner", domain="probe"):
            gpu.launch()
    gpu.wait()
    return {
        **shown(recording.flushed(), 16),
        **found,
        "exported": hasattr(library, "InitializeInjectionNvtx2"),
    }


def step_again() -> dict[str, Any]:
    """Registering and enabling a second time, after kinds were disabled."""
    gpu = Gpu()
    found: dict[str, Any] = {}
    for turn in ("first", "second"):
        recording = Recording("CONCURRENT_KERNEL")
        gpu.launch()
        gpu.wait()
        found[turn] = shown(recording.flushed(), 0)
        recording.cupti.activity_disable(int(recording.cupti.ActivityKind.CONCURRENT_KERNEL))
        gpu.launch()
        gpu.wait()
        found[f"{turn}, disabled"] = shown(recording.flushed(), 0)
    return found


def step_clock() -> dict[str, Any]:
    """CUPTI's time beside the host's clocks, and kernels' times within them."""
    gpu = Gpu()
    recording = Recording("CONCURRENT_KERNEL")
    gpu.launch()
    gpu.wait()
    recording.flushed()
    rows = []
    for _ in range(5):
        begin = clocks(recording.cupti)
        gpu.launch()
        gpu.wait()
        end = clocks(recording.cupti)
        (kernel,) = recording.flushed()
        rows.append({"begin": begin, "start": kernel["start"], "end": kernel["end"], "after": end})
        time.sleep(0.2)
    return {"rows": rows}


def clocks(cupti: Any) -> dict[str, int]:
    """Nanoseconds of all clocks."""
    return {
        "cupti": int(cupti.get_timestamp()),
        "realtime": time.time_ns(),
        "monotonic": time.monotonic_ns(),
        "raw": time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW),
    }


def step_cost() -> dict[str, Any]:
    """Microseconds a replay of 100 kernels takes without and with records."""
    gpu = Gpu()

    def work() -> None:
        for _ in range(100):
            gpu.launch()

    def median_us(run: Callable[[], None]) -> float:
        times = []
        for _ in range(50):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return sorted(times)[25] * 1e6

    def plain_run() -> None:
        work()
        gpu.wait()

    found = {"plain": median_us(plain_run), "graph": median_us(gpu.captured(work))}
    recording = Recording("CONCURRENT_KERNEL")
    found |= {"plain, recorded": median_us(plain_run), "graph, recorded": median_us(gpu.captured(work))}
    records = recording.flushed()
    found["records"] = len(records)
    last = sorted(one["start"] for one in records)[-100:]
    found["gap of starts, graph"] = (last[-1] - last[0]) / 99e3 if len(last) == 100 else None
    return found


def step_own() -> dict[str, Any]:
    """trtopt's own recorder on trtopt's own device."""
    from trtopt.device.backends import open_cuda_device

    device = open_cuda_device()
    recorder = device.activity_recorder()
    stream, buffer, host = device.stream(), device.device_buffer(1 << 20), device.pinned_buffer(1 << 20)

    def run() -> None:
        device.copy_to_device(buffer, host, stream)
        stream.synchronize()

    found = [str(one) for one in recorder.record(run).activities]
    graph = device.capture(stream, lambda: device.copy_to_device(buffer, host, stream))

    def replay() -> None:
        graph.launch()
        stream.synchronize()

    replayed = [str(one) for one in recorder.record(replay).activities]
    return {"plain": found, "graph": replayed, "dropped": recorder.dropped(), "device": str(device.info)}


# ── all steps ───────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def telling(found: dict[str, Any], name: str) -> Iterator[None]:
    """Keep what is raised, and go on."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # whatever CUPTI raises is what is asked
        found[name] = f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def version_of(package: str) -> str | None:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def mapped(word: str) -> list[str]:
    """Files in this process's memory whose path has the word."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines if word in line}
    return sorted(paths)


def library_of_cupti() -> str | None:
    """The library that cupti-python brings, for NVTX to inject."""
    for folder in sys.path:
        for place in sorted(Path(folder or ".").glob("nvidia/cuda_cupti/lib/libcupti.so*")):
            return str(place)
    return None


STEPS: dict[str, Callable[[], dict[str, Any]]] = {
    name.removeprefix("step_"): step for name, step in sorted(globals().items()) if name.startswith("step_")
}


def run_step(name: str) -> dict[str, Any]:
    """A step in a process of its own."""
    began = time.monotonic()
    library = library_of_cupti()
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
    if name == "nvtx" and library:
        environment["NVTX_INJECTION64_PATH"] = library
    command = [sys.executable, __file__, "--step", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        told = (error.stderr or b"")[-3000:].decode(errors="replace")
        return {"failed": f"no end within {LIMIT_S} s", "stderr": told}
    result: dict[str, Any] = {"rc": done.returncode, "seconds": round(time.monotonic() - began, 1)}
    last = done.stdout.strip().splitlines()[-1:] or [""]
    try:
        result["found"] = json.loads(last[0])
    except ValueError:
        result["failed"] = f"no result: {done.stdout[-1000:]}"
    if done.returncode or done.stderr.strip():
        result["stderr"] = done.stderr[-4000:]
    return result


def probe(out: Path) -> None:
    """All steps; the file is written after each."""
    result: dict[str, Any] = {"library": library_of_cupti()}
    for name in ("installed", *(one for one in STEPS if one != "installed")):
        result[name] = run_step(name)
        out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"probe {name}: {result[name].get('failed') or result[name]['rc']}", flush=True)


def main() -> None:
    """All steps, or one of them."""
    if sys.argv[1] != "--step":
        probe(Path(sys.argv[1]))
        return
    faulthandler.dump_traceback_later(LIMIT_S - 5, exit=True)
    try:
        found = STEPS[sys.argv[2]]()
    except Exception:  # noqa: BLE001  # it is told as it is
        traceback.print_exc()
        raise SystemExit(1) from None
    print(json.dumps(found), flush=True)
    sys.stdout.flush()
    os._exit(0)  # CUPTI's own ending is none of the steps


if __name__ == "__main__":
    main()
