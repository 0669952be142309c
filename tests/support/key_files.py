"""Pairs of real Ed25519 keys, in files."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


def key_pair(stem: Path) -> tuple[Path, Path]:
    """A new private key, which only its owner may read, and its public key."""
    key = Ed25519PrivateKey.generate()
    private, public = stem.with_suffix(".pem"), stem.with_suffix(".pub.pem")
    private.touch(mode=0o600)
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public
