"""An endpoint on loopback that is down, slow, busy or talks nonsense, and the assistant in front of it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("openai", reason="the openai client is not installed: pip install 'genenv[api]'")

from endpoints import Answer, Server, refused, said
from genenv.backends.settings import EndpointConfig, SamplingConfig
from genenv.clients.endpoint import EndpointAssistant, RateLimit
from genenv.errors import ContextOverflow, NoAnswer, RolloutError, UsageError


def meet(server: Server, *, sampling: dict[str, Any] | None = None, **endpoint: Any) -> EndpointAssistant:
    settings = EndpointConfig(**{"retries": 3, "timeout_s": 5.0, **endpoint})
    assistant = EndpointAssistant(f"{server.url}#m", settings, SamplingConfig(**(sampling or {})))
    server.requests.clear()
    server.times.clear()
    return assistant


def ask(assistant: EndpointAssistant, *texts: str, **options: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        asked = [
            assistant.talk(0, many_turns=False)([{"role": "user", "content": text}], **options)
            for text in texts or ("hi",)
        ]
        try:
            return list(await asyncio.gather(*asked))
        finally:
            await assistant.close()

    return asyncio.run(all_of_them())


def in_turn(*answers: Answer) -> Callable[[dict[str, Any]], Answer]:
    waiting = list(answers)
    return lambda _: waiting.pop(0) if len(waiting) > 1 else waiting[0]


def test_a_conversation_goes_out_and_its_answer_comes_back(server: Server) -> None:
    assistant = meet(server, sampling={"temperature": 0.5, "max_new_tokens": 9})
    server.answer = lambda _: said("<think>hm</think>\nfour", finish="length")
    (reply,) = ask(assistant)
    assert (reply.text, reply.finished, reply.prompt_tokens, reply.tokens) == ("four", False, 10, 5)
    sent = server.requests[0]
    assert sent["messages"] == [{"role": "user", "content": "hi"}]
    assert (sent["model"], sent["temperature"], sent["max_tokens"]) == ("m", 0.5, 9)
    assert "tools" not in sent


def test_replies_cannot_be_held_to_some_texts_and_the_sentence_says_what_to_do(server: Server) -> None:
    assistant = meet(server)
    asked = len(server.requests)
    with pytest.raises(UsageError, match=r"an endpoint's cannot be; measure it with held_out\.config"):
        ask(assistant, choices=["look"])
    assert len(server.requests) == asked


def test_calls_are_read_and_sent_again_in_the_apis_form(server: Server) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    broken = {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "{nope"}}
    assistant = meet(server)
    assert assistant.native_tools
    server.answer = lambda _: said(None, calls=[call, broken])
    (reply,) = ask(assistant, tools=[{"type": "function", "function": {"name": "f"}}])
    assert (reply.calls[0].name, reply.calls[0].arguments) == ("f", {"a": [1]})
    assert "a" not in reply.calls[1].arguments
    server.answer = lambda _: said(None, calls=[{**call, "function": {"name": "f", "arguments": {"a": 2}}}])
    assert ask(assistant)[0].calls[0].arguments == {"a": 2}  # some servers give them as an object

    async def again() -> None:
        await assistant.talk(0, many_turns=True)([reply.message()])
        await assistant.close()

    asyncio.run(again())
    arguments = server.requests[-1]["messages"][0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"a": [1]}


def test_what_a_tool_says_that_no_call_asked_for_is_said_by_the_user(server: Server) -> None:
    assistant = meet(server)
    talk = assistant.talk(0)
    told = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "look"}]
    asyncio.run(_closing(assistant, talk([*told, {"role": "tool", "content": "a lamp"}])))
    assert server.requests[0]["messages"][-1] == {"role": "user", "content": "a lamp"}


async def _closing(assistant: EndpointAssistant, asked: Any) -> Any:
    try:
        return await asked
    finally:
        await assistant.close()


def test_a_server_that_takes_no_tools_gets_them_in_the_prompt(server: Server) -> None:
    server.answer = lambda body: refused("tools need a parser") if "tools" in body else said("ok")
    assert not meet(server).native_tools
    assert meet(server, tools="native").native_tools


def test_a_server_that_takes_tools_and_does_not_show_them_gets_them_in_the_prompt(server: Server) -> None:
    server.answer = lambda _: said("ok")
    assert not meet(server).native_tools


def test_trouble_while_tools_are_tried_is_not_taken_for_an_answer(server: Server) -> None:
    server.answer = lambda body: refused("busy", 503) if "tools" in body else said("ok")
    with pytest.raises(UsageError, match="busy"):
        meet(server)


@pytest.mark.parametrize(
    "trouble",
    [
        refused("busy", 500),
        refused("overloaded", 503),
        (429, "{}", {"retry-after": "0"}),
        (200, "<html>hello</html>", {"content-type": "text/html"}),
        (200, '{"choices": []}', {}),
        (200, '{"choices": [{"message": {"content": 7}}]}', {}),
        (200, '{"choices": [{"message": "hello"}]}', {}),
        said("", calls=5),
        (200, "[1, 2", {}),
        (200, "null", {}),
        said("", finish="error"),
        said("four and", finish="abort"),
        (200, said("")[1].replace('"index"', '"error": {"code": 502, "message": "no host"}, "index"'), {}),
    ],
    ids=[
        *("500", "503", "429", "html", "no choices", "no text", "no message", "no calls", "cut off", "null"),
        *("error", "abort", "an error in the choice"),
    ],
)
def test_trouble_that_passes_costs_a_retry_only(server: Server, trouble: Answer) -> None:
    assistant = meet(server)
    server.answer = in_turn(trouble, trouble, said("there"))
    assert ask(assistant)[0].text == "there"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("reason", "finished"),
    [
        *(("stop", True), ("tool_calls", True), ("end_turn", True), (None, True), (7, True)),
        *(("length", False), ("max_tokens", False), ("MAX_TOKENS", False), ("content_filter", False)),
    ],
)
def test_the_reason_for_the_end_says_whether_a_reply_is_finished(
    server: Server, reason: Any, finished: bool
) -> None:
    assistant = meet(server)
    server.answer = lambda _: said("four", finish=reason)
    (reply,) = ask(assistant)
    assert (reply.text, reply.finished) == ("four", finished)


def test_what_a_server_says_of_a_failure_in_an_answer_is_told(server: Server) -> None:
    assistant = meet(server, retries=0)
    failed = said("", finish="error")[1].replace('"index"', '"error": {"message": "no host"}, "index"')
    server.answer = lambda _: (200, failed, {})
    assert outcome_of(assistant).endswith("after 0 retries: it failed while it answered: no host")


@pytest.mark.parametrize("trouble", [refused("busy", 500), (200, "nonsense", {})], ids=["500", "nonsense"])
def test_trouble_that_stays_fails_the_item(server: Server, trouble: Answer) -> None:
    assistant = meet(server)
    server.answer = lambda _: trouble
    with pytest.raises(RolloutError, match="no answer after 3 retries"):
        ask(assistant)
    assert len(server.requests) == 4


def test_a_slow_server_fails_the_item_in_time(server: Server) -> None:
    assistant = meet(server, timeout_s=0.1, retries=1)
    server.answer = lambda _: (time.sleep(0.5), said("late"))[1]
    with pytest.raises(RolloutError, match=r"took longer than|timed out"):
        ask(assistant)


def test_a_server_that_drips_fails_the_item_in_time(server: Server) -> None:
    assistant = meet(server, timeout_s=0.3, retries=0)
    server.drips = True
    began = time.monotonic()
    with pytest.raises(RolloutError, match=r"longer than 0\.3 s"):
        ask(assistant)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_half_a_surrogate_pair_is_replaced_so_that_the_talk_can_go_on(server: Server, text: str) -> None:
    assistant = meet(server)
    server.answer = lambda _: said(text)
    (reply,) = ask(assistant)
    assert reply.text == text.replace(text[-2:-1] or text, "\ufffd") or "\ufffd" in reply.text
    reply.text.encode()


def test_text_in_parts_is_put_together(server: Server) -> None:
    assistant = meet(server)
    server.answer = lambda _: said([{"type": "text", "text": "two "}, {"type": "text", "text": "parts"}])
    assert ask(assistant)[0].text == "two parts"
    server.answer = lambda _: said([{"type": "reasoning", "text": "5? no"}, {"text": "4"}])
    assert ask(assistant)[0].text == "4"


def test_arguments_that_are_nested_without_end_are_right_nowhere(server: Server) -> None:
    deep = '{"a":' + "[" * 600 + "]" * 600 + "}"
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": deep}}
    assistant = meet(server)
    server.answer = lambda _: said(None, calls=[call])
    assert "a" not in ask(assistant)[0].calls[0].arguments


def test_a_server_that_went_away_fails_the_item(server: Server) -> None:
    assistant = meet(server, retries=1)
    server.close()
    with pytest.raises(RolloutError, match="no answer after 1 retries"):
        ask(assistant)
    server.close = lambda: None  # type: ignore[method-assign]


def test_a_refusal_is_not_repeated(server: Server) -> None:
    assistant = meet(server)
    server.answer = lambda _: refused("this model is retired")
    with pytest.raises(RolloutError, match="refuses the request"):
        ask(assistant)
    assert len(server.requests) == 1


def coded(code: str) -> Answer:
    return 400, json.dumps({"error": {"message": "no", "type": "x", "code": code}}), {}


@pytest.mark.parametrize(
    "too_long",
    [
        refused("This model's maximum context length is 100 tokens."),
        refused("the request exceeds the available context size, try increasing it"),
        refused("Context size has been exceeded.", 500),
        refused("'max_tokens' or 'max_completion_tokens' is too large: maximum context length is 9"),
        refused("Input is too long for requested model", 413),
        refused("prompt is too long: 300 tokens > 100 maximum"),
        refused("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens", 422),
        refused("Input validation error: `inputs` must have less than 1024 tokens. Given: 2000", 422),
        coded("context_length_exceeded"),
    ],
)
def test_where_the_window_is_short_the_reply_gets_what_is_left(server: Server, too_long: Answer) -> None:
    assistant = meet(server, retries=0)
    server.answer = lambda body: too_long if "max_tokens" in body else said("short")
    assert ask(assistant)[0].text == "short"
    server.answer = lambda _: too_long
    with pytest.raises(ContextOverflow, match="the endpoint says"):
        ask(assistant)


def test_a_name_that_is_too_long_is_no_full_window(server: Server) -> None:
    assistant = meet(server)
    server.answer = lambda _: refused("Invalid 'tools[0].function.name': string too long. Maximum length 64")
    with pytest.raises(RolloutError, match="refuses the request") as caught:
        ask(assistant)
    assert not isinstance(caught.value, ContextOverflow)


def test_settings_that_a_model_does_not_take_are_left_out(server: Server) -> None:
    picky = refused("Unsupported value: 'temperature' does not support 0 with this model")
    server.answer = lambda body: picky if "temperature" in body else said("ok")
    assistant = meet(server, retries=0)
    assert ask(assistant)[0].text == "ok"
    assert assistant.describe()["left_out"] == ["temperature"]


def test_a_tool_whose_argument_has_the_name_of_a_setting_changes_no_setting(server: Server) -> None:
    said_no = "Invalid schema for function 'heat': In context=('properties', 'temperature', 'type'), no type"
    assistant = meet(server, retries=0)
    server.answer = in_turn(refused(said_no), said("ok"))
    with pytest.raises(RolloutError, match="refuses the request"):
        ask(assistant)
    assert ask(assistant)[0].text == "ok"
    assert "temperature" in server.requests[-1]
    assert assistant.describe()["left_out"] == []


def naming(param: str | None, message: str) -> Answer:
    return 400, json.dumps({"error": {"message": message, "type": "x", "param": param}}), {}


@pytest.mark.parametrize(
    "refusal",
    [
        naming(None, "cannot parse [{'content': 'the temperature of the room, in max_completion_tokens'}]"),
        naming("messages", "cannot parse 'temperature'"),
        naming("temperature", "Unsupported value: 'temperature' was served by another host before"),
        naming("seed", "'seed' is too large"),
    ],
    ids=["a conversation", "the messages", "what the probe sent", "the seed"],
)
def test_a_refusal_after_the_probe_changes_no_setting_of_an_evaluation(
    server: Server, refusal: Answer
) -> None:
    assistant = meet(server, retries=0)
    described = assistant.describe()
    server.answer = in_turn(refusal, said("ok"))
    with pytest.raises(RolloutError, match="refuses the request"):
        ask(assistant)
    assert ask(assistant)[0].text == "ok"
    assert {"temperature", "seed", "max_tokens"} <= server.requests[-1].keys()
    assert assistant.describe() == described


def test_a_value_that_the_probe_did_not_send_is_left_out_if_the_refusal_names_it(server: Server) -> None:
    """As evaluations of a run, which are greedy, of a model that samples at 1 alone."""
    assistant = meet(server, sampling={"temperature": 1.0}, retries=0)
    picky = naming("temperature", "Unsupported value: 'temperature' does not support 0 with this model")
    server.answer = lambda body: picky if body.get("temperature") == 0 else said("ok")
    greedy = {**assistant.body([{"role": "user", "content": "hi"}], (), 0), "temperature": 0.0}
    assert asyncio.run(_closing(assistant, assistant.ask(greedy, 9))).text == "ok"
    assert assistant.describe()["left_out"] == ["temperature"]


def test_what_a_model_says_is_graded_as_it_was_said(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "ollama")
    assistant = meet(server)
    text = "ollama: git clone https://user:token@host/x"
    server.answer = lambda _: said(text, calls=[call_quoting("ollama")])
    reply = ask(assistant)[0]
    assert reply.text == text
    assert (reply.calls[0].name, reply.calls[0].arguments) == ("ollama", {"key": "ollama"})


def test_models_that_name_the_limit_otherwise_are_asked_so(server: Server) -> None:
    wrong_name = refused("Unsupported parameter: use 'max_completion_tokens' instead of 'max_tokens'")
    server.answer = lambda body: wrong_name if "max_tokens" in body else said("ok")
    assistant = meet(server)
    assert ask(assistant, "a", "b")[0].text == "ok"
    assert all("max_completion_tokens" in body for body in server.requests)


def test_requests_begin_no_oftener_than_allowed(server: Server) -> None:
    assistant = meet(server, requests_per_minute=1200.0)
    began = time.monotonic()
    ask(assistant, *"abcde")
    # none comes before its turn, however long a busy machine keeps those before it
    assert all(at >= began + turn * 0.05 for turn, at in enumerate(sorted(server.times)))
    assert len(server.times) == 5


def test_the_pace_has_no_cost_where_there_is_no_limit() -> None:
    began = time.monotonic()
    asyncio.run(RateLimit(0.0).wait())
    assert time.monotonic() - began < 0.1


def test_nothing_is_asked_once_the_money_is_spent(server: Server) -> None:
    assistant = meet(server, price_in=1e6, price_out=1e6, max_cost=65.0)
    assert assistant.spent.cost == pytest.approx(40.0)  # finding out about tools: 10 + 5, and 20 + 5
    server.answer = lambda _: said("ok")
    ask(assistant)
    ask(assistant)
    assert assistant.spending() == {"prompt_tokens": 50, "tokens": 20, "cost": 70.0}
    with pytest.raises(RolloutError, match="max_cost = 65 is spent"):
        ask(assistant)


def test_assistants_of_one_command_spend_under_one_limit(server: Server) -> None:
    settings = EndpointConfig(retries=0, price_in=1e6, price_out=1e6, max_cost=85.0)
    one = EndpointAssistant(f"{server.url}#m", settings, SamplingConfig())
    other = EndpointAssistant(f"{server.url}#m", settings, SamplingConfig(), one)
    assert (one.spent.cost, other.spent.cost) == (40.0, 40.0)
    ask(other)
    for assistant in (one, other):
        with pytest.raises(NoAnswer, match="max_cost = 85 is spent"):
            ask(assistant)


def test_a_limit_that_cannot_hold_is_one_sentence(server: Server) -> None:
    with pytest.raises(UsageError, match="needs prices"):
        meet(server, max_cost=1.0)
    server.answer = lambda _: said("ok", read=0)
    with pytest.raises(UsageError, match="does not tell how many tokens"):
        meet(server, max_cost=1.0, price_in=1.0)


def test_an_address_that_is_none_is_one_sentence() -> None:
    for address in ("http://host/v1", "host#m", "#m", "http://[::1#m", "http://#m", "http://h:x#m"):
        with pytest.raises(UsageError, match="is named BASE_URL#MODEL, such as"):
            EndpointAssistant(address, EndpointConfig(), SamplingConfig())


def test_a_model_may_have_a_number_sign_in_its_name(server: Server) -> None:
    address = f"{server.url}#accounts/them/models/m#accounts/me/deployments/d"
    assistant = EndpointAssistant(address, EndpointConfig(), SamplingConfig())
    assert assistant.model == "accounts/them/models/m#accounts/me/deployments/d"
    assert assistant.describe()["base_url"] == server.url


def test_a_server_of_this_machine_is_asked_without_the_proxy_of_the_environment(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    assert ask(meet(server, retries=0))[0].text == "hello"
    monkeypatch.setenv("http_proxy", "socks4://127.0.0.1:9")
    with pytest.raises(UsageError, match=r"as the proxy for far\.example, which cannot be used"):
        EndpointAssistant("http://far.example/v1#m", EndpointConfig(retries=0), SamplingConfig())


def test_a_server_that_is_not_there_is_one_sentence(server: Server) -> None:
    server.close()
    with pytest.raises(UsageError, match="cannot be used as an endpoint for m"):
        meet(server, retries=0)
    server.close = lambda: None  # type: ignore[method-assign]


def test_the_key_comes_from_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    assistant = meet(server, key_variable="MY_KEY")
    assert "secret" not in json.dumps(assistant.describe())
    monkeypatch.setenv("MY_KEY", " secret\n")
    assert meet(server, key_variable="MY_KEY", retries=0).address.key == "secret"
    monkeypatch.setenv("MY_KEY", "one\r\nHost: two")
    with pytest.raises(UsageError, match="MY_KEY holds no key"):
        meet(server, key_variable="MY_KEY")


# servers that are not to be trusted

KEY = "sk-very-secret-1234567890"


def outcome_of(assistant: EndpointAssistant) -> str:
    """What became of one request, as it is told."""
    try:
        return ask(assistant)[0].text
    except RolloutError as error:
        return str(error)


@pytest.mark.parametrize(
    "body",
    [
        "[" * 100_000,
        '{"choices":' + "[" * 100_000,
        '{"a":' * 100_000,
        said("fine")[1].replace('"prompt_tokens": 10', '"prompt_tokens": ' + "9" * 4_000),
        said("fine")[1].replace('"prompt_tokens": 10', '"prompt_tokens": ' + "9" * 5_000),
        said("x" * 3_000_000)[1],
        said([{"type": "text", "text": "x" * 1_500_000}] * 2)[1],
    ],
    ids=["brackets", "choices", "objects", "4,000 digits", "5,000 digits", "long text", "long parts"],
)
def test_an_answer_of_any_size_costs_no_more_than_its_item(server: Server, body: str) -> None:
    assistant = meet(server, retries=0)
    server.answer = lambda _: (200, body, {})
    assert outcome_of(assistant)
    assert assistant.spent.prompt_tokens < 10**10
    server.answer = lambda _: said("and on it goes")
    assert ask(assistant)[0].text == "and on it goes"


def test_a_body_without_an_end_is_cut_and_not_asked_for_again(server: Server) -> None:
    assistant = meet(server)
    server.endless = True
    assert outcome_of(assistant) == "the endpoint gave no answer: it sent more than 16 MiB"
    assert len(server.requests) == 1


def test_a_body_that_would_unpack_to_gigabytes_is_not_unpacked(server: Server) -> None:
    assistant = meet(server)
    server.answer = lambda _: (200, "x", {"content-encoding": "gzip"})
    assert outcome_of(assistant) == (
        "the endpoint gave no answer: it sent its answer packed (gzip), which was not asked for"
    )


@pytest.mark.parametrize("status", [400, 401, 500])
def test_a_key_that_a_server_quotes_is_masked(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assistant = meet(server, retries=0)
    server.answer = lambda _: refused(f"Incorrect API key provided: {KEY}.", status)
    told = outcome_of(assistant)
    assert KEY not in told
    assert "Incorrect API key provided: ***." in told
    server.answer = lambda _: said(f"Bearer {KEY}", calls=[call_quoting(KEY)])
    reply = ask(assistant)[0]
    assert KEY not in repr(reply)


def call_quoting(key: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": key, "arguments": json.dumps({"key": key})}}


def test_a_password_in_the_address_is_shown_nowhere(server: Server) -> None:
    address = server.url.replace("//", "//user:pa55word%21@")
    assistant = EndpointAssistant(f"{address}#m", EndpointConfig(retries=0), SamplingConfig())
    assert assistant.describe()["base_url"] == server.url.replace("//", "//***@")
    server.answer = lambda _: refused(f"no such user: user:pa55word! at {address}", 401)
    told = outcome_of(assistant)
    assert "pa55word" not in told
    with pytest.raises(UsageError) as caught:
        EndpointAssistant(f"{address}#m", EndpointConfig(retries=0), SamplingConfig())
    assert "pa55word" not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        EndpointAssistant("htp://user:pa55word@host", EndpointConfig(), SamplingConfig())
    assert "pa55word" not in str(caught.value)


def test_what_a_server_says_cannot_move_the_cursor(server: Server) -> None:
    assistant = meet(server, retries=0)
    server.answer = lambda _: refused("\x1b[2J\u202eno \ud800", 400)
    assert "\\u001b[2J\\u202eno \\ud800" in outcome_of(assistant)
