from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the export tests need torch: pip install 'trtopt[export]'")
sys.path.insert(0, str(Path(__file__).parent))
