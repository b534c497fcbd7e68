"""Programs over eight devices, and the same without any: for test_devices.py.

    python -m helpers.devices     in tests/: print a pair of digests for each program, as JSON

Needs XLA_FLAGS=--xla_force_host_platform_device_count=8.
"""

from __future__ import annotations

import functools
import json
from unittest import mock

import jax
import numpy as np
import optax
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import repjax
from helpers.groups import random_groups
from helpers.networks import block, block_gradients
from helpers.rows import RANDOM, random_rows
from repjax.primitives.gpu import products
from repjax.primitives.operations import collectives
from repjax.primitives.operations.products import order_independent, orders

DEVICES = 8
X = np.random.default_rng(0).normal(size=(2 * DEVICES, 4)).astype(np.float32)
W = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
MESHES = {
    kind.name: jax.make_mesh((DEVICES,), ("i",), axis_types=(kind,))
    for kind in (AxisType.Auto, AxisType.Explicit)
}


def arrays(mesh):
    return jax.device_put(X, NamedSharding(mesh, P("i"))), jax.device_put(
        W, NamedSharding(mesh, P())
    )


def local(x, w):
    return jax.numpy.tanh(x @ w)


# What each device does with its part of a collective, and what that comes to for the list of
# all devices' parts.
COLLECTIVES = {
    "psum": (lambda y: lax.psum(y, "i"), lambda ys, _: repjax.lax.reduce_sum(ys, (0,))),
    "psum of integers": (
        lambda y: lax.psum(lax.convert_element_type(y * 100, np.int32), "i"),
        lambda ys, _: (ys * 100).astype(np.int32).sum(0, dtype=np.int32),
    ),
    "pmean": (
        lambda y: lax.pmean(y, "i"),
        lambda ys, _: repjax.lax.div(repjax.lax.reduce_sum(ys, (0,)), np.float32(len(ys))),
    ),
    "pmax": (lambda y: lax.pmax(y, "i"), lambda ys, _: ys.max(0)),
    "pmin": (lambda y: lax.pmin(y, "i"), lambda ys, _: ys.min(0)),
    "all_gather": (lambda y: lax.all_gather(y, "i"), lambda ys, _: ys),
    "ppermute": (
        lambda y: lax.ppermute(y, "i", [(j, (j + 1) % DEVICES) for j in range(DEVICES)]),
        lambda ys, i: ys[i - 1],
    ),
    "axis_index": (
        lambda y: y * lax.axis_index("i"),
        lambda ys, i: repjax.lax.mul(ys[i], np.float32(i)),
    ),
    "all_to_all": (
        lambda y: lax.all_to_all(y.reshape(2, 5)[:, :4].reshape(8, 1), "i", 0, 0),
        lambda ys, i: ys[:, :, :4].reshape(DEVICES, 8, 1)[:, i],
    ),
    "psum_scatter": (
        lambda y: lax.psum_scatter(y[:, :4].reshape(8, 1), "i"),
        lambda ys, i: repjax.lax.reduce_sum(ys[:, :, :4].reshape(DEVICES, 8, 1)[:, i], (0,)),
    ),
    "psum_scatter tiled": (
        lambda y: lax.psum_scatter(jax.numpy.tile(y.reshape(10), 8), "i", tiled=True),
        lambda ys, _: repjax.lax.reduce_sum(ys.reshape(DEVICES, 10), (0,)),
    ),
}


def collective(name, mesh):
    over_devices, _ = COLLECTIVES[name]
    program = jax.shard_map(
        lambda x, w: over_devices(local(x, w))[None],
        mesh=mesh,
        in_specs=(P("i"), P()),
        out_specs=P("i"),
        check_vma=False,
    )
    return repjax.reproducible(program)(*arrays(mesh))


def collective_without(name):
    """All devices' results of the collective, from all devices' parts."""
    reproducible = repjax.reproducible(local)
    parts = np.stack([reproducible(x, W) for x in np.split(X, DEVICES)])
    return np.stack([np.asarray(COLLECTIVES[name][1](parts, i)) for i in range(DEVICES)])


