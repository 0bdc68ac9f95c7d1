"""`bundle_gpu` finds what a machine lacks; what packages need is a dictionary here."""

from __future__ import annotations

from bundle_gpu import missing


def test_what_is_missing_is_carried_along_with_all_that_it_needs_itself() -> None:
    needs = {
        "big-one": (
            "small; python_version >= '3.12'",
            "old; python_version < '3.12'",
            "there",
            "extra; extra == 'x'",
        ),
        "small": ("big-one",),
    }
    assert missing(["Big_One>=2", "there>1"], {"there"}, needs.__getitem__) == ["big-one", "small"]
