"""Ed25519 signatures of build folders: of the manifest, which names every file by its hash.

The owner of the private key signs; everyone with the public key can check. `manifest.sig` holds one line:
`ed25519`, the signer's public key and the signature of manifest.json's bytes, both in base64.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from trtopt.errors import BackendMissingError, SignatureError, UsageError
from trtopt.files.bounded_reading import read_bounded, reason_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

KEY_VARIABLE = "TRTOPT_SIGN_WITH"
"""Names the file of a private key: builds are signed with it as they are made."""
SIGNER_VARIABLE = "TRTOPT_SIGNER"
"""Names the file of a public key: only folders that its owner has signed are loaded."""
SIGNATURE = "manifest.sig"

_SCHEME = "ed25519"
_OLD_VARIABLE = "TRTOPT_SIGNING_KEY"
_OLD_SCHEME = "hmac-sha256"
_MAX_KEY_BYTES = 64 * 1024
_NEW_KEY = "make one: openssl genpkey -algorithm ed25519 -out signing.pem"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Signer:
    """A public key, and the file it came from."""

    path: Path
    key: Ed25519PublicKey

    @property
    def text(self) -> str:
        """The key itself, in base64."""
        return base64.b64encode(self.key.public_bytes_raw()).decode()


@dataclass(frozen=True)
class SigningKey:
    """A private key, and the file it came from."""

    path: Path
    key: Ed25519PrivateKey

    @property
    def signer(self) -> Signer:
        """Its public half."""
        return Signer(self.path, self.key.public_key())


def signing_key() -> SigningKey | None:
    """The private key that the environment names; None if it names none.

    Raises:
        UsageError, BackendMissingError: see `read_signing_key`.
    """
    _refuse_shared_key()
    path = os.environ.get(KEY_VARIABLE)
    return read_signing_key(Path(path)) if path else None


def trusted_signer() -> Signer | None:
    """The only signer whose folders are loaded, as the environment says; None: signatures are not required.

    A user who signs builds trusts their own signature, so a signing key alone implies its public half.

    Raises:
        UsageError: the two keys do not belong together; or see `read_signer`.
        BackendMissingError: see `read_signer`.
    """
    signing = signing_key()
    path = os.environ.get(SIGNER_VARIABLE)
    if not path:
        return signing.signer if signing else None
    signer = read_signer(Path(path))
    if signing is not None and signing.signer.text != signer.text:
        raise UsageError(
            f"${SIGNER_VARIABLE} ({path}) is not the public key of ${KEY_VARIABLE} ({signing.path}): "
            "builds would be signed and then refused",
            f"unset one of them, or write the public key: {_public_half(signing.path)}",
        )
    return signer


def _refuse_shared_key() -> None:
    """Ignored, a variable that used to keep unsigned folders out would let them in."""
    if os.environ.get(_OLD_VARIABLE):
        raise UsageError(
            f"${_OLD_VARIABLE} is set: signatures with a shared key (HMAC) are no longer supported",
            f"unset it; sign folders again with `trtopt sign FOLDER --key FILE`, and set ${SIGNER_VARIABLE} "
            "to the file of the public key",
        )


def read_signing_key(path: Path) -> SigningKey:
    """Read a private key (PEM, not encrypted); logs a warning if other users can read it too.

    Raises:
        UsageError: the file cannot be read, or holds something else.
        BackendMissingError: the package `cryptography` is not installed.
    """
    _need_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _key_file(path)
    if b"PUBLIC KEY" in content:
        raise UsageError(f"{path}: is a public key, which can only check", "give the private key")
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError:  # `cryptography` raises it if a password is needed
        raise UsageError(
            f"{path}: the private key is encrypted, and trtopt asks for no passphrase",
            f"decrypt it into a file that only you can read: openssl pkey -in {path} -out signing.pem",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(f"{path}: is not a private key in PEM format", _NEW_KEY) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path}: is a private key, but not of Ed25519", _NEW_KEY)
    _warn_if_others_can_read(path)
    return SigningKey(path, key)


def read_signer(path: Path) -> Signer:
    """Read a public key (PEM).

    Raises:
        UsageError: the file cannot be read, or holds something else.
        BackendMissingError: the package `cryptography` is not installed.
    """
    _need_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content = _key_file(path)
    if b"PRIVATE KEY" in content:
        raise UsageError(
            f"{path}: is a private key, which only the signer needs",
            f"write its public key, and pass that: {_public_half(path)}",
        )
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(
            f"{path}: is not a public key in PEM format", "get the signer's, written by: openssl pkey -pubout"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise UsageError(f"{path}: is a public key, but not of Ed25519", "get the signer's Ed25519 key")
    return Signer(path, key)


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401  (what follows imports parts of it)
    except ImportError as error:
        raise BackendMissingError(
            f"signatures: {error.name or error} is not installed", "pip install cryptography"
        ) from None


def _key_file(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():
            raise UsageError(
                f"{path}: is not a file", "give a key in PEM format"
            )  # a pipe would be waited for
        return read_bounded(path, _MAX_KEY_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read as a key: {reason_of(error)}", "give a key in PEM format"
        ) from None


@cache  # once per process and file: a command reads its key more than once
def _warn_if_others_can_read(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        _log.warning("%s: other users can read this private key; run: chmod 600 %s", path, path)


def _public_half(path: Path) -> str:
    return f"openssl pkey -in {path} -pubout -out signer.pem"


def signature_of(content: bytes, key: SigningKey) -> str:
    """The line that `manifest.sig` holds for a manifest of this `content`."""
    return f"{_SCHEME} {key.signer.text} {base64.b64encode(key.key.sign(content)).decode()}\n"


def check_signature(what: str, content: bytes, signature: bytes | None, signer: Signer) -> None:
    """Check that `signer` has signed `content`; `what` names it in messages.

    Raises:
        SignatureError: there is no signature, or it is damaged, by another key, of another content, or of
            the scheme of earlier versions.
    """
    from cryptography.exceptions import InvalidSignature

    if signature is None:
        raise SignatureError(
            f"{what}: is not signed, and only what {signer.path} signs is trusted; nothing was loaded",
            f"if you trust it, sign it: trtopt sign {what} --key FILE; or do not require a signer",
        )
    scheme, *parts = signature.decode(errors="replace").split() or [""]
    if scheme == _OLD_SCHEME:
        raise SignatureError(
            f"{what}: is signed with the shared key (HMAC) of an earlier trtopt, which proves nothing to "
            "others; nothing was loaded",
            f"check its origin, then sign it again: trtopt sign {what} --key FILE",
        )
    try:
        if scheme != _SCHEME:
            raise ValueError(scheme)
        key, signed = parts
        proof = base64.b64decode(signed, validate=True)
    except (ValueError, binascii.Error):
        raise SignatureError(
            f"{what}: {SIGNATURE} is damaged; nothing was loaded", "get the folder again from its signer"
        ) from None
    if key != signer.text:
        raise SignatureError(
            f"{what}: is signed by another key than {signer.path}: {key}, not {signer.text}; "
            "nothing was loaded",
            "get the public key of the folder's signer, if you trust them",
        )
    try:
        signer.key.verify(proof, content)
    except InvalidSignature:
        raise SignatureError(
            f"{what}: its manifest has changed since it was signed; nothing was loaded",
            "get the folder again from its signer",
        ) from None
