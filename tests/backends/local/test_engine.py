"""The engine samples from the model it is given, and notes exactly what the model said."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from genenv.backends.local.attention import DecodeLayout, KeptCache
from genenv.backends.local.packing import Bundle, Packed
from genenv.progress import Silent, staged
from genenv.sampling import Conversation, SampleRequest

PROMPTS = [(5, 9, 2), (7, 7, 7, 7, 8, 1, 30), (5, 9, 2, 44), (5, 9, 2)]


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3"])
def policy(request, tiny):
    return tiny.player(request.param, noise=0.05)


@pytest.fixture(scope="module")
def llama(tiny):
    return tiny.player(noise=0.05)


def requests(count: int = 8, **changes) -> list[SampleRequest]:
    return [
        SampleRequest(
            prompt_ids=PROMPTS[i % len(PROMPTS)], max_tokens=4 + 3 * (i % 3), stream=100 + i, **changes
        )
        for i in range(count)
    ]


def fresh_logprobs(policy, request: SampleRequest, ids: tuple[int, ...]) -> torch.Tensor:
    packed = Packed([Bundle(prompt_ids=request.prompt_ids, completions=[ids])], torch.device("cpu"))
    with torch.no_grad(), policy.weights.active():
        return policy.weights.logprobs(packed, temperature=request.temperature)


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_recorded_log_probabilities_equal_a_fresh_forward_pass(policy, temperature):
    asked = requests(temperature=temperature)
    for request, completion in zip(asked, policy.sample_all(asked), strict=True):
        expected = fresh_logprobs(policy, request, completion.token_ids)
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.long
def test_in_bfloat16_recorded_log_probabilities_stay_near_a_fresh_forward_pass(tiny):
    policy = tiny.player(noise=0.05, dtype="bfloat16")
    asked = requests(16)
    differences = [
        (torch.tensor(completion.logprobs) - fresh_logprobs(policy, request, completion.token_ids)).abs()
        for request, completion in zip(asked, policy.sample_all(asked), strict=True)
    ]
    assert torch.cat(differences).mean() < 0.05


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_greedy_decoding_equals_the_generate_method_of_transformers(tiny, kind):
    policy, plain = tiny.player(kind), tiny.plain(kind)
    asked = [SampleRequest(prompt_ids=prompt, max_tokens=12, temperature=0.0) for prompt in PROMPTS]
    for request, completion in zip(asked, policy.sample_all(asked), strict=True):
        prompt = torch.tensor([request.prompt_ids])
        expected = plain.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=policy.model.chat.end_id,
            pad_token_id=0,
        )
        assert list(completion.token_ids) == expected[0, prompt.shape[1] :].tolist()


def test_a_completion_depends_on_its_own_stream_and_on_nothing_else(policy):
    asked = requests()
    together = policy.sample_all(asked)
    backwards = policy.sample_all(asked[::-1])[::-1]
    alone = [policy.sample_all([request])[0] for request in asked]
    in_threes = policy._engine(3, 8).run(asked)
    for other in (backwards, alone, in_threes):
        assert [c.token_ids for c in other] == [c.token_ids for c in together]
    again = policy.sample_all([replace(asked[0], stream=100), replace(asked[0], stream=999)])
    assert again[0].token_ids == together[0].token_ids
    assert again[1].token_ids != together[0].token_ids


def test_a_row_ends_at_its_own_limit_or_at_the_end_of_turn(llama):
    end = llama.model.chat.end_id
    asked = requests(60)
    completions = llama.sample_all(asked)
    for request, completion in zip(asked, completions, strict=True):
        assert completion.finished == (completion.token_ids[-1] == end)
        assert completion.finished or len(completion.token_ids) == request.max_tokens
        assert end not in completion.token_ids[:-1]
        assert len(completion.logprobs) == len(completion.token_ids) <= request.max_tokens


class Stopping:
    """Makes chosen rows end at chosen steps, by their prompt's first token; notes what the model was fed."""

    def __init__(self, policy, monkeypatch) -> None:
        self.fed: list[int] = []
        plain = policy.model.hidden

        def hidden(ids, positions, layout):
            self.fed.append(ids.shape[1])
            return plain(ids, positions, layout)

        monkeypatch.setattr(policy.model, "hidden", hidden)


