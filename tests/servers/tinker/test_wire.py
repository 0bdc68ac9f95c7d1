"""The encodings against protobuf's own library, and what is damaged ends in a sentence."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.algorithms.losses import WIRE_LOSSES
from genenv.backends.served import ForwardResult, PromptResult
from genenv.errors import UsageError
from genenv.sampling import Completion
from genenv.servers.tinker import replies as wire
from genenv.servers.tinker.replies import FailedReply, JsonReply, SampledReply, TrainReply, as_json, as_proto
from genenv.servers.tinker.requests import addressed, learn_of_json, learn_of_proto

pytest.importorskip("google.protobuf")

FIELDS: dict[str, str] = {
    "SparseCsr": "1 values bytes; 2 crow bytes; 3 col bytes",
    "Tensor": "1 dense bytes; 2 sparse SparseCsr; 3 dtype int32; 4 shape int64*",
    "Text": "1 tokens bytes",
    "Chunk": "1 text Text; 2 image Text",
    "Datum": "1 input Chunk*; 2 inputs {Tensor}",
    "Request": "1 model_id string; 2 seq_id int32; 3 data Datum*; 4 loss_fn string; 5 config {double}; "
    "6 forward_only bool",
    "Sequence": "1 stop int32; 2 tokens bytes; 3 logprobs bytes",
    "Top": "1 ids bytes; 2 logprobs bytes; 3 k uint32; 4 length uint32",
    "Sample": "1 sequences Sequence*; 2 prompt bytes; 3 top Top; 4 hits int32",
    "Batched": "1 data bytes; 2 offsets bytes; 3 dtype int32; 4 trailing int64*",
    "Record": "1 tag string; 2 fields {Batched}; 3 count int64",
    "Output": "1 type string; 2 outputs Record*; 3 metrics {double}",
}
"""Messages of the protocol: number, name and type of each field; `*` repeats, `{...}` is a map from names."""


def _messages() -> Any:
    """Classes of protobuf's own library for these."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")

    def put(message: Any, number: str, name: str, kind: str, *, many: bool) -> None:
        own = message.field.add(name=name, number=int(number))
        own.label = kinds.LABEL_REPEATED if many else kinds.LABEL_OPTIONAL
        if kind in FIELDS or "." in kind:
            own.type, own.type_name = kinds.TYPE_MESSAGE, f".t.{kind}"
        else:
            own.type = getattr(kinds, f"TYPE_{kind.upper()}")

    for title, fields in FIELDS.items():
        message = file.message_type.add(name=title)
        for number, name, kind in (one.split(maxsplit=2) for one in fields.split("; ")):
            if kind.startswith("{"):
                entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
                entry.options.map_entry = True
                put(entry, "1", "key", "string", many=False)
                put(entry, "2", "value", kind.strip("{}"), many=False)
                put(message, number, name, f"{title}.{entry.name}", many=True)
            else:
                put(message, number, name, kind.rstrip("*"), many=kind.endswith("*"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in FIELDS}


MESSAGES = _messages()
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
    message = MESSAGES["Tensor"](dtype=2 if whole else 1, shape=shape)
    if width is not None and draw(st.booleans()):
        array[draw(st.integers(0, rows - 1))] = 0
        at = np.nonzero(array)
        message.sparse.values = array[at].tobytes()
        message.sparse.crow = np.r_[0, np.cumsum(np.count_nonzero(array, axis=1))].astype(np.int64).tobytes()
        message.sparse.col = at[1].astype(np.int64).tobytes()
    else:
        message.dense = array.tobytes()
    return array, message


@st.composite
def requests(draw: Any) -> Any:
    """A request, and the arrays in it."""
    message = MESSAGES["Request"](
        model_id=draw(names),
        seq_id=draw(st.integers(0, 2**31 - 1)),
        loss_fn=draw(st.sampled_from(list(WIRE_LOSSES))),
        forward_only=draw(st.booleans()),
        config=draw(st.dictionaries(names, floats, max_size=2)),
    )
    arrays = []
    for _ in range(draw(st.integers(0, 3))):
        ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6))
        width = draw(st.sampled_from([None, 1, 3]))
        datum = message.data.add()
        for part in (ids[:2], ids[2:]):
            if part:
                datum.input.add().text.tokens = np.array(part, np.int32).tobytes()
        own = {}
        for name, whole in (("target_tokens", True), ("weights", False), ("logprobs", False)):
            own[name], tensor = draw(tensors(len(ids), width, whole=whole))
            datum.inputs[name].CopyFrom(tensor)
        arrays.append((ids, own))
    return message, arrays


