"""The digest's byte format, checked against a second implementation and known answers."""

import hashlib
import struct

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from flax.core import freeze
from hypothesis import given, settings
from hypothesis import strategies as st

from repjax.digests import digest, hex_bits


def reimplementation(entries):
    """The documented format, written from its documentation.

    entries: (names, dtype, shape, bytes) of every leaf, in any order.
    """
    data = b"repjax digest 1\n"

    def string(text):
        return len(text.encode()).to_bytes(4, "little") + text.encode()

    for names, dtype, shape, elements in sorted(
        entries, key=lambda entry: [name.encode() for name in entry[0]]
    ):
        data += len(names).to_bytes(4, "little") + b"".join(map(string, names)) + string(dtype)
        data += len(shape).to_bytes(4, "little")
        data += b"".join(n.to_bytes(8, "little") for n in shape) + elements
    return "sha256:" + hashlib.sha256(data).hexdigest()


def floats(*words):
    return np.array(words, np.uint32).view(np.float32)


def test_format_byte_by_byte():
    tree = {"b": np.array([[1.0, -2.0]], np.float32), "a": np.int16(-2)}
    data = (
        b"repjax digest 1\n"
        b"\x01\0\0\0" b"\x01\0\0\0a" b"\x05\0\0\0int16" b"\0\0\0\0" b"\xfe\xff"
        b"\x01\0\0\0" b"\x01\0\0\0b" b"\x07\0\0\0float32" b"\x02\0\0\0"
        b"\x01\0\0\0\0\0\0\0" b"\x02\0\0\0\0\0\0\0" b"\0\0\x80\x3f" b"\0\0\0\xc0"
    )  # fmt: skip
    assert digest(tree) == "sha256:" + hashlib.sha256(data).hexdigest()


KNOWN_ANSWERS = {
    "empty": (
        {},
        "2ed9d109eb92c5c52f974bf1b5559fda15c024dc42aab0ec4e92dad3364a1ab8",
    ),
    "params": (
        {"params": {"dense": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}}},
        "fe9ee6aee3fb060a8d94ad93ec3f9c5e55e2ac475794437d4d92d167d8e702fb",
    ),
    "special floats": (
        floats(0x80000000, 0x7F800000, 0x7FC00001, 0x00000001),
        "ad5ce856f25987eac4c230b03f13eadd706b152886817dc6b2bb22c036e2eda7",
    ),
    "mixed": (
        {"step": 3, "none": None, "half": jnp.ones(1, jnp.bfloat16), "list": [True, 0.5]},
        "4fd61049c18d28793a9d8b18b79273272fbeb8703e681c78fa0561ef57d3344c",
    ),
}


@pytest.mark.parametrize("name", KNOWN_ANSWERS)
def test_known_answers(name):
    tree, expected = KNOWN_ANSWERS[name]
    assert digest(tree) == f"sha256:{expected}"


@pytest.mark.parametrize(
    ("tree", "entries"),
    [
        ({}, []),
        (None, [((), "none", (), b"")]),
        (jnp.float32(1), [((), "float32", (), b"\0\0\x80\x3f")]),
        (True, [((), "bool", (), b"\1")]),
        (-1, [((), "int64", (), b"\xff" * 8)]),
        (0.1, [((), "float64", (), struct.pack("<d", 0.1))]),
        (1 + 2j, [((), "complex128", (), struct.pack("<2d", 1, 2))]),
        (np.complex64(1 + 2j), [((), "complex64", (), struct.pack("<2f", 1, 2))]),
        (
            {"w": {"k": np.zeros((0, 3), np.uint8)}, "10": None, "9": [np.int8(1)]},
            [
                (("w", "k"), "uint8", (0, 3), b""),
                (("10",), "none", (), b""),
                (("9", "0"), "int8", (), b"\1"),
            ],
        ),
        (
            {2: np.uint16(1), 10: jnp.ones(2, jnp.bfloat16)},
            [
                (("2",), "uint16", (), b"\1\0"),
                (("10",), "bfloat16", (2,), b"\x80\x3f\x80\x3f"),
            ],
        ),
        (jnp.array([1, -2], "int4"), [((), "int4", (2,), b"\x01\x0e")]),
        (np.ones(1, ml_dtypes.float8_e5m2), [((), "float8_e5m2", (1,), b"\x3c")]),
        (
            jax.random.key(7, impl="threefry2x32"),
            [((), "key<fry>", (2,), struct.pack("<2I", 0, 7))],
        ),
        (
            optax.TraceState({"é": np.float16(1)}),
            [(("trace", "é"), "float16", (), b"\0\x3c")],
        ),
    ],
)
def test_against_reimplementation(tree, entries):
    assert digest(tree) == reimplementation(entries)


numbers = st.sampled_from(["bool", "int8", "uint16", "int32", "float16", "float32", "float64"])
paths = st.lists(st.text(max_size=3), max_size=3).map(tuple)


