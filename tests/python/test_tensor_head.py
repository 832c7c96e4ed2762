"""The head of stored tensors: its bytes, and that a reader believes none of them. Needs no torch."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncrate import tensors
from mooncrate.tensors import BY_NAME, DTYPES, EP, SIZE, TP, Axis, Head

SHARD = Head(BY_NAME["bfloat16"], (3, 2), (3, 4), (Axis(TP, 1, 2, 1),))


def test_the_bytes_are_those_of_the_table():
    stored = SHARD.to_bytes()
    assert len(stored) == SIZE == 304
    assert struct.unpack_from("<IHHiiIIQQ", stored) == (0x4D4F4F4E, 1, 304, 12, 2, 1, 0, 304, 12)
    assert struct.unpack_from("<8q", stored, 40) == (3, 4, -1, -1, -1, -1, -1, -1)
    assert struct.unpack_from("<8q", stored, 104) == (3, 2, -1, -1, -1, -1, -1, -1)
    assert struct.unpack_from("<II", stored, 168) == (1, 0)
    assert struct.unpack_from("<6iq", stored, 176) == (TP, 0, 1, 2, 1, 0, 2)
    assert stored[208:] == bytes(96)


def test_the_codes_are_those_of_the_table():
    names = (
        "float32 float64 int8 uint8 int16 uint16 int32 uint32 int64 uint64 bool float16 bfloat16"
    )
    assert [dtype.name for dtype in DTYPES] == [*names.split(), "float8_e4m3fn", "float8_e5m2"]
    assert [dtype.code for dtype in DTYPES] == [*range(15)]


shapes = st.lists(st.integers(0, 3), max_size=8).map(tuple)


@settings(deadline=None)
@given(st.sampled_from(DTYPES), shapes)
def test_a_head_reads_back(dtype, shape):
    head = Head(dtype, shape, shape)
    assert tensors.parse(head.to_bytes() + bytes(head.nbytes)) == head
    assert tensors.parse(head.to_bytes(), SIZE + head.nbytes) == head


@settings(deadline=None)
@given(st.integers(0, SIZE - 1), st.integers(1, 255))
def test_a_damaged_head_is_refused_or_describes_the_same_bytes(place, flip):
    stored = bytearray(SHARD.to_bytes() + bytes(SHARD.nbytes))
    stored[place] ^= flip
    try:
        read = tensors.parse(stored)
    except ValueError:
        return
    # Another type of the same width is a good head too: the bytes of the value have a checksum, the head has none.
    assert (read.nbytes, read.shape, read.whole) == (SHARD.nbytes, SHARD.shape, SHARD.whole)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_refused_or_describe_themselves(value):
    try:
        assert tensors.parse(value).nbytes == len(value) - SIZE
    except ValueError:
        pass


@pytest.mark.parametrize("size", [0, 1, SIZE - 1, SIZE, SIZE + 11, SIZE + 13])
def test_a_value_of_another_length_is_refused(size):
    with pytest.raises(ValueError):
        tensors.parse((SHARD.to_bytes() + bytes(99))[:size])


@pytest.mark.parametrize(
    "make",
    [
        lambda d: Head(d, (1,) * 9, (1,) * 9),
        lambda d: Head(d, (-1,), (-1,)),
        lambda d: Head(d, (2,), (3,)),
        lambda d: Head(d, (2,), (4,), (Axis(TP, 2, 2, 0),)),
        lambda d: Head(d, (2,), (4,), (Axis(TP, 0, 2, 1),)),
        lambda d: Head(d, (2,), (4,), (Axis(TP, 0, 3, 0),)),
        lambda d: Head(d, (2,), (4,), (Axis(9, 0, 2, 0),)),
        lambda d: Head(d, (0,), (0,), (Axis(TP, 0, 2**31, 0),)),
        lambda d: Head(d, (2,), (2,), (Axis(EP, 0, 1, -1, 2**31),)),
        lambda d: Head(d, (2**62,), (2**63,), (Axis(TP, 0, 2, 0),)),
        lambda d: Head(d, (1,), (4,), (Axis(TP, 0, 2, 0), Axis(TP, 0, 2, 0))),
    ],
)
def test_what_cannot_be_stored_is_refused(make):
    with pytest.raises(ValueError):
        make(BY_NAME["float32"])
