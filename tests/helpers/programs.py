"""Programs whose bits are goldens: the same on every machine, setting and version.

Each program is a function without arguments that returns a tree of arrays.  The goldens may
change only together with the contract's version (docs/numerics.md); a program that is only
another way to the same bits states whose they are in ``SAME_AS``.
"""

from __future__ import annotations

import flax.linen
import jax
import numpy as np
import optax
from jax import lax

import repjax
from helpers import golden_files, networks
from helpers.paths import DATA
from repjax.models import (
    GPT,
    GraphSAGE,
    LeNet1,
    LeNet5,
    Llama,
    generate,
    log_probs,
    perceptron,
)

GOLDENS = DATA / "goldens.json"


def patterns(count: int, seed: int) -> np.ndarray:
    """Float32 of random bits (every class of value), with the special values in front."""
    special = [0, 0x80000000, 1, 0x007FFFFF, 0x00800000, 0x00800001, 0x3F800000, 0xBF800000]
    special += [0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345, 0x7F812345]
    words = np.asarray(jax.random.bits(jax.random.key(seed), (count,), "uint32")).copy()
    words[: len(special)] = special
    return words.view(np.float32)


def values(shape, seed: int) -> jax.Array:
    """Float32 in [-1, 1): integers scaled by a power of two, so exact everywhere."""
    words = np.asarray(jax.random.bits(jax.random.key(seed), shape, "uint32"))
    return jax.numpy.asarray(words.astype(np.int32).astype(np.float64).astype(np.float32) / 2.0**31)


def arithmetic():
    x, y, z = (patterns(4096, seed) for seed in range(3))
    near = (x.view(np.uint32) ^ np.uint32(0x0055AA33)).view(np.float32)  # close to x: cancels
    rl = repjax.lax
    return {
        "add": rl.add(x, y),
        "add_near": rl.sub(x, near),
        "mul": rl.mul(x, y),
        "div": rl.div(x, y),
        "neg": rl.neg(x),
        "sqrt": rl.sqrt(x),
        "rsqrt": rl.rsqrt(x),
        "reciprocal": rl.reciprocal(x),
        "square": rl.square(x),
        "cube": rl.integer_pow(x, 3),
        "pow": rl.pow(x, np.arange(4096, dtype=np.int32) % 41 - 20),
        "fma": rl.fma(x, y, z),
        "max": rl.max(x, y),
        "min": rl.min(x, y),
        "to_int": rl.convert_element_type(x, np.int32),
        "from_int": rl.convert_element_type(x.view(np.int32), np.float32),
        "to_float16": rl.convert_element_type(x, np.float16).view(np.uint16),
        "to_bfloat16": rl.convert_element_type(x, jax.numpy.bfloat16).view(np.uint16),
    }


def elementary():
    inputs = np.concatenate([patterns(4096, 3), np.asarray(values((4096,), 4)) * 20])
    names = ("exp", "expm1", "log", "log1p", "tanh", "logistic", "erf", "erf_inv")
    return {name: getattr(repjax.lax, name)(inputs) for name in names}


def two_arguments():
    x = np.concatenate([patterns(4096, 20), np.abs(np.asarray(values((4096,), 21))) * 4])
    y = np.concatenate([patterns(4096, 22)[::-1], np.asarray(values((4096,), 23)) * 20])
    results = {}
    for name in ("pow", "atan2", "hypot"):
        out, pullback = jax.vjp(getattr(repjax.lax, name), x, y)
        results[name] = out, pullback(values(out.shape, 24))
    exponents = np.arange(8192, dtype=np.int32) % 9 - 4
    results["pow_integer"] = jax.vjp(lambda x: repjax.lax.pow(x, exponents), x)[1](x)
    return results


def gamma_functions():
    inputs = np.concatenate([patterns(4096, 3), np.asarray(values((4096,), 4)) * 20])
    value, derivative = jax.vmap(jax.value_and_grad(repjax.lax.lgamma))(inputs)
    return {"lgamma": value, "digamma": repjax.lax.digamma(inputs), "derivative": derivative}