@given(requests())
@settings(max_examples=25)
def test_data_arrive_as_they_were_sent(sent: Any) -> None:
    message, arrays = sent
    found = learn_of_proto(message.SerializeToString())
    assert (found.model_id, found.seq_id or 0) == (message.model_id, message.seq_id)
    assert (found.loss.name, found.forward_only) == (message.loss_fn, message.forward_only)
    assert found.loss.config == dict(message.config)
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
            learn_of_proto(sent)


def test_data_in_json_are_the_same() -> None:
    body = {
        "model_id": "m",
        "seq_id": 3,
        "forward_backward_input": {
            "loss_fn": "cross_entropy",
            "data": [
                {
                    "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}, {"tokens": [3]}]},
                    "loss_fn_inputs": {
                        "target_tokens": {"data": [2, 3, 4], "dtype": "int64"},
                        "weights": {"data": [0, 1, 0.5], "dtype": "float32", "shape": [3]},
                    },
                }
            ],
        },
    }
    found = learn_of_json(json.dumps(body).encode(), forward_only=False)
    assert found.examples[0].ids == (1, 2, 3)
    assert found.examples[0].targets.tolist() == [2, 3, 4]
    assert found.examples[0].inputs["weights"].tolist() == [0, 1, 0.5]
    body["forward_backward_input"]["data"][0]["model_input"]["chunks"][1]["type"] = "image"
    with pytest.raises(UsageError, match="a chunk of type 'image'"):
        learn_of_json(json.dumps(body).encode(), forward_only=False)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([None, 2, 3])), max_size=4),
    st.dictionaries(names, floats, max_size=2),
)
def test_scores_arrive_as_they_were(shapes: list[tuple[int, int | None]], metrics: dict[str, float]) -> None:
    drawn = np.random.default_rng(len(shapes))
    arrays = [drawn.normal(size=(n,) if k is None else (n, k)).astype(np.float32) for n, k in shapes]
    scored = ForwardResult(loss=0.0, logprobs=arrays, losses=[-array for array in arrays])
    message = MESSAGES["Output"]()
    message.ParseFromString(as_proto(TrainReply(scored=scored, metrics=metrics)) or b"")
    assert dict(message.metrics) == metrics
    assert sum(record.count for record in message.outputs) == len(arrays)
    for name, sign in (("logprobs", 1), ("elementwise_loss", -1)):
        found = []
        for record in message.outputs:
            own = record.fields[name]
            ends = np.frombuffer(own.offsets, np.int64)
            found += [
                np.frombuffer(own.data[a:b], np.float32).reshape(-1, *own.trailing)
                for a, b in itertools.pairwise(ends)
            ]
        for array, other in zip(arrays, found, strict=True):
            np.testing.assert_array_equal(sign * array, other.reshape(array.shape))
    said = as_json(TrainReply(scored=scored, metrics=metrics))
    assert [len(one["logprobs"]["data"]) for one in said["loss_fn_outputs"]] == [a.size for a in arrays]


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
    message = MESSAGES["Sample"]()
    message.ParseFromString(as_proto(SampledReply(answered=answered)) or b"")
    for (ids, stopped), own in zip(sequences, message.sequences, strict=True):
        assert np.frombuffer(own.tokens, np.int32).tolist() == ids
        assert np.frombuffer(own.logprobs, np.float32).tolist() == [-float(i) for i in range(len(ids))]
        assert (own.stop == 0) is stopped
    assert np.isnan(np.frombuffer(message.prompt, np.float32)[0])
    assert (message.top.k, message.top.length) == (2, 2)
    said = as_json(SampledReply(answered=answered))
    assert said["prompt_logprobs"] == [None, -1.5]
    assert said["topk_prompt_logprobs"] == [None, [[4, -1.0], [5, -2.0]]]


@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers(value: int) -> None:
    found = list(wire.fields(wire.put_int(3, value)))
    assert [wire.int_of(one) for _, _, one in found] == ([value] if value else [])


def test_other_answers_are_json_for_everybody() -> None:
    assert as_proto(JsonReply(json={"a": 1})) is None
    assert as_json(FailedReply(error="no")) == {"error": "no", "category": "user"}
