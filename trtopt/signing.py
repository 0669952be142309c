"""Signatures of build folders: an HMAC of the manifest, which names every file by its hash.

Whoever has the key can sign and check; it comes from the environment and is never written anywhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from trtopt.errors import ArtifactError, UsageError

KEY_VARIABLE = "TRTOPT_SIGNING_KEY"
SIGNATURE = "manifest.sig"
_PREFIX = "hmac-sha256 "
_MIN_KEY_BYTES = 16


def key() -> bytes | None:
    """The key of this environment; None if there is none.

    Raises:
        UsageError: it is too short to be one.
    """
    told = os.environb.get(KEY_VARIABLE.encode())
    if not told:
        return None
    if len(told) < _MIN_KEY_BYTES:
        raise UsageError(
            f"${KEY_VARIABLE}: a key has at least {_MIN_KEY_BYTES} bytes",
            "make one, say with: openssl rand -hex 32",
        )
    return told


def required_key() -> bytes:
    """The key of this environment.

    Raises:
        UsageError: there is none.
    """
    found = key()
    if found is None:
        raise UsageError(f"${KEY_VARIABLE} is not set", "set it to the key that is to vouch for the folder")
    return found


def signature_of(content: bytes, with_key: bytes) -> str:
    """The line that vouches for `content`."""
    return _PREFIX + hmac.new(with_key, content, hashlib.sha256).hexdigest() + "\n"


def check_signature(what: str, content: bytes, signature: bytes | None, with_key: bytes) -> None:
    """Compare in constant time.

    Raises:
        ArtifactError: there is no signature, or it is not by this key for this content.
    """
    if signature is None:
        raise ArtifactError(
            f"{what}: is not signed, and ${KEY_VARIABLE} asks for that; nothing was loaded",
            "sign it with `trtopt sign`, if you trust it; or unset the key",
        )
    if not hmac.compare_digest(signature, signature_of(content, with_key).encode()):
        raise ArtifactError(
            f"{what}: its signature does not fit it or was made with another key; nothing was loaded",
            "get the folder again from where it was signed",
        )
