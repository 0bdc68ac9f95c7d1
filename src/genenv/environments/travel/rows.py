"""Comma-separated values, row by row, with the line at which each row begins."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping

from genenv.errors import first_line


class BadRow(ValueError):
    """A row that cannot be read."""

    def __init__(self, line: int, problem: str) -> None:
        """Say where and why.

        Args:
            line: at which it begins, from 1.
            problem: what is wrong with it.
        """
        super().__init__(problem)
        self.line = line


def rows(lines: Iterable[str], *, least: int = 0) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Each row below the header, and the line at which it begins; a row may be of many lines.

    Args:
        lines: of a file, each with its end.
        least: columns that there must be.

    Raises:
        BadRow: there are fewer, or a row is cut off or has more or fewer cells than the header.
    """
    reader = csv.reader(lines, strict=True)
    line = 1
    try:
        header = next(reader, list[str]())
        if len(header) < least:
            raise BadRow(line, f"{len(header)} columns, not {least}")
        line = reader.line_num + 1
        for cells in reader:
            if len(cells) != len(header):
                raise BadRow(line, f"{len(cells)} cells, not {len(header)}")
            yield line, dict(zip(header, cells, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise BadRow(line, first_line(error)) from None