def test_finished_rows_leave_the_batch(llama, monkeypatch):
    watch = Stopping(llama, monkeypatch)
    lengths = [1, 3, 3, 6]
    asked = [
        SampleRequest(prompt_ids=(40 + i, 3), max_tokens=length, temperature=0.0)
        for i, length in enumerate(lengths)
    ]
    completions = llama.sample_all(asked)
    assert [
        len(c.token_ids) for c in completions
    ] == lengths  # greedy rows of this model do not end on their own
    assert watch.fed == [8, 3, 3, 1, 1, 1]  # the prompts, then the rows still going


def test_equal_prompts_go_through_the_model_once(llama, monkeypatch):
    watch = Stopping(llama, monkeypatch)
    llama.sample_all(
        [SampleRequest(prompt_ids=(9,) * 20, max_tokens=2, temperature=0.0, stream=i) for i in range(6)]
        + [SampleRequest(prompt_ids=(8,) * 10, max_tokens=2, temperature=0.0)]
    )
    assert watch.fed == [30, 7]


def test_progress_counts_every_token(llama):
    watched = Watched()
    with staged(watched, "sampling", items=None, unit=""):
        completions = llama.sample_all(requests())
    assert watched.tokens == sum(len(c.token_ids) for c in completions)
    assert llama.sample_all([]) == []


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_requests_that_wait_enter_when_others_are_done(llama, rows, monkeypatch):
    asked = [replace(request, max_tokens=3 + 5 * (i % 4)) for i, request in enumerate(requests(14))]
    together = llama.sample_all(asked)
    steps: list[int] = []
    hidden = type(llama.model).hidden

    def counted(model, ids, positions, layout):
        if isinstance(layout, DecodeLayout):
            steps.append(ids.shape[1])
        return hidden(model, ids, positions, layout)

    monkeypatch.setattr(type(llama.model), "hidden", counted)
    found = llama._engine(rows, 64).run(asked)
    assert [one.token_ids for one in found] == [one.token_ids for one in together]
    for one, other in zip(found, together, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert max(steps) <= rows
    # nobody waits for a row that is done: every step but the last few has (nearly) all places taken
    assert sum(steps) == sum(len(one.token_ids) - 1 for one in found)
    assert len(steps) < 1.6 * sum(steps) / rows + max(len(one.token_ids) for one in found)


def test_a_prompt_goes_through_the_model_once_though_its_rows_enter_one_after_the_other(llama, monkeypatch):
    seen: list[int] = []
    hidden = type(llama.model).hidden

    def counted(model, ids, positions, layout):
        if not isinstance(layout, DecodeLayout):
            seen.append(ids.shape[1])
        return hidden(model, ids, positions, layout)

    monkeypatch.setattr(type(llama.model), "hidden", counted)
    asked = [SampleRequest(prompt_ids=PROMPTS[1], max_tokens=4 + i, stream=i) for i in range(6)]
    llama._engine(4, 64).run(asked)
    assert seen == [len(PROMPTS[1])]


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9])
def test_top_p_draws_among_the_most_probable_tokens_alone(llama, top_p):
    prompt = PROMPTS[1]
    asked = [SampleRequest(prompt_ids=prompt, max_tokens=1, stream=i, top_p=top_p) for i in range(300)]
    drawn = {one.token_ids[0] for one in llama._engine(300, 64).run(asked)}
    packed = Packed(
        [Bundle(prompt_ids=prompt, completions=[[t] for t in range(llama.model.vocabulary)])],
        llama.model.device,
    )
    with torch.no_grad(), llama.weights.active():
        probabilities = llama.weights.logprobs(packed).exp()
    order = probabilities.argsort(descending=True)
    count = int((probabilities[order].cumsum(0) < top_p).sum()) + 1
    assert drawn <= set(order[:count].tolist())
    assert int(order[0]) in drawn
    if count < 8:
        assert len(drawn) == count


def test_the_log_probability_is_that_before_top_p(llama):
    asked = [replace(request, top_p=0.3) for request in requests(temperature=0.7)]
    for request, completion in zip(asked, llama.sample_all(asked), strict=True):
        expected = fresh_logprobs(llama, request, completion.token_ids)
        assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


# --- conversations of several turns ---