def reductions():
    x = np.asarray(values((37, 5, 53), 5)) * np.float32(1000)
    sums = {
        f"{order} {axes}": repjax.lax.reduce_sum(x, axes, accumulation=order)
        for order in ("pairwise", "sequential")
        for axes in ((), (0,), (2,), (0, 2), (0, 1, 2))
    }
    statistics = {
        "mean": repjax.numpy.mean(x, axis=1),
        "var": repjax.numpy.var(x, axis=(0, 2)),
        "argmax": repjax.numpy.argmax(x, axis=2),
        "logsumexp": repjax.nn.logsumexp(x, axis=-1),
        "softmax": repjax.nn.softmax(x),
    }
    segments = np.asarray(jax.random.bits(jax.random.key(6), (37,), "uint32") % 7).astype(np.int32)
    segment_sum = repjax.reproducible(jax.ops.segment_sum, static_argnames="num_segments")
    return {**sums, **statistics, "segment_sum": segment_sum(x, segments, num_segments=7)}


def contractions():
    a, b = values((9, 33), 7), values((33, 21), 8)
    images, kernel = values((3, 11, 10, 4), 9), values((3, 3, 2, 6), 10)

    def convolution(images, kernel):
        return repjax.lax.conv_general_dilated(
            images,
            kernel,
            (2, 1),
            [(1, 0), (-1, 2)],
            rhs_dilation=(1, 2),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=2,
        )

    out, pullback = jax.vjp(convolution, images, kernel)
    tiny = patterns(2 * 33 * 17, 11).reshape(2, 33, 17)
    return {
        "dot": repjax.lax.dot(a, b),
        "batched": repjax.lax.dot_general(tiny, tiny, (((1,), (1,)), ((0,), (0,)))),
        "conv": out,
        "conv_gradients": pullback(values(out.shape, 12)),
    }


