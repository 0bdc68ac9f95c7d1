"""The encodings against the messages of Tinker's own SDK, and what is damaged ends in a sentence."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.algorithms.losses import WIRE_LOSSES
from genenv.backends.served import ForwardResult, PromptResult
from genenv.errors import UsageError
from genenv.sampling import Completion
from genenv.servers.tinker.bodies import addressed, parse_training
from genenv.servers.tinker.replies import SampledReply, TrainReply, as_proto

sdk: Any = pytest.importorskip("tinker.proto.tinker_public_pb2")
floats = st.floats(-1e6, 1e6, width=32)
names = st.text(min_size=1, max_size=8)


@st.composite
def tensors(draw: Any, rows: int, width: int | None, *, whole: bool) -> Any:
    """An array, and a protobuf Tensor of it, dense or sparse."""
    dtype = np.int64 if whole else np.float32
    numbers = st.integers(0, 2**40) if whole else floats
    shape = [rows] if width is None else [rows, width]
    flat = draw(st.lists(numbers, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    array = np.array(flat, dtype).reshape(shape)
    message = sdk.Tensor(dtype=2 if whole else 1, shape=shape)
    if width is not None and draw(st.booleans()):
        array[draw(st.integers(0, rows - 1))] = 0
        at = np.nonzero(array)
        message.sparse_csr.values = array[at].tobytes()
        message.sparse_csr.crow_indices = (
            np.r_[0, np.cumsum(np.count_nonzero(array, axis=1))].astype(np.int64).tobytes()
        )
        message.sparse_csr.col_indices = at[1].astype(np.int64).tobytes()
    else:
        message.dense = array.tobytes()
    return array, message


@st.composite
def requests(draw: Any) -> Any:
    """A request, and the arrays in it."""
    message = sdk.ForwardBackwardRequest(
        model_id=draw(names),
        seq_id=draw(st.integers(0, 2**31 - 1)),
        loss_fn=draw(st.sampled_from(list(WIRE_LOSSES))),
        forward_only=draw(st.booleans()),
        loss_fn_config=draw(st.dictionaries(names, floats, max_size=2)),
    )
    arrays = []
    for _ in range(draw(st.integers(0, 3))):
        ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6))
        width = draw(st.sampled_from([None, 1, 3]))
        datum = message.data.add()
        for part in (ids[:2], ids[2:]):
            if part:
                datum.model_input.add().encoded_text.tokens = np.array(part, np.int32).tobytes()
        own = {}
        for name, whole in (("target_tokens", True), ("weights", False), ("logprobs", False)):
            own[name], tensor = draw(tensors(len(ids), width, whole=whole))
            datum.loss_fn_inputs[name].CopyFrom(tensor)
        arrays.append((ids, own))
    return message, arrays


@given(requests())
@settings(max_examples=25)
def test_data_arrive_as_they_were_sent(sent: Any) -> None:
    message, arrays = sent
    found = parse_training(message.SerializeToString())
    assert (found.model_id, found.seq_id or 0) == (message.model_id, message.seq_id)
    assert (found.loss.name, found.forward_only) == (message.loss_fn, message.forward_only)
    assert found.loss.config == dict(message.loss_fn_config)
    assert len(found.examples) == len(arrays)
    for example, (ids, own) in zip(found.examples, arrays, strict=True):
        assert example.ids == tuple(ids)
        np.testing.assert_array_equal(example.targets, own["target_tokens"])
        for name in ("weights", "logprobs"):
            np.testing.assert_array_equal(example.inputs[name], own[name])
    to = addressed(message.SerializeToString(), proto=True)
    assert to is not None
    assert (to.model_id, to.seq_id or 0) == (message.model_id, message.seq_id)


@given(st.binary(max_size=60) | requests().map(lambda sent: sent[0].SerializeToString()), st.data())
@settings(max_examples=80)
def test_what_is_damaged_is_refused(whole: bytes, data: Any) -> None:
    at = data.draw(st.integers(0, len(whole)))
    for sent in (whole, whole[:at], whole[:at] + b"\xff" + whole[at:]):
        with contextlib.suppress(UsageError):
            parse_training(sent)


def test_a_damaged_body_still_says_which_model_it_is_for() -> None:
    whole = sdk.ForwardBackwardRequest(model_id="m", seq_id=3).SerializeToString()
    with pytest.raises(UsageError, match="no protobuf message of the Tinker protocol"):
        parse_training(whole + b"\x1a\x7f")
    to = addressed(whole + b"\x1a\x7f", proto=True)
    assert to is not None
    assert (to.model_id, to.seq_id) == ("m", 3)
    for odd in (sdk.ForwardBackwardRequest(seq_id=-3), sdk.ForwardBackwardRequest(model_id="m" * 2000)):
        assert addressed(odd.SerializeToString(), proto=True) is None


def test_what_is_no_text_or_too_much_is_refused_in_protobuf() -> None:
    message = sdk.ForwardBackwardRequest(model_id="m")
    chunk = message.data.add().model_input.add()
    for kind in ("image", "dmel"):
        getattr(chunk, kind).SetInParent()
        with pytest.raises(UsageError, match=f"a chunk of type '{kind}'"):
            parse_training(message.SerializeToString())
    with pytest.raises(UsageError, match="more than 16384 data"):
        parse_training(b"\x1a\x00" * 16_385)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([None, 2, 3])), max_size=4),
    st.dictionaries(names, floats, max_size=2),
)
def test_scores_arrive_as_they_were(shapes: list[tuple[int, int | None]], metrics: dict[str, float]) -> None:
    drawn = np.random.default_rng(len(shapes))
    arrays = [drawn.normal(size=(n,) if k is None else (n, k)).astype(np.float32) for n, k in shapes]
    scored = ForwardResult(loss=0.0, logprobs=arrays, losses=[-array for array in arrays])
    message = sdk.ForwardBackwardOutput()
    message.ParseFromString(as_proto(TrainReply(scored=scored, metrics=metrics)))
    assert dict(message.metrics) == metrics
    assert sum(record.num_datums for record in message.loss_fn_outputs) == len(arrays)
    for name, sign in (("logprobs", 1), ("elementwise_loss", -1)):
        found = []
        for record in message.loss_fn_outputs:
            own = record.fields[name]
            ends = np.frombuffer(own.offsets, np.int64)
            found += [
                np.frombuffer(own.data[a:b], np.float32).reshape(-1, *own.trailing_shape)
                for a, b in itertools.pairwise(ends)
            ]
        for array, other in zip(arrays, found, strict=True):
            np.testing.assert_array_equal(sign * array, other.reshape(array.shape))


@given(st.lists(st.tuples(st.lists(st.integers(0, 2**31 - 1), max_size=5), st.booleans()), max_size=3))
def test_samples_arrive_as_they_were(sequences: list[tuple[list[int], bool]]) -> None:
    answered = PromptResult(
        sequences=[
            Completion(
                token_ids=tuple(ids),
                logprobs=tuple(-float(i) for i in range(len(ids))),
                text="",
                finished=stopped,
            )
            for ids, stopped in sequences
        ],
        prompt_logprobs=np.array([np.nan, -1.5], np.float32),
        top_prompt_logprobs=(
            np.array([[0, 0], [4, 5]], np.int32),
            np.array([[-9, -9], [-1, -2]], np.float32),
        ),
    )
    message = sdk.SampleResponse()
    message.ParseFromString(as_proto(SampledReply(answered=answered)))
    for (ids, stopped), own in zip(sequences, message.sequences, strict=True):
        assert np.frombuffer(own.tokens, np.int32).tolist() == ids
        assert np.frombuffer(own.logprobs, np.float32).tolist() == [-float(i) for i in range(len(ids))]
        assert (own.stop_reason == sdk.STOP_REASON_STOP) is stopped
    assert np.isnan(np.frombuffer(message.prompt_logprobs, np.float32)[0])
    assert (message.topk_prompt_logprobs.k, message.topk_prompt_logprobs.prompt_length) == (2, 2)
