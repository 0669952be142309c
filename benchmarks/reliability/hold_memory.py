"""Hold the GPU's memory but for some, until ended.

python benchmarks/reliability/hold_memory.py MIB_TO_LEAVE
"""

from __future__ import annotations

import sys
import time

from trtopt.device.backends import open_cuda_device

MIB = 1 << 20


def main() -> None:
    """Take, say so, wait."""
    device = open_cuda_device()
    memory = device.device_memory()
    if memory is None:
        sys.exit("the GPU does not tell its memory")
    held = device.device_buffer(memory.free_bytes - int(sys.argv[1]) * MIB)
    print(f"{held.nbytes // MIB:,} MiB held", flush=True)
    time.sleep(3600)


if __name__ == "__main__":
    main()