def order_independent():
    a, b = patterns(40 * 600, 60).reshape(40, 600), values((600, 30), 61)
    images, kernel = values((3, 11, 10, 4), 62), values((3, 3, 4, 6), 63)

    def convolution(images, kernel):
        return repjax.lax.conv_general_dilated(
            images,
            kernel,
            (2, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            contraction="order_independent",
        )

    out, pullback = jax.vjp(convolution, images, kernel)
    return {
        "sum": repjax.lax.reduce_sum(a, (1,), accumulation="order_independent"),
        "large": repjax.lax.dot(a, b, contraction="order_independent"),
        "finite": repjax.lax.dot(b.T, b, contraction="order_independent"),
        "conv": out,
        "conv_gradients": pullback(values(out.shape, 64)),
    }


def exact():
    orders = {"accumulation": "exact", "contraction": "exact"}
    a, b = patterns(40 * 300, 65).reshape(40, 300), values((300, 20), 66)
    images, kernel = values((2, 9, 8, 3), 67), values((3, 3, 3, 5), 68)
    rows = values((40,), 69).view(np.int32) % 7

    def convolution(images, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return lax.conv_general_dilated(images, kernel, (2, 1), "SAME", dimension_numbers=numbers)

    def program(a, b, images, kernel):
        out, pullback = jax.vjp(convolution, images, kernel)
        return {
            "sums": (lax.reduce_sum(a, (1,)), jax.numpy.sum(b), lax.cumsum(b, 0)),
            "narrow": lax.reduce_sum(b.astype(jax.numpy.bfloat16), (0,)),
            "dot": a @ b,
            "finite": b.T @ b,
            "narrow_dot": lax.dot(b.T.astype(np.float16), b.astype(np.float16)),
            "conv": out,
            "conv_gradients": pullback(out),
            "scatter": jax.numpy.zeros((7, 300)).at[rows].add(a),
        }

    return repjax.reproducible(program, **orders)(a, b, images, kernel)


def pooling():
    images = values((2, 9, 8, 3), 13)

    def pools(x):
        return (
            repjax.nn.max_pool(x, (3, 3), (2, 2), "SAME"),
            repjax.nn.avg_pool(x, (3, 2), (2, 1), "SAME"),
        )

    out, pullback = jax.vjp(pools, images)
    return out, pullback(jax.tree.map(lambda x: values(x.shape, 14), out))


def samplers():
    """Random numbers and the initialisers of Flax, bits to floats."""
    initializers = flax.linen.initializers
    draw = {
        "uniform": lambda key: jax.random.uniform(key, (1000,)),
        "normal": lambda key: jax.random.normal(key, (1000,)),
        "truncated_normal": lambda key: jax.random.truncated_normal(key, -2, 2, (1000,)),
        "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (1000,)),
        "permutation": lambda key: jax.random.permutation(key, 1000),
        "lecun_normal": lambda key: initializers.lecun_normal()(key, (30, 40)),
        "he_uniform": lambda key: initializers.he_uniform()(key, (3, 3, 5, 7)),
    }
    return {name: repjax.reproducible(f)(jax.random.key(19)) for name, f in draw.items()}


def halves():
    """float16 and bfloat16: functions on every input, a training step of a small network."""

    def functions(x):
        names = ("exp", "log", "tanh", "erf", "sin", "rsqrt", "logistic")
        return {name: getattr(lax, name)(x) for name in names} | {"sort": lax.sort(x)}

    def network(params, x):
        x = flax.linen.avg_pool(flax.linen.max_pool(x, (2, 2), (1, 1)), (2, 2), (2, 2))
        x = lax.conv_general_dilated(
            x, params[0], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = flax.linen.gelu(x).reshape(len(x), -1) @ params[1]
        return jax.nn.log_softmax(x)[:, 0].mean()

    results = {}
    for dtype in (np.float16, jax.numpy.bfloat16):
        every = np.arange(2**16, dtype=np.uint16).view(dtype)
        params = [np.asarray(values(s, 20)).astype(dtype) for s in ((3, 3, 2, 4), (64, 5))]
        images = np.asarray(values((2, 9, 9, 2), 22)).astype(dtype)
        results[np.dtype(dtype).name] = (
            repjax.reproducible(functions)(every),
            repjax.reproducible(jax.value_and_grad(network))(params, images),
        )
    return jax.tree.map(lambda x: np.asarray(x).view(np.uint16), results)


def scatter_and_scan():
    """Scatters with repeated indices, cumulative operations and products, with derivatives."""
    x, updates = patterns(60, 20).reshape(12, 5), patterns(200, 21).reshape(40, 5)
    index = np.asarray(jax.random.bits(jax.random.key(22), (40,), "uint32") % 14).astype(np.int32)
    factors = np.asarray(values((4, 37), 23)) + np.float32(1.5)
    cotangent = values((4, 37), 24)

    def scatters(x, updates):
        methods = ("set", "add", "mul", "min", "max", "subtract")
        return {name: getattr(x.at[index - 1], name)(updates) for name in methods}

    def cumulative(x):
        names = ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
        return {name: getattr(lax, name)(x, axis=1, reverse=name == "cumprod") for name in names}

    def gradients(x, cotangent):
        out, pullback = jax.vjp(cumulative, x)
        return out, pullback({name: cotangent for name in out})

    return {
        "scatters": repjax.reproducible(scatters)(x, updates),
        **{
            order: repjax.reproducible(gradients, accumulation=order)(factors, cotangent)
            for order in ("pairwise", "sequential")
        },
        "prod": repjax.reproducible(jax.value_and_grad(jax.numpy.prod))(factors[0]),
        "top_k": repjax.lax.top_k(x.ravel(), 20),
        "rem": repjax.lax.rem(x.ravel(), updates.ravel()[:60]),
    }


def linear_algebra():
    a = values((3, 9, 9), 25)
    b = values((3, 9, 2), 26)

    def factors(a, b):
        square = jax.numpy.matmul(a, a.mT) + jax.numpy.eye(9)
        return (
            jax.numpy.linalg.cholesky(square),
            lax.linalg.lu(a)[0],
            jax.numpy.linalg.qr(a),
            jax.numpy.linalg.solve(a, b),
            jax.numpy.linalg.slogdet(a)[1],
        )

    def program(a, b):
        out, pullback = jax.vjp(factors, a, b)
        return out, pullback(out)

    return repjax.reproducible(program)(a, b)


# --- training -------------------------------------------------------------------------

_STEPS = 3


def _stock_loss(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _explicit_loss(logits, labels):
    losses = repjax.nn.softmax_cross_entropy_with_integer_labels(logits, labels)
    return repjax.numpy.mean(losses)


def _train(wrap, *, layers=flax.linen, optimizer, loss=None, apply=None, steps=_STEPS, place=None):
    """Parameters and losses of a few steps of LeNet-5 on fixed images, from its own init."""
    images, labels = values((16, 32, 32, 1), 15), np.arange(16, dtype=np.int32) % 10
    if place is not None:
        images, labels = place(images), place(labels)
    model = LeNet5(layers=layers)
    loss = loss or _stock_loss
    apply = apply or optax.apply_updates

    def init(key):
        params = model.init(key, images[:1])
        return params, optimizer.init(params)

    def step(params, state, images, labels):
        def mean_loss(params):
            return loss(model.apply(params, images), labels)

        value, gradient = jax.value_and_grad(mean_loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return apply(params, updates), state, value

    params, state = wrap(init)(jax.random.key(16))
    step = wrap(step)
    losses = []
    for _ in range(steps):
        params, state, value = step(params, state, images, labels)
        losses.append(value)
    return params, losses


def _momentum():
    return optax.sgd(0.05, momentum=0.9)


def train_sgd():
    return _train(repjax.reproducible, optimizer=_momentum())


def train_adam():
    return _train(repjax.reproducible, optimizer=optax.adam(1e-2))


def train_sgd_switch():
    with repjax.enabled():
        return _train(jax.jit, optimizer=_momentum())


def train_sgd_explicit():
    return _train(
        jax.jit,
        layers=repjax.nn,
        optimizer=repjax.optim.reproducible(_momentum()),
        loss=_explicit_loss,
        apply=repjax.optim.apply_updates,
    )


def train_sgd_sharded():
    """The batch is split over all devices there are."""
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((jax.device_count(),), ("batch",), axis_types=auto)
    batch = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    return _train(
        repjax.reproducible, optimizer=_momentum(), place=lambda x: jax.device_put(x, batch)
    )


def train_order_independent():
    with repjax.enabled(accumulation="order_independent", contraction="order_independent"):
        return _train(jax.jit, optimizer=_momentum())


def train_one_step():
    return _train(repjax.reproducible, optimizer=_momentum(), steps=1)


def train_one_step_eager():
    """Operation by operation: nothing is jitted but what JAX jits itself."""
    with repjax.enabled():
        return _train(lambda f: f, optimizer=_momentum(), steps=1)


def scanned():
    """A scan over training steps of a small model, with max pooling, tanh and remat."""
    model = LeNet1(pool="max")
    images, labels = values((6, 4, 28, 28, 1), 17), np.arange(24, dtype=np.int32).reshape(6, 4) % 10

    @repjax.reproducible
    def train(key):
        params = model.init(key, images[0])

        @jax.checkpoint
        def mean_loss(params, x, y):
            one_hot = jax.nn.one_hot(y, 10)
            return optax.softmax_cross_entropy(model.apply(params, x), one_hot).mean()

        def step(params, batch):
            value, gradient = jax.value_and_grad(mean_loss)(params, *batch)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient), value

        return lax.scan(step, params, (images, labels))

    return train(jax.random.key(18))


def _network(name):
    return networks.train(repjax.reproducible, networks.NETWORKS[name]())


def repdl():
    """RepDL's graphs: a network of them trained by its Adam, and the layers that are not in it."""
    rd, optimizer = repjax.repdl, repjax.repdl.adam(0.01, weight_decay=0.01)

    def loss(params, images, labels):
        x = rd.conv2d(images, *params["conv"], stride=2, padding=1)
        x = rd.max_pool2d(rd.relu(rd.batch_norm(x, *params["norm"])), 2)
        return rd.cross_entropy(rd.linear(x.reshape(len(x), -1), *params["out"]), labels)

    @repjax.reproducible
    def step(params, state, images, labels):
        value, gradients = jax.value_and_grad(loss)(params, images, labels)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    @repjax.reproducible
    def others(x, w):
        out, pullback = jax.vjp(
            lambda x, w: (
                rd.softmax(rd.mean(x, (0, 2))),
                rd.sum(x, (0, 2, 3)),
                rd.conv2d(x, w, stride=(1, 2), padding=2, dilation=(2, 1), groups=2),
            ),
            x,
            w,
        )
        return out, pullback(jax.tree.map(lambda y: y * y, out))

    params = {
        "conv": [values((4, 2, 3, 3), 70), values((4,), 71)],
        "norm": [values((4,), 72), values((4,), 73)],
        "out": [values((5, 64), 74), values((5,), 75)],
    }
    state, images, labels = optimizer.init(params), values((5, 6, 2, 16, 16), 80), np.arange(30) % 5
    losses = []
    for k in range(5):
        params, state, value = step(params, state, images[k], labels[6 * k : 6 * k + 6])
        losses.append(value)
    return params, state, losses, others(values((2, 4, 9, 10), 81), values((6, 2, 3, 3), 82))


def cotangents():
    """Of values that are used several times, inside of functions and between them."""
    x, y = values((6, 6), 61), values((6, 6), 62)

    def uses(x):
        total = jax.numpy.var(x) + (jax.numpy.tanh(x @ x) / (x * x + 1)).sum()
        total += (jax.jit(lambda x: (jax.numpy.sin(x), x))(x)[1] * x.at[1].max(x[2])).sum()
        total += (jax.checkpoint(lambda x: jax.numpy.exp(-x) * x + x)(x) * y).sum()
        return total + jax.nn.gelu(lax.scan(lambda c, _: (c * x + c, None), x, None, 2)[0]).sum()

    def uses_of_gradient(x):
        return (jax.grad(uses)(x) ** 2).sum()

    branches = jax.grad(lambda x: (lax.cond(x[0, 0] < 1, uses, lambda x: x.sum(), x) * x).sum())
    functions = {"first": jax.grad(uses), "second": jax.grad(uses_of_gradient), "cond": branches}
    return {name: repjax.reproducible(function)(x) for name, function in functions.items()}


def train_resnet():
    return _network("resnet")


def train_transformer():
    return _network("transformer")


def train_recurrent():
    return _network("lstm")


def train_graph():
    return _network("graphsage")


def language_models():
    """Of each model a step of training on some documents, and 16 tokens that it then draws."""
    sizes = {"vocabulary": 40, "positions": 32, "width": 16, "depth": 2, "heads": 4}
    models = {
        "gpt": GPT(**sizes),
        "llama": Llama(**sizes, hidden=24, key_heads=2, dtype=jax.numpy.bfloat16),
    }
    tokens = np.arange(36, dtype=np.int32).reshape(3, 12) * 7 % 40
    positions = np.stack([np.arange(12), np.arange(12) % 7, np.arange(-1, 11)]).astype(np.int32)
    optimizer = optax.adamw(1e-2)
    results = {}
    for name, model in models.items():

        @repjax.reproducible
        def train(key, model=model):
            params = model.init(key, tokens)
            loss, gradients = jax.value_and_grad(
                lambda params: -log_probs(model, params, tokens, positions).mean()
            )(params)
            updates, _ = optimizer.update(gradients, optimizer.init(params), params)
            return loss, optax.apply_updates(params, updates)

        loss, params = train(jax.random.key(7))
        requests = [
            generate.Request([3, 10, 17], jax.random.key(1), 16, temperature=0.8, top_p=0.9),
            generate.Request([38], jax.random.key(2), 16, top_k=9),
        ]
        done = generate.complete(model, params, requests, slots=2, size=20, chunk=4)
        results[name] = loss, params, [(x.tokens, x.log_probs) for x in done]
    return results


def torch_layers():
    """What repjax.repdl has beyond RepDL: a block of a transformer, trained by each optimizer."""
    rd, tokens = repjax.repdl, np.arange(42).reshape(2, 21) * 5 % 13

    def loss(params):
        x = rd.embedding(tokens, params["table"], padding_idx=0)
        q, k, v = (
            rd.linear(x.reshape(42, 24), w).reshape(2, 21, 3, 8).swapaxes(1, 2)
            for w in params["qkv"]
        )
        y = rd.attention(q, k, v, causal=True).swapaxes(1, 2).reshape(2, 21, 24)
        y = rd.layer_norm(x + y, *params["norm"])
        y = rd.silu(rd.linear(y.reshape(42, 24), *params["up"]))
        y = rd.gelu(rd.linear(y, *params["down"])) + rd.gelu(y[:, :24], approximate="tanh")
        return rd.cross_entropy(rd.linear(y, params["table"]), np.roll(tokens, -1).ravel())

    start = {
        "table": values((13, 24), 90),
        "qkv": [values((24, 24), 91 + k) for k in range(3)],
        "norm": [values((24,), 94), values((24,), 95)],
        "up": [values((40, 24), 96), values((40,), 97)],
        "down": [values((24, 40), 98), values((24,), 99)],
    }
    optimizers = {
        "sgd": rd.sgd(0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
        "adamw": rd.adamw(0.01, weight_decay=0.1),
    }
    results = {}
    for name, optimizer in optimizers.items():

        @repjax.reproducible
        def step(params, state, optimizer=optimizer):
            value, gradients = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        params, state = start, optimizer.init(start)
        for _ in range(3):
            params, state, value = step(params, state)
        results[name] = params, state, value
    return results


def train_perceptron():
    """The network of the TensorFlow workaround in both forms, small."""
    optimizer, results = optax.adam(1e-2), {}
    batches, labels = values((3, 30, 37), 100), np.arange(30) % 10
    for name, ones in (("bias", False), ("ones", True)):

        @repjax.reproducible
        def train(key, ones=ones):
            params = perceptron.init(key, (37, 50, 41, 10), ones)
            state = optimizer.init(params)
            for x in batches:
                gradients = jax.grad(perceptron.loss)(params, x, labels)
                updates, state = optimizer.update(gradients, state, params)
                params = optax.apply_updates(params, updates)
            return params

        results[name] = train(jax.random.key(5))
    return results


def train_graphsage():
    """GraphSAGE as it is trained on Cora, on a small graph whose edges come several times."""
    model, optimizer = GraphSAGE(classes=3), optax.adam(0.01)
    nodes, words = 60, 45
    edges = np.random.RandomState(6).randint(0, nodes, (2, 300)).astype(np.int32)
    features = values((nodes, words), 110)

    @repjax.reproducible
    def train(key):
        params = model.init(key, features, edges)
        state = optimizer.init(params)
        for epoch in range(3):

            def loss(params, epoch=epoch):
                rngs = {"dropout": jax.random.fold_in(key, epoch)}
                logits = model.apply(params, features, edges, train=True, rngs=rngs)
                labels = np.arange(nodes, dtype=np.int32) % 3
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

            updates, state = optimizer.update(jax.grad(loss)(params), state, params)
            params = optax.apply_updates(params, updates)
        return params, model.apply(params, features, edges)

    return train(jax.random.key(8))


PROGRAMS = {
    f.__name__: f
    for f in (
        arithmetic,
        elementary,
        two_arguments,
        gamma_functions,
        reductions,
        contractions,
        order_independent,
        exact,
        pooling,
        samplers,
        halves,
        scatter_and_scan,
        linear_algebra,
        train_sgd,
        train_adam,
        train_sgd_switch,
        train_sgd_explicit,
        train_sgd_sharded,
        train_order_independent,
        train_one_step,
        train_one_step_eager,
        scanned,
        repdl,
        cotangents,
        train_resnet,
        train_transformer,
        train_recurrent,
        train_graph,
        language_models,
        torch_layers,
        train_perceptron,
        train_graphsage,
    )
}
#: Networks of helpers/networks.py whose training is a golden.
GOLDEN_NETWORKS = {
    "resnet": "train_resnet",
    "transformer": "train_transformer",
    "lstm": "train_recurrent",
    "graphsage": "train_graph",
}
SAME_AS = {
    "train_sgd_switch": "train_sgd",
    "train_sgd_explicit": "train_sgd",
    "train_sgd_sharded": "train_sgd",
    "train_one_step_eager": "train_one_step",
}


def golden(name: str) -> str:
    """The digest that the program must have."""
    return golden_files.digests(GOLDENS)[SAME_AS.get(name, name)]
