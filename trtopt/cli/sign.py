"""`trtopt sign`."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def sign(folder: Path) -> None:
    """Vouch for the build FOLDER with the key in $TRTOPT_SIGNING_KEY.

    Where that key is set, folders that it has not signed are not loaded, and builds are signed when made.
    """
    from trtopt.cli.console import say
    from trtopt.pipeline.rebuild import sign as run
    from trtopt.report.verifying import check_lines

    say(*check_lines(str(folder), run(folder)))
