"""What every result of the public functions can show of itself."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING

from trtopt.errors import BackendMissingError
from trtopt.records.base import Record, to_json

if TYPE_CHECKING:
    from pandas import DataFrame

Cell = str | int | float | bool | None
Row = dict[str, Cell]


class Result:
    """Base of the records that public functions return: as one line, a table, JSON or a data frame.

    `trtopt.results` has what is shown of each. It is loaded by its name when something is to be shown, for
    records import nothing that shows them.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        """One line: the type, and its outcome in short."""
        return f"<{type(self).__name__}: {importlib.import_module('trtopt.results').headline(self)}>"

    def table(self) -> str:
        """The text that the command line prints."""
        return str(importlib.import_module("trtopt.results").table(self))

    def rows(self) -> list[Row]:
        """The main figures with units in their names: a row for each engine, batch size, layer or node."""
        rows: list[Row] = importlib.import_module("trtopt.results").rows(self)
        return rows

    def to_dict(self) -> dict[str, object]:
        """The JSON form: the same that `--json` writes."""
        record = self.record()
        whole: dict[str, object] = json.loads(to_json(record))
        return whole

    def record(self) -> Record:
        """The record that holds the result."""
        assert isinstance(self, Record)
        return self

    def to_pandas(self) -> DataFrame:
        """`rows` as a data frame.

        Raises:
            BackendMissingError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise BackendMissingError(
                "to_pandas: pandas is not installed", "pip install pandas; or take rows(), a list of dicts"
            ) from None
        return pandas.DataFrame(self.rows())
