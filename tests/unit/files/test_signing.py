"""Keys of every kind that a user may give, and signatures of every kind that a folder may bear."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from tests.support.key_files import key_pair
from trtopt.errors import SignatureError, UsageError
from trtopt.files.signing import (
    KEY_VARIABLE,
    SIGNER_VARIABLE,
    check_signature,
    read_signer,
    read_signing_key,
    signature_of,
    trusted_signer,
)

CONTENT = b'{"schema": "trtopt.build/5"}'


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return key_pair(tmp_path / "own")


def encrypted(private: Path) -> bytes:
    key = load_pem_private_key(private.read_bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"a passphrase"))


def test_a_signature_holds_for_its_content_and_signer_alone(keys: tuple[Path, Path], tmp_path: Path) -> None:
    private, public = keys
    line = signature_of(CONTENT, read_signing_key(private)).encode()
    check_signature("d", CONTENT, line, read_signer(public))
    with pytest.raises(SignatureError, match="its manifest has changed since it was signed"):
        check_signature("d", CONTENT + b" ", line, read_signer(public))
    with pytest.raises(SignatureError, match="is signed by another key"):
        check_signature("d", CONTENT, line, read_signer(key_pair(tmp_path / "other")[1]))


def test_a_signature_with_its_signers_name_exchanged_is_refused(
    keys: tuple[Path, Path], tmp_path: Path
) -> None:
    forger, _ = key_pair(tmp_path / "forger")
    trusted = read_signer(keys[1])
    scheme, _, proof = signature_of(CONTENT, read_signing_key(forger)).split()
    with pytest.raises(SignatureError, match="has changed since"):
        check_signature("d", CONTENT, f"{scheme} {trusted.text} {proof}\n".encode(), trusted)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (None, "is not signed"),
        (b"hmac-sha256 " + b"0" * 64 + b"\n", r"shared key \(HMAC\) of an earlier trtopt"),
        (b"", "manifest.sig is damaged"),
        (b"ed25519 only-two", "manifest.sig is damaged"),
        (b"ed25519 a b c", "manifest.sig is damaged"),
        (b"ed25519 KEY not*base64", "manifest.sig is damaged"),
        (b"ed448 KEY AAAA", "manifest.sig is damaged"),
        (b"\xff\xfe\x00", "manifest.sig is damaged"),
        (b"ed25519 KEY AAAA", "is signed by another key"),
    ],
)
def test_a_signature_that_is_none_is_refused(
    keys: tuple[Path, Path], line: bytes | None, reason: str
) -> None:
    with pytest.raises(SignatureError, match=reason):
        check_signature("d", CONTENT, line, read_signer(keys[1]))


def test_a_key_that_cannot_be_used_is_refused_with_what_it_is(
    keys: tuple[Path, Path], tmp_path: Path
) -> None:
    private, public = keys
    rsa = generate_private_key(65537, 2048)
    (tmp_path / "rsa.pem").write_bytes(rsa.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "rsa.pub").write_bytes(
        rsa.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    (tmp_path / "encrypted.pem").write_bytes(encrypted(private))
    (tmp_path / "text").write_text("a key of sixteen bytes or more")
    for read, name, reason in (
        (read_signing_key, "rsa.pem", "not of Ed25519"),
        (read_signing_key, "encrypted.pem", "is encrypted"),
        (read_signing_key, "text", "is not a private key in PEM format"),
        (read_signing_key, public.name, "is a public key"),
        (read_signing_key, "missing", "cannot be read as a key"),
        (read_signing_key, ".", "is not a file"),
        (read_signer, "rsa.pub", "not of Ed25519"),
        (read_signer, "text", "is not a public key in PEM format"),
        (read_signer, private.name, "is a private key"),
        (read_signer, "encrypted.pem", "is a private key"),
        (read_signer, "missing", "cannot be read as a key"),
    ):
        with pytest.raises(UsageError, match=reason):
            read(tmp_path / name)


def test_a_private_key_that_others_can_read_gives_one_warning(
    keys: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    private, _ = keys
    with caplog.at_level(logging.WARNING, logger="trtopt"):
        read_signing_key(private)
        assert not caplog.records
        shared = private.rename(private.with_name("shared.pem"))
        shared.chmod(0o640)
        read_signing_key(shared)
        read_signing_key(shared)
    assert [record.getMessage() for record in caplog.records] == [
        f"{shared}: other users can read this private key; run: chmod 600 {shared}"
    ]


def test_the_environment_names_whom_to_trust(
    keys: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = keys
    assert trusted_signer() is None
    monkeypatch.setenv(SIGNER_VARIABLE, str(public))
    expected = read_signer(public).text
    assert (signer := trusted_signer()) is not None
    assert signer.text == expected
    monkeypatch.setenv(KEY_VARIABLE, str(private))
    assert trusted_signer() == read_signer(public)
    monkeypatch.delenv(SIGNER_VARIABLE)
    assert (signer := trusted_signer()) is not None
    assert signer.text == expected
    monkeypatch.setenv(SIGNER_VARIABLE, str(key_pair(tmp_path / "other")[1]))
    with pytest.raises(UsageError, match="is not the public key of"):
        trusted_signer()


def test_the_shared_key_of_earlier_versions_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTOPT_SIGNING_KEY", "0123456789abcdef")
    with pytest.raises(UsageError, match=r"\(HMAC\) are no longer supported") as refused:
        trusted_signer()
    assert "0123456789abcdef" not in str(refused.value)


def test_without_the_package_the_install_line_is_named(keys: tuple[Path, Path]) -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from pathlib import Path\n"
        "from trtopt.errors import BackendMissingError\n"
        "from trtopt.files.signing import read_signer, trusted_signer\n"
        "assert trusted_signer() is None\n"
        "try: read_signer(Path(sys.argv[1]))\n"
        "except BackendMissingError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, keys[1]], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "signatures: cryptography is not installed\n  → pip install cryptography\n"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_keys_and_signatures_are_openssls_too(tmp_path: Path) -> None:
    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, timeout=60, capture_output=True)

    openssl("genpkey", "-algorithm", "ed25519", "-out", "signing.pem")
    openssl("pkey", "-in", "signing.pem", "-pubout", "-out", "signer.pem")
    key, signer = read_signing_key(tmp_path / "signing.pem"), read_signer(tmp_path / "signer.pem")
    assert key.signer.text == signer.text
    (tmp_path / "manifest.json").write_bytes(CONTENT)
    (tmp_path / "proof").write_bytes(key.key.sign(CONTENT))
    command = ("pkeyutl", "-verify", "-pubin", "-inkey", "signer.pem", "-rawin", "-in", "manifest.json")
    openssl(*command, "-sigfile", "proof")
