"""Scan the source for insecure code (bandit) and the pinned packages for known vulnerabilities (pip-audit).

    python tools/audit.py

Exit status 1 if anything is found that has no written reason. A reason is written in one of three places:

- a line of source: `# noqa: S603 - the reason`. Ruff's rule S603 is bandit's B603: one comment serves both;
- `[tool.bandit]` in pyproject.toml: a rule that is wrong for the whole project;
- `ACCEPTED` below: a vulnerability of a package that cannot reach this project's code.

pip-audit asks the package index for advisories. An index that has none answers for no package. The last line
says for how many packages an answer came, so that silence is not taken for safety.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ACCEPTED: Mapping[str, str] = {}
"""Vulnerability id -> why it does not concern this project."""


def main() -> int:
    """Run both scanners; return the exit status."""
    code = list(insecure_code(scanned("bandit", "-q", "-r", "src", "-c", "pyproject.toml", "-f", "json")))
    words = ("-r", "constraints.txt", "--no-deps", "--disable-pip", "-f", "json", "--progress-spinner", "off")
    packages = scanned("pip_audit", *words)["dependencies"]
    known = list(vulnerable_packages(packages))
    sys.stdout.writelines(f"{line}\n" for line in [*code, *known])
    answered = sum("skip_reason" not in one for one in packages)
    sys.stdout.write(
        f"audit: {len(code)} places in src without a written reason; {len(known)} known vulnerabilities, "
        f"advisories found for {answered} of {len(packages)} packages\n"
    )
    return int(bool(code or known))


def scanned(module: str, *words: str) -> Any:  # noqa: ANN401 - a scanner's JSON
    """The JSON report of a scanner.

    Raises:
        SystemExit: it printed none; what it said goes to the standard error.
    """
    done = subprocess.run(  # noqa: S603 - our own scanners
        [sys.executable, "-m", module, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        sys.exit(f"{module} printed no report: {done.stderr.strip()[-2000:]}")


def insecure_code(report: Any) -> Iterator[str]:  # noqa: ANN401
    """Findings of bandit on lines without a reason, as `FILE:LINE RULE TEXT`."""
    for found in report["results"]:
        path, rule = ROOT / found["filename"], found["test_id"]
        lines = path.read_text(encoding="utf-8").splitlines()
        first, last = min(found["line_range"]), max(found["line_range"])
        reason = re.compile(rf"# noqa: [^#]*\bS{rule.removeprefix('B')}\b")
        if not any(reason.search(line) for line in lines[first - 1 : last]):
            yield f"{path.relative_to(ROOT)}:{found['line_number']} {rule} {found['issue_text']}"


def vulnerable_packages(packages: list[dict[str, Any]]) -> Iterator[str]:
    """Known vulnerabilities that are not accepted, as `PACKAGE VERSION ID`, with versions that mend them."""
    for package in packages:
        for one in package.get("vulns", []):
            if ACCEPTED.keys().isdisjoint([one["id"], *one["aliases"]]):
                mended = ", ".join(one["fix_versions"]) or "no version"
                yield f"{package['name']} {package['version']} {one['id']} (mended in {mended})"


if __name__ == "__main__":
    sys.exit(main())