def gradient(mesh):
    """Of data-parallel training: the sum over devices of the devices' gradients."""

    def loss(w, x):
        per_device = jax.shard_map(
            lambda x, w: lax.psum((local(x, w) ** 2).sum(), "i"),
            mesh=mesh,
            in_specs=(P("i"), P()),
            out_specs=P(),
        )
        return per_device(x, w)

    x, w = arrays(mesh)
    with repjax.enabled():
        return jax.jit(jax.value_and_grad(loss))(w, x)


def gradient_without():
    parts = [
        repjax.reproducible(jax.value_and_grad(lambda w, x: (local(x, w) ** 2).sum()))(W, x)
        for x in np.split(X, DEVICES)
    ]
    return jax.tree.map(lambda *xs: repjax.lax.reduce_sum(np.stack(xs), (0,)), *parts)


# --- several collectives, which go together; of large ones each device adds a share ----------

SUMMED = [
    (shape, dtype) for shape in ((3, 3001), (5,), ()) for dtype in (np.float32, jax.numpy.bfloat16)
]
PAIRS = [[0, 2], [3, 1]]  # of the first axis


def summed() -> list[jax.Array]:
    rng = np.random.default_rng(12)
    sizes = [(np.exp2(rng.integers(-9, 9, (DEVICES, *shape))), d) for shape, d in SUMMED]
    return [jax.numpy.asarray(rng.normal(size=s.shape) * s, d) for s, d in sizes]


def together(order: str):
    """Over both axes of a mesh, then one of them, and over groups."""
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def program(*parts):
        parts = [x[0] for x in parts]
        sums = [lax.psum(x, ("a", "b")) for x in parts]
        again = [lax.psum(x + y, "b") for x, y in zip(sums, parts, strict=True)]
        pairs = [lax.psum(x, "a", axis_index_groups=PAIRS) for x in parts]
        largest = [lax.pmax(x, "a") for x in parts]
        return [x[None] for x in (*sums, *again, *pairs, *largest)]

    split = P(("a", "b"))
    mapped = jax.shard_map(program, mesh=mesh, in_specs=split, out_specs=split, check_vma=False)
    return repjax.reproducible(mapped, accumulation=order)(*summed())


