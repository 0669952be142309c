"""Files in Ray's object store, by their SHA-256."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from trtopt.errors import DeviceError
from trtopt.executors.ray.library import load_ray
from trtopt.files.bounded_reading import sha256_of


class Stored:
    """A file in the object store; it leaves when nothing holds this any more."""

    def __init__(self, ref: Any) -> None:
        self.ref = ref


class ObjectStore:
    """The driver's files, each stored once however many jobs read it."""

    def __init__(self) -> None:
        self._ray = load_ray()
        self._hashes: dict[tuple[str, int, int, int], str] = {}
        self._stored: WeakValueDictionary[str, Stored] = WeakValueDictionary()
        self._lock = threading.Lock()

    def hash_of(self, path: Path) -> str:
        """A file's SHA-256, computed again only if the file has changed."""
        status = path.stat()
        stamp = (str(path), status.st_ino, status.st_size, status.st_mtime_ns)
        if stamp not in self._hashes:
            self._hashes[stamp] = sha256_of(path)
        return self._hashes[stamp]

    def store(self, sha256: str, file: Path) -> Stored:
        """Put a file there, unless it is."""
        with self._lock:
            stored = self._stored.get(sha256)
            if stored is None:
                stored = self._stored[sha256] = Stored(self._put(file))
            return stored

    def _put(self, file: Path) -> Any:
        try:
            return self._ray.put(file.read_bytes())
        except (self._ray.exceptions.ObjectStoreFullError, self._ray.exceptions.OutOfDiskError):
            raise _is_full(str(file)) from None


def fetched(ref: Any) -> bytes:
    """A file's bytes, on the node that a job runs on."""
    ray = load_ray()
    try:
        content: bytes = ray.get(ref)
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError):
        raise _is_full(f"a file of the job, on {socket.gethostname()}") from None
    return content


def _is_full(what: str) -> DeviceError:
    return DeviceError(
        f"{what}: does not fit into Ray's object store, and the disk that it would be moved to is full",
        "free space on the disk of /tmp/ray there, or start the node with a larger object store",
    )
