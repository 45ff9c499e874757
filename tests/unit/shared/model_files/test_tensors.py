"""A safetensors file is what it says, or no loader opens it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shared.model_files.tensors import (
    BASE_DTYPES,
    MAX_HEADER_BYTES,
    TRAINED_DTYPES,
    BadModel,
    NotFinite,
    read_tensors,
    require_finite,
)
from tests.model_files import packed, safetensors


def tensor(begin=0, end=8, **changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [begin, end]} | changes


@pytest.fixture
def read(tmp_path):
    path = tmp_path / "w.safetensors"

    def read(content, *, dtypes=TRAINED_DTYPES):
        path.write_bytes(content)
        return read_tensors(path, dtypes=dtypes)

    return read


def test_gives_the_tensors_in_the_order_of_their_bytes(read):
    header = {"b": tensor(8, 16), "a": tensor(0, 8), "__metadata__": {"format": "pt"}}
    tensors = read(packed(header, bytes(16)))
    assert [(each.name, each.shape, each.numel) for each in tensors] == [("a", (2,), 2), ("b", (2,), 2)]


def test_reads_what_the_library_writes(tmp_path):
    import numpy as np
    from safetensors.numpy import save_file

    path = tmp_path / "w.safetensors"
    save_file(
        {"x": np.ones((3, 4), np.float32), "y": np.ones(2, np.float16), "z": np.zeros((0, 2), np.int64)}, path
    )
    shapes = {tensor.name: tensor.shape for tensor in read_tensors(path, dtypes=BASE_DTYPES)}
    assert shapes == {"x": (3, 4), "y": (2,), "z": (0, 2)}


TWICE = b'"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'

BAD = {
    "shorter than its length field": b"\x01\x02",
    "a header larger than allowed": packed(b"{}" + b" " * (MAX_HEADER_BYTES - 1), b""),
    "a header longer than the file": (100).to_bytes(8, "little") + b"{}",
    "not JSON": packed(b"{'a'}", b""),
    "not UTF-8": packed(b'{"\xff": 1}', b""),
    "no object": packed([1], b""),
    "deep nesting": packed(b"[" * 100_000, b""),
    "a name twice": packed(b"{%s, %s}" % (TWICE, TWICE), b""),
    "not a number": packed(b'{"a": NaN}', b""),
    "a tensor without offsets": packed({"a": {"dtype": "F32", "shape": [2]}}, b""),
    "an unknown field": packed({"a": tensor(more=1)}, bytes(8)),
    "a dtype that we do not train in": packed({"a": tensor(dtype="I32")}, bytes(8)),
    "an unknown dtype": packed({"a": tensor(dtype="F128")}, bytes(8)),
    "a dtype that is no text": packed({"a": tensor(dtype=["F32"])}, bytes(8)),
    "a negative shape": packed({"a": tensor(shape=[-2])}, bytes(8)),
    "a shape of truth values": packed({"a": tensor(shape=[True, 2])}, bytes(8)),
    "a shape of many dimensions": packed({"a": tensor(shape=[1] * 8 + [2])}, bytes(8)),
    "offsets that are fractions": packed({"a": tensor(data_offsets=[0.0, 8.0])}, bytes(8)),
    "offsets backwards": packed({"a": tensor(data_offsets=[8, 0])}, bytes(8)),
    "a size that the shape does not need": packed({"a": tensor(shape=[3])}, bytes(8)),
    "a hole": packed({"a": tensor(0, 8), "b": tensor(12, 20)}, bytes(20)),
    "an overlap": packed({"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12)),
    "bytes after the last tensor": packed({"a": tensor()}, bytes(9)),
    "fewer bytes than the tensors need": packed({"a": tensor()}, bytes(7)),
    "more tensors than allowed": packed(
        {f"t{number}": tensor(0, 0, shape=[0]) for number in range(5_001)}, b""
    ),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_refuses_a_file_with(read, content):
    with pytest.raises(BadModel, match=r"^w\.safetensors: "):
        read(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "file of 0 bytes"),
        (b"\x01\x02", "file of 2 bytes"),
        ((2**63).to_bytes(8, "little") + b"{}", "header of 9223372036854775808 bytes"),
        ((100 * 1024 * 1024).to_bytes(8, "little") + b"{" + b" " * 100, "header of 104857600 bytes"),
        ((3).to_bytes(8, "little") + b"{}", "header of 3 bytes in a file of 10 bytes, expected 2 to 2"),
        (packed(b"{" + b" " * MAX_HEADER_BYTES + b"}", b""), "expected 2 to 1048576"),
        (packed(b"[]", b""), "list"),
        (packed(b"null", b""), "NoneType"),
        (packed(b"\xff\xfe", b""), "not JSON"),
        (packed(b"[" * 100_000, b""), "not JSON"),
        (packed(b'{"a": {}, "a": 1}', b""), "twice"),
        (packed(b"{}", b"trailing"), "0 tensors"),
        (b"\x80\x04\x95" + b"pickled" * 20, "header of"),
        (packed({"a": tensor()}, bytes(8) + b"pickle"), "file not fully covered"),
        (packed({"a": tensor()}, bytes(4)), "file not fully covered"),
        (packed({"a": tensor(0, 8), "b": tensor(12, 20)}, bytes(20)), "invalid offset for tensor `b`"),
        (packed({"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12)), "invalid offset for tensor `b`"),
        (packed({"a": tensor(shape=[2**47, 2**47])}, bytes(8)), "w.safetensors"),
    ],
)
def test_says_what_is_wrong(read, content, message):
    with pytest.raises(BadModel, match=message):
        read(content)


GOOD = safetensors({"model.a": (2, 3), "model.b": (4,)})


SAME_FILE = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@SAME_FILE
@given(st.binary(max_size=200))
def test_refuses_bytes_of_any_kind_without_another_error(read, content):
    with pytest.raises(BadModel):
        read(content)


@SAME_FILE
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_changed_byte_never_lets_a_tensor_leave_the_file(read, position, value):
    content = bytearray(GOOD)
    content[position] = value
    try:
        tensors = read(bytes(content), dtypes=BASE_DTYPES)
    except BadModel:
        return
    assert all(0 <= each.numel <= len(content) for each in tensors)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("F32", b"\x00\x00\x80\x7f"),
        ("F32", b"\x00\x00\xc0\x7f"),
        ("F32", b"\x00\x00\x80\xff"),
        ("BF16", b"\x80\x7f"),
        ("BF16", b"\xc0\xff"),
        ("F16", b"\x00\x7c"),
        ("F16", b"\x00\xfe"),
    ],
)
def test_finds_a_value_that_is_not_finite(tmp_path, dtype, value):
    content = safetensors({"a": (4,), "b": (8,)}, dtype=dtype)
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    require_finite(tmp_path)
    path.write_bytes(content[: -len(value)] + value)
    with pytest.raises(NotFinite, match=r"w\.safetensors: tensor 'b' holds a value that is not finite"):
        require_finite(tmp_path)