@settings(deadline=None)
@given(st.dictionaries(paths, st.tuples(numbers, st.lists(st.integers(0, 3), max_size=3))))
def test_random_trees(leaves):
    # A path that goes on below another leaf has no place in a tree.
    leaves = {
        p: x for p, x in leaves.items() if not any(p[: len(q)] == q for q in leaves if q != p)
    }
    tree, entries = {}, []
    for i, (path, (dtype, shape)) in enumerate(leaves.items()):
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        data = bytes((i + 7 * j) % 2 for j in range(size))
        array = np.frombuffer(data, dtype).reshape(shape)
        entries.append((path, dtype, shape, data))
        if path == ():
            tree = array
            break
        node = tree
        for name in path[:-1]:
            node = node.setdefault(name, {})
        node[path[-1]] = array
    assert digest(tree) == reimplementation(entries)


def test_containers_do_not_matter():
    tree = {"a": [1, (2.0, None)], "b": {"0": True}}
    expected = digest(tree)
    assert digest(freeze(tree)) == expected
    assert digest({"b": [True], "a": (1, [2.0, None])}) == expected


def test_layout_and_byte_order_do_not_matter():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = digest(array)
    assert digest(np.asfortranarray(array)) == expected
    assert digest(array.astype(">f4")) == expected
    assert digest(np.repeat(array, 2, axis=1)[:, ::2]) == expected
    assert digest(jnp.asarray(array)) == expected
    signalling = floats(0x7FA00001, 0xFFFFFFFF)
    swapped = signalling.view(np.uint32).byteswap().view(">f4")
    assert digest(swapped) == digest(signalling)
    dirty = np.array([0x01, 0xFE], np.uint8).view(ml_dtypes.int4)
    assert digest(dirty) == digest(jnp.array([1, -2], "int4"))
    complex_array = array[0].astype(np.complex64) * np.complex64(1 + 2j)
    assert digest(complex_array.astype(">c8")) == digest(complex_array)


def test_everything_else_matters():
    one = np.ones(2, np.float32)
    trees = [
        {},
        None,
        {"a": None},
        one,
        {"a": one},
        {"b": one},
        {"a": {"a": one}},
        [one],
        one.reshape(1, 2),
        one.astype(np.float64),
        one.view(np.int32),
        floats(0x3F800000, 0x3F800001),
        floats(0, 0),
        floats(0, 0x80000000),
        floats(0, 0x7FC00000),
        floats(0, 0x7FC00001),
        floats(0, 0xFFC00000),
        np.zeros((0,), np.float32),
        np.zeros((0, 0), np.float32),
        {"a/b": one},
        {"a": {"b": one}},
        jax.random.key(0),
        jax.random.key_data(jax.random.key(0)),
        1,
        1.0,
        True,
    ]
    assert len({digest(tree) for tree in trees}) == len(trees)


@pytest.mark.parametrize(
    ("leaf", "received"),
    [
        ("text", "type str"),
        (b"bytes", "type bytes"),
        (np.array(["text"]), "dtype <U4"),
        (np.array([None]), "dtype object"),
        (np.datetime64("2020-01-01"), "dtype datetime64"),
        (np.longdouble(1), "long double|dtype float128|dtype float96|dtype longdouble"),
        (2**63, "9223372036854775808"),
        (object(), "type object"),
    ],
)
def test_refused_leaves(leaf, received):
    with pytest.raises(TypeError, match=f"expected .*received .*({received}).* at a/0; "):
        digest({"a": [leaf]})


def test_refused_keys_and_paths():
    with pytest.raises(TypeError, match=r"dict keys .* received True"):
        digest({True: 1})
    with pytest.raises(TypeError, match=r"dict keys .* received \(1,\)"):
        digest({(1,): 1})

    @jax.tree_util.register_pytree_with_keys_class
    class Twice:
        def tree_flatten_with_keys(self):
            key = jax.tree_util.GetAttrKey("x")
            return [(key, 1), (key, 2)], None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls()

    with pytest.raises(ValueError, match="its own path, received two at x"):
        digest(Twice())


def test_refused_tracers():
    with pytest.raises(TypeError, match="outside jit"):
        jax.jit(digest)(1.0)


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.1, "0x3dcccccd 0x1.99999ap-4"),
        (np.float32(1), "0x3f800000 0x1p+0"),
        (jnp.float32(-1.5), "0xbfc00000 -0x1.8p+0"),
        (16.0, "0x41800000 0x1p+4"),
        (np.zeros((), np.float32), "0x00000000 0x0p+0"),
        (-0.0, "0x80000000 -0x0p+0"),
        (2.0**-149, "0x00000001 0x1p-149"),
        (float("inf"), "0x7f800000 inf"),
        (-float("inf"), "0xff800000 -inf"),
        (float("nan"), "0x7fc00000 nan"),
        (floats(0x7FA00001)[0], "0x7fa00001 nan"),
        (2.0**-126 + 2.0**-149, "0x00800001 0x1.000002p-126"),
    ],
)
def test_hex_bits(x, expected):
    assert hex_bits(x) == expected


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_hex_bits_is_exact(word):
    text, value = hex_bits(floats(word)[0]).split()
    assert int(text, 16) == word
    x = floats(word)[0]
    if np.isnan(x):
        assert value == "nan"
    else:
        assert np.float32(float.fromhex(value)).view(np.uint32) == word


@pytest.mark.parametrize("x", [np.float64(1), 1, np.ones(1, np.float32), None, True])
def test_hex_bits_refuses(x):
    with pytest.raises(TypeError, match="expected one float32"):
        hex_bits(x)