class Watched(Silent):
    """Counts what a stage is told."""

    tokens = 0

    @contextlib.contextmanager
    def stage(self, name, *, items, unit):
        def told(tokens, items, note=""):
            self.tokens += tokens

        yield told


def talk(policy, starts, *, turns=3, forget=False):
    """Conversations of several turns; gives all ids and log-probabilities of each, turn after turn."""
    ids = [tuple(start) for start in starts]
    said, talks = [[] for _ in starts], [Conversation() for _ in starts]
    going = list(range(len(starts)))
    for turn in range(turns):
        asked = [
            SampleRequest(
                prompt_ids=ids[i],
                max_tokens=40,
                stream=97 * i + turn,
                conversation=Conversation() if forget else talks[i],
            )
            for i in going
        ]
        for i, completion in zip(going, policy.sample_all(asked), strict=True):
            said[i].append((completion.token_ids, completion.logprobs))
            ids[i] += (*completion.token_ids, *(3 + (7 * i + t) % 20 for t in range(1 + (i + turn) % 4)))
            assert completion.finished or talks[i] not in policy.model.kept_caches
        going = [i for i in going if len(said[i][-1][0]) < 40]
    return said


def quick_to_end(policy, monkeypatch, more=4.0):
    """The end of a turn gets likelier, so that conversations go on."""
    plain = policy.model.scores

    def scores_of(hidden):
        scores = plain(hidden)
        scores[:, policy.model.chat.end_id] += more
        return scores

    monkeypatch.setattr(policy.model, "scores", scores_of)


STARTS = [PROMPTS[i % len(PROMPTS)] for i in range(12)]


