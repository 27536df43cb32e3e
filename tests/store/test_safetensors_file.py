"""Headers from strangers: valid, or one ModelFileError, and no more memory than twice the file."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from swarm.errors import ModelFileError
from swarm.store.safetensors_file import (
    HEADER_LIMIT,
    LENGTH_BYTES,
    TensorSpec,
    header_end,
    parse_header,
    read_header,
    write_header,
)

FIELDS: dict[str, Any] = {
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
}
DATA_BYTES = 32


def parse(fields: Any, data_bytes: int = DATA_BYTES) -> dict[str, TensorSpec]:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return parse_header(text, LENGTH_BYTES + len(text) + data_bytes, "file")


def changed(tensor: str, **fields: Any) -> dict[str, Any]:
    return FIELDS | {tensor: FIELDS[tensor] | fields}


def test_a_written_file_is_read_as_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "none": np.zeros((0, 4), np.int8)}
    save_file(arrays, path, metadata={"format": "pt", "näme": 'q"\\{}'})
    found = read_header(path)
    data = path.read_bytes()
    assert {name: spec.shape for name, spec in found.items()} == {"w": (2, 3), "none": (0, 4)}
    assert data[found["w"].start : found["w"].stop] == arrays["w"].tobytes()


def test_a_header_written_here_is_read_by_the_library(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    head, placed = write_header({"w": TensorSpec("F32", (2, 3), 100, 124), "v": TensorSpec("BF16", (4,), 7, 15)})
    path.write_bytes(head + bytes(32))
    assert len(head) % 64 == 0
    assert read_header(path) == placed
    with safe_open(path, framework="np") as file:
        assert file.get_slice("w").get_shape() == [2, 3]


@pytest.mark.parametrize(
    "fields",
    [
        changed("b", data_offsets=[24, 40]),
        changed("b", data_offsets=[16, 24]),
        changed("b", data_offsets=[32, 24]),
        changed("b", data_offsets=[24, 2**63]),
        changed("b", data_offsets=[-8, 0]),
        changed("b", data_offsets=[24, 32, 32]),
        changed("b", data_offsets=[24.0, 32.0]),
        changed("b", shape=[5]),
        changed("b", shape=[2**62, 2**62]),
        changed("b", shape=[True, 4]),
        changed("b", shape=[1] * 9),
        changed("b", shape=4),
        changed("b", dtype="PICKLE"),
        changed("b", dtype=["F32"]),
        changed("b", more=1),
        {"a": FIELDS["a"]},
        {**FIELDS, "c": {"dtype": "U8", "shape": [1], "data_offsets": [40, 41]}},
        {**FIELDS, "c": []},
        {**FIELDS, "__metadata__": {"x": 1}},
        {**FIELDS, "__metadata__": {"x": {"y": "z"}}},
        [],
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'\xff\xfe{"a"',
        json.dumps(FIELDS).encode() + b"{}",
        json.dumps(FIELDS).encode()[:-1] + b',"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"F32","dtype":"F64","shape":[4],"data_offsets":[0,32]}}',
        b'{"a":{"dtype":"F32","shape":[' + b"9" * 900 + b'],"data_offsets":[0,32]}}',
        b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,32]}}',
    ],
)
def test_lies_are_one_line(fields: Any) -> None:
    with pytest.raises(ModelFileError) as raised:
        parse(fields)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(
    ("length", "file_bytes", "says"),
    [
        (HEADER_LIMIT + 1, 2**40, "the limit is"),
        (2**63, 2**40, "the limit is"),
        (100, 90, "the file has 90"),
        (2, 5, "too short"),
    ],
)
def test_the_length_is_checked_before_anything_is_read(length: int, file_bytes: int, says: str) -> None:
    with pytest.raises(ModelFileError, match=says):
        header_end(length.to_bytes(8, "little"), file_bytes, "file")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"w": np.zeros(100, np.float32)}, path)
    whole = path.read_bytes()
    for size in (0, 3, 8, 20, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError):
            read_header(path)


@pytest.mark.parametrize(
    "text",
    [
        b'{"__metadata__":{' + b'"":"",' * 300_000 + b'"":""}}',
        b'{"a":[' + b"0," * 1_000_000 + b"0]}",
        b'{"a":' + b"{" * 2_000_000,
        b'{"' + b"x" * 2_000_000 + b'":{"dtype":"U8","shape":[1],"data_offsets":[0,0]}}',
    ],
)
def test_a_hostile_header_costs_no_more_than_twice_its_bytes(text: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError):
            parse(text, 7)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 2 * len(text) + 100_000


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_change_is_valid_or_a_model_file_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = bytearray(json.dumps(FIELDS).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "add"]))
        if kind == "set":
            text[at] = data.draw(st.sampled_from(b'0123456789{}[]",:-e. abFU\\\xc3'))
        elif kind == "cut":
            del text[at : at + data.draw(st.integers(1, 9))]
        else:
            text[at:at] = data.draw(st.sampled_from([b"1", b'"', b"{}", b",", b"null", b"9" * 20, b"[0]", b" "]))
        if not text:
            return
    try:
        found = parse(bytes(text))
    except ModelFileError as error:
        assert "\n" not in str(error)
        return
    path = tmp_path_factory.getbasetemp() / "changed.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(DATA_BYTES))
    with safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(found)
