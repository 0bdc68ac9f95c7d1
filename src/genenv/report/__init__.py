"""The report of a run: one self-contained HTML page, made from what is on the disk."""

from __future__ import annotations

from genenv.report.page import write_report

__all__ = ["write_report"]