def same(found, expected):
    assert [[ids for ids, _ in turns] for turns in found] == [[ids for ids, _ in turns] for turns in expected]
    for turns, others in zip(found, expected, strict=True):
        for (_, logprobs), (_, other) in zip(turns, others, strict=True):
            assert logprobs == pytest.approx(other, abs=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("rows", [64, 5])
def test_a_remembered_conversation_goes_on_as_one_that_is_read_again(policy, rows, monkeypatch):
    quick_to_end(policy, monkeypatch)
    plain = policy._engine
    monkeypatch.setattr(policy, "_engine", lambda _, prefill: plain(rows, prefill))
    said = talk(policy, STARTS)
    assert sum(len(turns) for turns in said) > 2 * len(STARTS)
    same(said, talk(policy, STARTS, forget=True))


@pytest.mark.long
def test_a_remembered_conversation_goes_on_in_the_layers_of_transformers(tiny, monkeypatch):
    policy = tiny.player(noise=0.05, decoder="transformers")
    quick_to_end(policy, monkeypatch)
    assert policy.model.fused is None
    same(talk(policy, STARTS), talk(policy, STARTS, forget=True))


def test_of_a_remembered_conversation_only_what_is_new_goes_through_the_model(llama, monkeypatch):
    quick_to_end(llama, monkeypatch, more=100.0)  # every turn is the end alone
    watch = Stopping(llama, monkeypatch)
    first = SampleRequest(prompt_ids=(9,) * 20, max_tokens=5, conversation=Conversation())
    llama.sample_all([first])
    again = (*first.prompt_ids, llama.model.chat.end_id, 4, 5)
    llama.sample_all([replace(first, prompt_ids=again)])
    assert watch.fed == [20, 3]  # the end was drawn in the first turn, and not read


def test_nothing_is_remembered_unasked_or_beyond_the_budget(tiny, monkeypatch):
    policy = tiny.player(noise=0.05, cache_gib=1e-5)
    quick_to_end(policy, monkeypatch, more=100.0)

    def kept_caches(*asked: SampleRequest) -> list[KeptCache | None]:
        policy.sample_all(asked)
        return [policy.model.kept_caches.get(request.conversation) for request in asked]

    keep = SampleRequest(prompt_ids=(9,) * 4, max_tokens=5, conversation=Conversation())
    (memory,) = kept_caches(keep)
    room = int(1e-5 * 2**30 / (memory.kept.nbytes // 4))
    assert kept_caches(replace(keep, last=True)) == [None]
    assert kept_caches(replace(keep, prompt_ids=(9,) * (room + 1))) == [None]
    both = [
        replace(keep, prompt_ids=(9 + i,) * (room // 2 + 1), conversation=Conversation()) for i in range(2)
    ]
    assert sorted(one is None for one in kept_caches(*both)) == [False, True]
    same(talk(policy, STARTS), talk(policy, STARTS, forget=True))


def test_the_budget_is_for_all_batches_together(tiny, monkeypatch):
    policy = tiny.player(noise=0.05, cache_gib=1e-5)
    quick_to_end(policy, monkeypatch, more=100.0)
    asked = [SampleRequest(prompt_ids=(9,) * 4, max_tokens=5, conversation=Conversation()) for _ in range(20)]
    for turn in range(2):
        for one in asked:
            policy.sample_all([replace(one, prompt_ids=(9,) * (4 + turn))])
        kept = [one.kept.nbytes for one in policy.model.kept_caches.values()]
        assert max(kept) < sum(kept) <= 1e-5 * 2**30 < sum(kept) + 2 * max(kept)


def test_nothing_is_kept_between_turns_where_memory_ran_out(llama, monkeypatch):
    keep = SampleRequest(prompt_ids=(9,) * 4, max_tokens=2, conversation=Conversation(), survives_cut=True)
    llama.sample_all([keep])
    assert keep.conversation in llama.model.kept_caches
    plain, kept, shares = llama._engine, [], []

    def engine(rows, prefill, share=1.0):
        kept.append(keep.conversation in llama.model.kept_caches)
        shares.append(share)
        return plain(rows, prefill, share) if len(kept) > 1 else SimpleNamespace(run=out_of_memory)

    def out_of_memory(requests):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(llama, "_engine", engine)
    assert llama.sample_all(requests(2))
    assert kept == [True, False]
    assert shares == [1.0, 0.5]


@pytest.mark.parametrize("change", ["weights", "text", "another"])
def test_a_memory_that_does_not_belong_here_is_not_used(tiny, change, monkeypatch):
    policy = tiny.player(noise=0.05)
    quick_to_end(policy, monkeypatch)
    talk = Conversation()
    policy.sample_all([SampleRequest(prompt_ids=(5, 6, 7, 8), max_tokens=60, conversation=talk)])
    memory = policy.model.kept_caches[talk]
    after = (*memory.token_ids, 11, 12)
    if change == "weights":
        tiny.disturb(policy, 0.05, seed=1)
    elif change == "text":
        after = (6, *after[1:])
    else:
        policy.model.kept_caches[talk] = replace(memory, token_ids=(6, *memory.token_ids[1:]))
    asked = SampleRequest(prompt_ids=after, max_tokens=8)
    with_it, without = policy.sample_all([replace(asked, conversation=talk)]) + policy.sample_all([asked])
    assert with_it == without


@pytest.mark.long
def test_a_conversation_is_remembered_as_long_as_it_lives_and_by_its_last_turn(llama, monkeypatch):
    quick_to_end(llama, monkeypatch, more=100.0)
    talk = Conversation()
    request = SampleRequest(prompt_ids=(5, 6, 7, 8), max_tokens=5, conversation=talk)
    llama.sample_all([request])
    assert llama.model.kept_caches[talk].token_ids == (5, 6, 7, 8)
    llama.sample_all([replace(request, prompt_ids=(5, 6, 7, 8, llama.model.chat.end_id, 4))])
    assert len(llama.model.kept_caches[talk].token_ids) == 6
    llama.sample_all([replace(request, last=True)])
    assert talk not in llama.model.kept_caches
    llama.sample_all([request])
    before = len(llama.model.kept_caches)
    del talk, request
    gc.collect()
    assert len(llama.model.kept_caches) == before - 1


@pytest.mark.parametrize("survives", [True, False])
def test_a_reply_that_was_cut_is_remembered_where_a_turn_may_follow_it(llama, survives):
    request = SampleRequest(
        prompt_ids=(5, 6), max_tokens=2, conversation=Conversation(), survives_cut=survives
    )
    assert not llama.sample_all([request])[0].finished
    assert (request.conversation in llama.model.kept_caches) is survives


def test_a_completion_names_the_version_of_the_weights_that_wrote_it(tiny):
    policy = tiny.player()
    asked = SampleRequest(prompt_ids=(5, 6), max_tokens=2)
    assert policy.sample_all([asked])[0].version == 0
    policy.weights.version = 7
    assert policy.sample_all([asked])[0].version == 7
