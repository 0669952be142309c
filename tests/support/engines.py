"""Measured engines that the tests make up."""

from trtopt.serving.planning.setups import Curve, EngineMemory, MeasuredEngine

MIB = 1 << 20


def engine(
    batch: int,
    ms: float | dict[int, float],
    *,
    family: str = "fp16",
    length: int = 0,
    among_two: float | None = None,
    memory_mib: int | None = 100,
) -> MeasuredEngine:
    """For one batch size that takes `ms`, or for 1 to `batch` with times by batch; no two samples differ.

    `among_two` is its latency where two batches run.
    """
    alone = ms if isinstance(ms, dict) else {batch: ms}
    levels: dict[int, dict[int, list[float]]] = {1: {size: [value] * 8 for size, value in alone.items()}}
    if among_two is not None:
        levels[2] = {batch: [among_two] * 8}
    low = 1 if isinstance(ms, dict) else batch
    name = f"{family} batch{low}-{batch}" if low != batch else f"{family} batch{batch}"
    memory = EngineMemory(memory_mib * MIB, 10 * MIB) if memory_mib is not None else None
    told = f" length{length}" if length else ""
    return MeasuredEngine(name + told, name + told, family, {length: (Curve(low, batch, levels),)}, memory)
