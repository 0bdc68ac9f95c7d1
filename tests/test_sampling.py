"""A sampling parameter is named in one module: requests, settings and both protocols take it from there."""

from __future__ import annotations

from dataclasses import fields

from genenv.backends.served import PromptRequest
from genenv.backends.settings import SamplingConfig
from genenv.sampling import COLDEST, SampleRequest, SamplingFields, SamplingParams, sampling_params
from genenv.servers.tinker.bodies import SamplingParamsBody
from genenv.servers.vllm import SamplingBody

NAMES = {one.name for one in fields(SamplingParams)}


def test_requests_settings_and_both_protocols_have_all_parameters() -> None:
    assert {name: one.default for name, one in SamplingFields.model_fields.items()} == {
        one.name: one.default for one in fields(SamplingParams)
    }
    for kind in (SampleRequest, PromptRequest):
        assert {one.name for one in fields(kind)} >= NAMES
    for body in (SamplingConfig, SamplingParamsBody, SamplingBody):
        assert set(body.model_fields) >= NAMES


def test_a_temperature_that_local_models_cannot_divide_by_is_sent_as_greedy() -> None:
    request = SampleRequest(prompt_ids=(1,), max_tokens=1, temperature=COLDEST / 2, top_p=0.5)
    assert sampling_params(request) == {"temperature": COLDEST / 2, "top_p": 0.5}
    assert sampling_params(request, greedy_below=COLDEST) == {"temperature": 0.0, "top_p": 0.5}
    assert sampling_params(SamplingConfig(), greedy_below=COLDEST) == {"temperature": 0.0, "top_p": 1.0}
