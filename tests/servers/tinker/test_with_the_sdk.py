"""The server as the real SDK sees it: training, sampling, checkpoints, quirks."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinker_sdk import Client, needs_tinker

pytestmark = needs_tinker
Serve = Callable[..., str]


@pytest.mark.long
def test_training_moves_likelihoods_by_the_sign_of_weights(serve: Serve, sdk: Client) -> None:
    url = serve()
    assert sdk("capabilities", url=url) == [["tiny", 256]]
    found = sdk("signs", url=url)
    assert found["after"][0] > found["before"][0] + 0.5
    assert found["after"][1] < found["before"][1] - 0.5
    assert found["same"], "another client's adapter is untouched, bit for bit"
    assert found["metrics"].keys() == {"loss:sum"}
    assert found["fields"] == ["elementwise_loss", "logprobs"]


@pytest.mark.long
def test_losses_are_sums(serve: Serve, sdk: Client) -> None:
    found = sdk("sums", url=serve())
    assert found["loss"] == pytest.approx(found["expected"], abs=1e-3)
    assert found["parts"] == pytest.approx(found["expected"], abs=1e-3)


@pytest.mark.long
def test_samples_are_those_of_the_weights_when_they_were_saved(serve: Serve, sdk: Client) -> None:
    found = sdk("sampling", url=serve())
    assert found["first"] == found["again"] != found["other"]
    assert found["apart"] < 1e-5
    whole, own, first, logprobs = found["compute_logprobs"]
    assert own == whole
    assert first is None
    assert logprobs == pytest.approx(found["logprobs"], abs=1e-5)
    assert found["stays"], "a sampler keeps its weights while training goes on"
    assert found["alone"], "what a request draws does not depend on those beside it"
    assert found["name"].endswith("tiny-1"), "where its tokenizer is"


@pytest.mark.long
def test_stops_and_likeliest_tokens(serve: Serve, sdk: Client) -> None:
    found = sdk("stops", url=serve())
    tokens, reason = found["by_id"]
    assert reason == "stop"
    assert tokens == found["free"][: len(tokens)]
    assert tokens[-1] == found["free"][6]
    assert found["top"] == [None, 17, 2]
    assert found["prompt"][0] is None
    assert found["prompt"][1] < 0


@pytest.mark.long
def test_what_was_saved_goes_on_exactly_in_a_new_server(serve: Serve, sdk: Client, tmp_path: Path) -> None:
    saved = sdk("train_and_save", url=serve(), name="k1")
    again = serve(out=tmp_path)  # another server on the same folder
    assert sdk("go_on", url=again, path=saved["path"])["next"] == saved["next"]
    assert sdk("go_on", url=again, path=saved["path"], optimizer=False)["next"] != saved["next"]


@pytest.mark.long
def test_requests_are_worked_in_the_order_of_their_numbers(serve: Serve, sdk: Client) -> None:
    found = sdk("pipelined", url=serve())
    assert found["waited"] == found["pipelined"]


@pytest.mark.long
def test_checkpoints_can_be_listed_and_deleted(serve: Serve, sdk: Client) -> None:
    found = sdk("library", url=serve())
    assert found["equal"], "a named sampler and a passing one of the same weights"
    assert found["run"] == ["tiny", 4, {"of": "a test"}, found["path"]]
    assert found["before"] == ["sampler_weights/two", "weights/one"]
    assert found["after"] == [found["sampled"]]
    assert found["listed"]
    assert found["info"]["lora_rank"] == 4
    assert found["info"]["train_unembed"] is True, "as the SDK asks for it"
    assert found["model"] == ["tiny", 4]


@pytest.mark.long
def test_policy_gradients(serve: Serve, sdk: Client) -> None:
    found = sdk("losses", url=serve())
    assert found["found"]["importance_sampling"] == pytest.approx(-found["tokens"], abs=1e-3)
    assert found["found"]["ppo"] == pytest.approx(-found["tokens"], abs=1e-3)
    assert found["moved"] > 0


@pytest.mark.long
def test_a_loss_of_the_client_is_learned(serve: Serve, sdk: Client) -> None:
    found = sdk("custom", url=serve())
    apart = [found[when][0] - found[when][1] for when in ("before", "after")]
    assert apart[1] > apart[0] + 0.5
    assert "apart" in found["metrics"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("base", "unknown base model 'none'; known: tiny"),
        ("rank", "lora_config.rank: input should be less than or equal to 1024"),
        ("unembed", "AssertionError"),
        ("token", "datum 0 holds a token outside of the vocabulary, 0 to 258"),
        ("input", "datum 0: the loss ppo needs 'logprobs' in loss_fn_inputs"),
        ("path", "there is no checkpoint tinker://x/weights/y"),
        ("name", "'../x' is no name here"),
        ("sampler", "there is no checkpoint tinker://x/weights/y"),
        ("long", "the prompt has 300 tokens and leaves no room in the context window of 256"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_and_the_client_goes_on(
    serve: Serve, sdk: Client, what: str, sentence: str
) -> None:
    found = sdk("attempt", url=serve(), what=what)
    if what != "unembed":  # the SDK itself refuses that
        assert sentence in found["refused"]
    assert found["goes_on"]


@pytest.mark.long
def test_quirks_of_learning(serve: Serve, sdk: Client) -> None:
    weights = [1.0] * 8
    true = sdk("gradient_norm", url=serve(), weights=weights)
    mean = sdk("gradient_norm", url=serve("mean-cross-entropy"), weights=weights)
    half = sdk("gradient_norm", url=serve("mean-cross-entropy"), weights=[0.5] * 8)
    assert half == pytest.approx(mean, rel=1e-4)
    assert mean < 0.5 * true
    assert math.isnan(sdk("nan_loss", url=serve("nan"))["loss:sum"])
    refused = sdk("attempt", url=serve("lacks-loss:cross_entropy"), what="loss")["refused"]
    assert "the loss cross_entropy is not supported" in refused
    refused = sdk("attempt", url=serve("no-live-load"), what="live")["refused"]
    assert "weights can be loaded into a fresh client alone" in refused
    refused = sdk("attempt", url=serve("forgets:5"), what="step")["refused"]
    assert "Model not loaded" in refused
    assert sdk("timed", url=serve("slow:0.2")) > 0.6


@pytest.mark.long
def test_quirks_of_sampling(serve: Serve, sdk: Client) -> None:
    found = sdk("sampling", url=serve("short-logprobs", "noisy-sampler"))
    whole, own, *_ = found["compute_logprobs"]
    assert own == whole - 1
    assert 0.05 < found["apart"] < 1.0
    found = sdk("sampling", url=serve("seedless"))
    assert found["first"] != found["again"]


@pytest.mark.long
def test_the_example_of_the_documentation_runs(serve: Serve, sdk: Client) -> None:
    page = (Path(__file__).parents[3] / "docs" / "guides" / "tinker-server.md").read_text("utf-8")
    code = page.partition("```py\n")[2].partition("```")[0]
    losses, tokens, path = sdk("example", url=serve(), code=code)
    assert losses[2] < losses[0]
    assert tokens
    assert path.endswith("/weights/first")


@pytest.mark.parametrize("quirk", ["html", "429"])
@pytest.mark.long
def test_the_sdk_lives_with_refusals_now_and_then(serve: Serve, sdk: Client, quirk: str) -> None:
    found: Any = sdk("sums", url=serve(quirk))
    assert found["loss"] == pytest.approx(found["expected"], abs=1e-3)
