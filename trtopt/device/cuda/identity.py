"""Which GPU this is: the binding's word, and NVML's where it is there."""

from __future__ import annotations

import uuid as uuids

from trtopt.records import DeviceInfo


def describe_gpu(
    *,
    name: str,
    capability: tuple[int, int],
    memory_bytes: int,
    cuda: int,
    binding: str,
    uuid: bytes | None,
    pci_bus_id: str | None = None,
) -> DeviceInfo:
    """A GPU's record. `cuda` is the driver's CUDA version as CUDA encodes it: 13000 for 13.0.

    The UUID comes from the binding (16 bytes) or, by PCI bus id, from NVML.
    """
    known_uuid, driver = _from_nvml(pci_bus_id)
    return DeviceInfo(
        kind="gpu",
        name=name,
        uuid=f"GPU-{uuids.UUID(bytes=uuid)}" if uuid is not None else known_uuid,
        compute_capability=f"{capability[0]}.{capability[1]}",
        memory_bytes=memory_bytes,
        driver=driver,
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
        binding=binding,
    )


def _from_nvml(pci_bus_id: str | None) -> tuple[str | None, str | None]:
    """(UUID, driver version); None for what NVML cannot tell."""
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        if pci_bus_id is None:
            return None, driver
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id))), driver
    except pynvml.NVMLError:
        return None, None
