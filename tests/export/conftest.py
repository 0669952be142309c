from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the export tests need torch: pip install 'trtopt[export]'")
sys.path.insert(0, str(Path(__file__).parent))

from trtopt.export.export import Exported


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Exported]:
    """The collection's tiny models by name and exporter, each exported once for all tests."""
    from trtopt.device.ort.reference import open_reference
    from trtopt.errors import BackendMissingError
    from trtopt.export.export import export
    from trtopt.export.source_module import from_spec
    from trtopt.export.spec import files

    @cache
    def make(name: str, exporter: str) -> Exported:
        folder = tmp_path_factory.mktemp(f"{name}-{exporter}")
        try:
            subject = from_spec(files()[name], "tiny")
        except BackendMissingError as error:
            pytest.skip(error.problem)
        return export(subject, folder / f"{name}.onnx", open_reference, exporter=exporter)

    return make