def together_without(order: str):
    def add(x):
        return lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None)

    @functools.partial(repjax.reproducible, accumulation=order)
    def program(*parts):
        sums, again, pairs, largest = [], [], [], []
        for x in parts:
            everywhere = add(x)
            sums.append(jax.numpy.stack([everywhere] * DEVICES))
            y = (sums[-1] + x).reshape(4, 2, *x.shape[1:])
            again.append([add(y[i // 2]) for i in range(DEVICES)])
            x = x.reshape(4, 2, *x.shape[1:])
            group_of = {i: group for group in PAIRS for i in group}
            pairs.append([add(x[jax.numpy.array(group_of[i // 2]), i % 2]) for i in range(DEVICES)])
            largest.append([x[:, i % 2].max(0) for i in range(DEVICES)])
        return [jax.numpy.stack([*xs]) for xs in (*sums, *again, *pairs, *largest)]

    return program(*summed())


def mapped(x):
    return lax.psum(jax.numpy.exp(x), "i") / lax.pmax(x, "i")


def sharded(mesh):
    """Nothing but data that is sharded, as it comes out of a switched-on jit."""
    with repjax.enabled():
        return jax.jit(lambda x, w: jax.nn.softmax(local(x, w), axis=0).sum(0))(*arrays(mesh))


def special(name: str, shape) -> np.ndarray:
    """Data whose rows have zeros, infinities or NaNs, not on all devices."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=shape) * np.exp2(rng.integers(-20, 20, shape))
    if name == "zeros":
        x *= rng.random(shape) < 0.2
        x[0], x[:, 0] = 0, 0
    elif name != "finite":
        x[3, 1], x[5, 2] = np.inf, {"infinite": -np.inf, "NaN": np.nan}[name]
    return x.astype(np.float32)


def split_terms(mesh, name, precision=None, order="order_independent"):
    """A product and a sum whose terms are spread over the devices, each with a part of them."""

    @functools.partial(repjax.reproducible, accumulation=order, contraction=order)
    def program(x, y):
        return lax.dot(x.T, y, precision=precision), x.sum(0)

    x = special(name, (4 * DEVICES, 5))
    y = special("finite", (4 * DEVICES, DEVICES))
    splits = [NamedSharding(mesh, P(*spec)) for spec in (["i"], [])] if mesh else [None, None]
    return program(jax.device_put(x, splits[0]), jax.device_put(y, splits[1]))


def split_integers(mesh):
    """The digits of a product on GPUs, and the kernel that adds their products, interpreted."""
    kernel = functools.partial(products.exact_dot, interpret=True)
    dot = orders.words_in_parts(kernel) if mesh else kernel
    program = functools.partial(
        order_independent.digit_dot,
        dimension_numbers=(((0,), (0,)), ((), ())),
        t=22,
        exact_dot=dot,
    )
    integers = np.random.default_rng(6).integers(-(1 << 22), 1 << 22, (4 * DEVICES, 5))
    split = NamedSharding(mesh, P("i")) if mesh else None
    with jax.enable_x64(True):
        x = jax.device_put(integers.astype(np.float64), split)
        return jax.jit(program)(x, x)


def split_contractions(mesh):
    """Of integers, on CPUs and by the kernels for GPUs, with terms, rows and images split."""
    rng = np.random.default_rng(9)
    x = rng.integers(-(1 << 15), 1 << 15, (4 * DEVICES, 5)).astype(np.int16)
    images = rng.integers(0, 256, (DEVICES, DEVICES, 5, 4)).astype(np.uint8)
    kernel = rng.integers(0, 256, (3, DEVICES, 2, 2)).astype(np.uint8)
    wanted = {"preferred_element_type": np.dtype(np.int64)}
    geometry = {"window_strides": (1, 1), "padding": ((0, 0), (0, 0))}
    numbers = lax.conv_dimension_numbers(images.shape, kernel.shape, None)
    others = {"lhs_dilation": (1, 1), "rhs_dilation": (1, 1), "dimension_numbers": numbers}
    others |= {"feature_group_count": 1, "batch_group_count": 1}

    def in_parts(name, kernel):
        function = functools.partial(kernel, interpret=True)
        return orders.integers_in_parts(name, function) if mesh else function

    product = in_parts("dot_general", products.dot_of_integers)
    convolution = in_parts("conv_general_dilated", products.convolution_of_integers)

    def program(x, images, kernel):
        return (
            repjax.reproducible(lambda x: (lax.dot(x.T, x), lax.dot(x, x.T)))(x),
            repjax.reproducible(functools.partial(lax.conv_general_dilated, **geometry))(
                images, kernel
            ),
            product(x, x, dimension_numbers=(((0,), (0,)), ((), ())), **wanted),
            product(x, x, dimension_numbers=(((1,), (1,)), ((), ())), **wanted),
            convolution(images, kernel, **geometry, **others, **wanted),
        )

    def over(x, *spec):
        return jax.device_put(x, NamedSharding(mesh, P(*spec))) if mesh else x

    with jax.enable_x64(True):
        return [
            jax.jit(program)(over(x, "i"), over(images, *spec), kernel)
            for spec in (["i"], [None, "i"])
        ]


IMAGES = np.random.default_rng(2).normal(size=(2 * DEVICES, 8, 8, 4)).astype(np.float32)
KERNEL = np.random.default_rng(3).normal(size=(4, 4, 4, 4)).astype(np.float32)
DENSE = np.random.default_rng(4).normal(size=(64, 10)).astype(np.float32)


def network(images, kernel, dense):
    x = lax.conv_general_dilated(
        images, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.softmax(jax.numpy.tanh(x).reshape(len(x), -1) @ dense)


def gradients(*args):
    return jax.grad(lambda *args: (network(*args) ** 2).sum(), (0, 1, 2))(*args)


def split(contraction, *specs):
    """The network's gradients, its operands split over a mesh by specs, if there are any."""
    operands = [IMAGES, KERNEL, DENSE]
    if specs:
        mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
        shardings = [NamedSharding(mesh, spec) for spec in specs]
        operands = [jax.device_put(*pair) for pair in zip(operands, shardings, strict=True)]
    accumulation = "exact" if contraction == "exact" else None
    orders = {"contraction": contraction, "accumulation": accumulation}
    return repjax.reproducible(gradients, **orders)(*operands)


def gathered(function, contraction: str) -> np.ndarray:
    """How many arrays are gathered for a function of the network on images that are split."""
    operands = [
        jax.device_put(x, NamedSharding(MESHES["Auto"], spec))
        for x, spec in ((IMAGES, P("i")), (KERNEL, P()), (DENSE, P()))
    ]
    program = repjax.reproducible(
        function, contraction=contraction, accumulation="order_independent"
    )
    return np.int32(program.lower(*operands).compile().as_text().count(" all-gather("))


# --- caches ----------------------------------------------------------------------------------

#: Large enough to be made canonical where it is used, with numbers that are not.
CACHE = np.random.default_rng(7).normal(size=(DEVICES, 300, 16)).astype(np.float32)
CACHE[:, ::7, 3] = np.resize(np.float32([1e-40, -0.0, np.nan, -np.inf]), CACHE[:, ::7, 3].shape)


def written(mesh, mapped: bool = False):
    """A cache with a new row for each document, kept and given away."""

    def write(cache, new, at):
        return cache.at[np.arange(cache.shape[0]), at].set(new)

    program = write
    if mapped:
        specs = (P("i"),) * 3
        program = jax.shard_map(write, mesh=mesh, in_specs=specs, out_specs=P("i"))
    place = NamedSharding(mesh, P("i")) if mesh else None
    operands = [jax.device_put(x, place) for x in (CACHE, -CACHE[:, 0], np.arange(DEVICES) * 7)]
    kept = repjax.reproducible(program)(*operands)
    assert np.array_equal(operands[0], CACHE, equal_nan=True)
    return kept, repjax.reproducible(program, donate_argnums=0)(*operands)


# --- kernels for chains and rows, of parts ---------------------------------------------------

SEQUENCES = np.random.default_rng(7).normal(size=(2 * DEVICES, 16, 24)).astype(np.float32)
WEIGHTS = np.random.default_rng(8).normal(size=(24, 24)).astype(np.float32) / 4


def split_block(function, spec_of_x, spec_of_w):
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    specs = zip((SEQUENCES, WEIGHTS), (spec_of_x, spec_of_w), strict=True)
    operands = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in specs]
    return repjax.reproducible(function)(*operands)


def split_heads(parts: int, heads: int, x=SEQUENCES[..., :12], w=WEIGHTS[:12]):
    """Attention whose features are split into so many parts, more than there are heads.

    So an axis of the mesh is split over heads and the features of a head.
    """

    def attention(x, w):
        y = (x @ w).reshape(*x.shape[:2], heads, -1)
        weights = jax.nn.softmax(jax.numpy.einsum("bthf,bshf->bhts", y, y))
        return jax.numpy.einsum("bhts,bshf->bthf", weights, y).reshape(*x.shape[:2], -1)

    if parts > 1:
        mesh = jax.make_mesh(
            (DEVICES // parts, parts),
            ("data", "model"),
            axis_types=(AxisType.Auto,) * 2,
            devices=jax.devices()[: DEVICES // parts * parts],
        )
        x = jax.device_put(x, NamedSharding(mesh, P("data")))
        w = jax.device_put(w, NamedSharding(mesh, P(None, "model")))
    return repjax.reproducible(attention)(x, w)


def calls_of_parts() -> np.ndarray:
    """Whether there are calls of both kernels, and how many arrays are gathered for them."""
    x = jax.device_put(SEQUENCES, NamedSharding(MESHES["Auto"], P("i")))
    w = jax.device_put(WEIGHTS, NamedSharding(MESHES["Auto"], P()))
    text = repjax.reproducible(block).lower(x, w).compile().as_text()
    called = [f'"{name}"' in text for name in ("repjax_rows", "repjax_elementwise")]
    return np.int32([*called, text.count(" all-gather(")])


def split_random(make, seed: int):
    x, row, column = RANDOM
    split = NamedSharding(MESHES["Auto"], P("i"))
    operands = jax.device_put(x, split), row, jax.device_put(column, split)
    return repjax.reproducible(make(seed))(*operands)


# --- explicit meshes: shardings in types ----------------------------------------------------

TOKENS = np.arange(2 * DEVICES * 16, dtype=np.int32).reshape(2 * DEVICES, 16) % 24


def cross_entropy(x, w, tokens):
    logits = jax.nn.log_softmax(x @ w)
    return -(logits * jax.nn.one_hot(tokens, 24)).sum(-1).mean()


def adam_step(x, w, tokens):
    optimizer = optax.adam(1e-3)
    gradients = jax.grad(cross_entropy, 1)(x, jax.nn.gelu(w), tokens)
    updates, state = optimizer.update(gradients, optimizer.init(w), w)
    return optax.apply_updates(w, updates), state


#: ``out`` is how results are to be sharded, where JAX asks for it; None without a mesh.
EXPLICIT = {
    "block": lambda x, w, tokens, out: jax.nn.softmax(jax.nn.standardize(x) @ w) * jax.nn.silu(x),
    "attention, gradients": lambda x, w, tokens, out: jax.grad(
        lambda w: jax.nn.dot_product_attention(*[(x @ w)[:, :, None]] * 3).sum()
    )(w),
    "training": lambda x, w, tokens, out: adam_step(x, w, tokens),
    "embeddings": lambda x, w, tokens, out: w.at[tokens].get(**_asked(out)) + 1,
    "product": lambda x, w, tokens, out: jax.numpy.einsum("bsd,de->bse", x, w, **_asked(out)),
    "scan": lambda x, w, tokens, out: lax.scan(
        lambda c, a: (c * 0.5 + a, c.sum()), x[:, 0] * 0, jax.numpy.swapaxes(x, 0, 1)
    ),
    "random": lambda x, w, tokens, out: jax.random.normal(
        jax.random.key(1), (16, 4), **_asked(out)
    ),
    "sorting": lambda x, w, tokens, out: (
        jax.numpy.sort(x),
        jax.numpy.argmax(x, -1),
        jax.numpy.cumsum(x, 1),
    ),
    "reshard": lambda x, w, tokens, out: x * 2 + 1 if out is None else jax.reshard(x * 2, P()) + 1,
    "fourier": lambda x, w, tokens, out: jax.numpy.abs(jax.numpy.fft.rfft(x)),
    "placed": lambda x, w, tokens, out: jax.device_put(x * 2, out) + 1,
    "second derivatives": lambda x, w, tokens, out: jax.grad(
        lambda x: (jax.grad(lambda x: jax.numpy.tanh(x).sum())(x) ** 2).sum()
    )(x),
    "vmap": lambda x, w, tokens, out: jax.vmap(lambda a: jax.nn.softmax(a @ w))(x),
    "shard_map": lambda x, w, tokens, out: (
        jax.nn.softmax(x @ w)
        if out is None
        else jax.shard_map(
            lambda x, w: jax.nn.softmax(x @ w), in_specs=(P("i"), P()), out_specs=P("i")
        )(x, w)
    ),
    "automatic axes": lambda x, w, tokens, out: (
        jax.numpy.sin(x @ w) * 2
        if out is None
        else jax.sharding.auto_axes(lambda x, w: jax.numpy.sin(x @ w), out_sharding=out)(x, w) * 2
    ),
    "explicit functions": lambda x, w, tokens, out: jax.grad(
        lambda w: repjax.numpy.mean(repjax.nn.softmax(repjax.numpy.matmul(x, w)))
    )(w),
}


def _asked(out):
    return {} if out is None else {"out_sharding": out}


def explicit(name: str):
    """By the decorator and by the switch; whether the types are those of plain JAX."""
    mesh, function = MESHES["Explicit"], functools.partial(EXPLICIT[name], out=P("i"))
    with jax.set_mesh(mesh):
        specs = zip((SEQUENCES, WEIGHTS, TOKENS), (P("i"), P(), P("i")), strict=True)
        operands = [jax.device_put(x, spec) for x, spec in specs]
        decorated = repjax.reproducible(function)(*operands)
        with repjax.enabled():
            switched = jax.jit(lambda *xs: function(*xs))(*operands)
        plain = jax.eval_shape(function, *operands)
        types = [jax.tree.map(_type, x) for x in (plain, decorated, switched)]
    return decorated, switched, np.bool_([types[0] == x for x in types[1:]])


def _type(x) -> str:
    return (
        f"{x.dtype}{x.shape} {tuple(x.sharding.spec) + (None,) * (x.ndim - len(x.sharding.spec))}"
    )


def explicit_without(name: str):
    function = functools.partial(EXPLICIT[name], out=None)
    result = repjax.reproducible(function)(SEQUENCES, WEIGHTS, TOKENS)
    return result, result, np.bool_([True, True])


def programs():
    yield "calls of parts", calls_of_parts(), np.int32([1, 1, 0])
    for function in (block, block_gradients):
        whole = repjax.reproducible(function)(SEQUENCES, WEIGHTS)
        for specs in (
            (P("data"), P()),
            (P(("data", "model")), P()),
            (P("model", "data"), P(None, "model")),
            (P("data", None, "model"), P("model")),
        ):
            yield f"{function.__name__}, {specs}", split_block(function, *specs), whole
    # A mesh's axis of 6 split over three heads and halves of them is no axes of prime size.
    for parts, heads in ((4, 2), (8, 4), (6, 2), (6, 3)):
        many, one = split_heads(parts, heads), split_heads(1, heads)
        yield f"{heads} heads in {parts} parts", many, one
    for make in (random_rows, random_groups):
        for seed in range(3):
            whole = repjax.reproducible(make(seed))(*RANDOM)
            yield f"{make.__name__} {seed}", split_random(make, seed), whole
    for name in EXPLICIT:
        yield f"explicit, {name}", explicit(name), explicit_without(name)
    for contraction in ("sequential", "order_independent"):
        yield f"gathered for results, {contraction}", gathered(network, contraction), np.int32(0)
    yield "ordered sums are", np.bool_(gathered(gradients, "sequential") > 0), np.bool_(True)
    # Of sums without an order none.
    yield "gathered for gradients", gathered(gradients, "order_independent"), np.int32(0)
    for contraction in ("sequential", "order_independent", "exact"):
        whole = split(contraction)
        for specs in (
            (P("data"), P(), P()),
            (P("data"), P(None, None, None, "model"), P(None, "model")),
            (P("model", "data"), P("data"), P("data", "model")),
            (P(("data", "model")), P(None, None, "model"), P("model")),
        ):
            yield f"gradients, {contraction}, {specs}", split(contraction, *specs), whole
    yield "split integers", split_integers(MESHES["Auto"]), split_integers(None)
    both = split_contractions(MESHES["Auto"]), split_contractions(None)
    yield "split contractions of integers", *both
    for name in ("finite", "zeros", "infinite", "NaN"):
        for precision in (None, lax.Precision.HIGHEST):
            whole = split_terms(None, name, precision)
            yield (
                f"split terms, {name}, {precision}",
                split_terms(MESHES["Auto"], name, precision),
                whole,
            )
        whole = split_terms(None, name, order="exact")
        yield f"split terms, {name}, exact", split_terms(MESHES["Auto"], name, order="exact"), whole
    for kind, mesh in MESHES.items():
        for name in COLLECTIVES:
            yield f"{name}, {kind}", collective(name, mesh), collective_without(name)
        yield f"gradient, {kind}", gradient(mesh), gradient_without()
        whole = repjax.reproducible(lambda x, w: jax.nn.softmax(local(x, w), axis=0).sum(0))(X, W)
        yield f"sharded, {kind}", sharded(mesh), whole
    for order in ("pairwise", "sequential", "order_independent", "exact"):
        yield f"together, {order}", together(order), together_without(order)
        with mock.patch.object(collectives, "_MANY", 9000):
            yield f"in parts, {order}", together(order), together_without(order)
    for mapped_over in (False, True):
        parts = written(MESHES["Auto"], mapped_over)
        yield f"written caches, shard_map {mapped_over}", parts, written(None)
    parts = X.reshape(DEVICES, 2, 4)
    vmapped = repjax.reproducible(jax.vmap(mapped, axis_name="i"))(parts)
    with repjax.enabled():
        yield "pmap, switch", jax.pmap(mapped, axis_name="i")(parts), vmapped
    pmapped = repjax.reproducible(lambda x: jax.pmap(mapped, axis_name="i")(x))(parts)
    yield "pmap, decorator", pmapped, vmapped


def main() -> None:
    print(json.dumps({name: [repjax.digest(x) for x in pair] for name, *pair in programs()}))


if __name__ == "__main__":
    main()
