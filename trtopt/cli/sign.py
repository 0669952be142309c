"""`trtopt sign`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(
    epilog="Make a key pair: openssl genpkey -algorithm ed25519 -out signing.pem; "
    "openssl pkey -in signing.pem -pubout -out signer.pem"
)
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--key",
    required=True,
    type=click.Path(exists=True, path_type=Path),
    envvar="TRTOPT_SIGN_WITH",
    show_envvar=True,
    metavar="FILE",
    help="Ed25519 private key (PEM).",
)
def sign(folder: Path, key: Path) -> None:
    """Sign the build FOLDER: its manifest, which names every file by its hash.

    Anyone with the public key can check it: trtopt verify FOLDER --signer PUBLIC_KEY.

    Where $TRTOPT_SIGN_WITH names a private key, builds are signed as they are made. Where $TRTOPT_SIGNER
    names a public key, only folders signed by its owner are loaded.
    """
    from trtopt.cli.console import say
    from trtopt.report.verifying import check_lines
    from trtopt.workflows.build.rebuild import sign as run

    say(*check_lines(str(folder), run(folder, key)))
