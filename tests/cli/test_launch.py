"""`genenv launch` where there is no cluster: what is wrong is told before anything is placed or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from genenv.cluster import on_ray
from typed import refused, run

LORA = ("--set", "policy.tuning=lora")


def test_without_ray_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_ray, "find_spec", lambda _: None)
    sentence = refused("launch", "tiny", "--ray", "127.0.0.1:9", "--out", tmp_path / "run", *LORA)
    assert sentence.startswith("this command needs ray: pip install 'genenv[ray]'")


@pytest.mark.parametrize(
    "address", ["127.0.0.1:9", "ray://127.0.0.1:9", "[::1]:9", "127.0.0.1:99999", "host:port"]
)
def test_an_address_where_nobody_listens_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr(on_ray, "find_spec", lambda _: True)
    sentence = refused("launch", "tiny", "--ray", address, "--out", tmp_path / "run", *LORA)
    assert sentence.startswith(f"no Ray cluster answers at {address}: ")
    assert "start one (`ray start --head`)" in sentence
    assert not (tmp_path / "run").exists()


def test_wrong_settings_are_told_before_a_cluster_is_asked(tmp_path: Path) -> None:
    words = ("launch", "--ray", "127.0.0.1:9", "--out", tmp_path / "run")
    assert "policy.backed" in refused(*words, "tiny", "--set", "policy.backed=vllm")
    assert "policy.tuning" in refused(*words, "tiny", "--set", "policy.tuning=full")
    assert "name a TOML file" in " ".join(run(*words).stderr.replace("│", " ").split())
