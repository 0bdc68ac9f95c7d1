# pyright: standard
"""The protobuf messages of the Tinker protocol that the server reads and writes, as classes of `protobuf`.

The classes are made of the table below, so that neither a compiler nor the Tinker SDK is needed.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from genenv.errors import UsageError

_FIELDS = {
    "ForwardBackwardRequest": "1 model_id string; 2 seq_id int32; 3 data Datum*; 4 loss_fn string; "
    "5 loss_fn_config {double}; 6 forward_only bool",
    "Datum": "1 model_input Chunk*; 2 loss_fn_inputs {Tensor}",
    "Chunk": "1 encoded_text EncodedText; 2 image NotText; 3 dmel NotText",
    "EncodedText": "1 tokens bytes",
    "NotText": "",
    "Tensor": "1 dense bytes; 2 sparse_csr SparseCsr; 3 dtype int32; 4 shape int64*",
    "SparseCsr": "1 values bytes; 2 crow_indices bytes; 3 col_indices bytes",
    "ForwardBackwardOutput": "1 loss_fn_output_type string; 2 loss_fn_outputs ArrayRecord*; "
    "3 metrics {double}",
    "ArrayRecord": "1 type_tag string; 2 fields {BatchedTensor}; 3 num_datums int64",
    "BatchedTensor": "1 data bytes; 2 offsets bytes; 3 dtype int32; 4 trailing_shape int64*",
    "SampleResponse": "1 sequences SampledSequence*; 2 prompt_logprobs bytes; "
    "3 topk_prompt_logprobs TopkPromptLogprobs",
    "SampledSequence": "1 stop_reason int32; 2 tokens bytes; 3 logprobs bytes",
    "TopkPromptLogprobs": "1 token_ids bytes; 2 logprobs bytes; 3 k uint32; 4 prompt_length uint32",
}
"""Number, name and type of each message's fields: `*` repeats, `{...}` is a map from texts."""

FLOAT32, INT64, INT32 = 1, 2, 3
"""Number formats of tensors (`dtype`)."""
STOPPED, CUT_OFF = 0, 1
"""Why a completion ended (`stop_reason`)."""


def _classes() -> dict[str, Any]:
    """The class of each message."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tinker.proto", package="tinker", syntax="proto3")

    def add(message: Any, number: str, name: str, kind: str) -> None:  # noqa: ANN401 - a descriptor
        field = message.field.add(name=name, number=int(number), label=kinds.LABEL_OPTIONAL)
        if kind.startswith("{"):
            entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
            entry.options.map_entry = True
            add(entry, "1", "key", "string")
            add(entry, "2", "value", kind.strip("{}"))
            kind = f"{message.name}.{entry.name}*"
        if kind.endswith("*"):
            kind, field.label = kind.rstrip("*"), kinds.LABEL_REPEATED
        if kind[0].isupper():
            field.type, field.type_name = kinds.TYPE_MESSAGE, f".{file.package}.{kind}"
        else:
            field.type = getattr(kinds, f"TYPE_{kind.upper()}")

    for name, listed in _FIELDS.items():
        message = file.message_type.add(name=name)
        for one in filter(None, listed.split("; ")):
            add(message, *one.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {name: pool.FindMessageTypeByName(f"{file.package}.{name}") for name in _FIELDS}
    return {name: message_factory.GetMessageClass(one) for name, one in found.items()}


_CLASSES = _classes()
ForwardBackwardRequest: Any = _CLASSES["ForwardBackwardRequest"]
ForwardBackwardOutput: Any = _CLASSES["ForwardBackwardOutput"]
SampleResponse: Any = _CLASSES["SampleResponse"]


def parse(message: Any, data: bytes) -> None:  # noqa: ANN401 - of any of the classes
    """Fill a message from bytes. Of a damaged one it has the fields before the damage.

    Raises:
        UsageError: this is no such message.
    """
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError) as error:  # the latter where it is in pure Python
        raise UsageError(f"the body is no protobuf message of the Tinker protocol: {error}") from error
