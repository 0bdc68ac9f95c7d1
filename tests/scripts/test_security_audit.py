"""The audit accepts what has a written reason, and nothing else."""

from __future__ import annotations

import audit


def finding(line: int, rule: str) -> dict[str, object]:
    name = "tests/tools/audited.py"
    return {"filename": name, "line_number": line, "line_range": [line], "test_id": rule, "issue_text": "x"}


def test_a_finding_is_accepted_where_its_line_names_the_rule(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    (tmp_path / "tests" / "tools").mkdir(parents=True)
    (tmp_path / "tests" / "tools" / "audited.py").write_text("a()  # noqa: S603 - our own\nb()\n")
    report = {"results": [finding(1, "B603"), finding(1, "B602"), finding(2, "B603")]}
    assert list(audit.insecure_code(report)) == [
        "tests/tools/audited.py:1 B602 x",
        "tests/tools/audited.py:2 B603 x",
    ]


def test_a_vulnerability_is_accepted_by_any_of_its_names(monkeypatch):
    hole = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.0"]}
    packages = [{"name": "one", "version": "1.0", "vulns": [hole]}, {"name": "two", "skip_reason": "unknown"}]
    assert list(audit.vulnerable_packages(packages)) == ["one 1.0 PYSEC-1 (mended in 2.0)"]
    monkeypatch.setattr(audit, "ACCEPTED", {"CVE-1": "never called"})
    assert list(audit.vulnerable_packages(packages)) == []
