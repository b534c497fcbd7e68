"""The cases of benchmarks/speed.py, in groups, each with the most that its ratio may be.

The programs are those of the other benchmarks where these have them, found by their names, and of
benchmarks/speed_programs.py.  Nothing is made before a case is measured.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

import cpu
import flax.linen as nn
import gpt2
import jax
import jax.numpy as jnp
import numpy as np
import optax
import speed_programs as programs
from cpu import values
from jax import lax
from jax.experimental.ode import odeint

import devices
import repjax
from repjax.models import GPT

PLAIN = "plain JAX"


@dataclasses.dataclass(frozen=True)
class Case:
    """``make`` returns two calls without arguments: the one that is compared with, and ours.

    ``bar`` is the most that the ratio should be, where it is not that of every case; ``needs`` are
    libraries that need not be installed.
    """

    name: str
    make: Callable[[], programs.Calls]
    bar: float | None = None
    needs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Group:
    """Cases that are compared with ``base``, in a process with these variables of its own."""

    name: str
    cases: tuple[Case, ...]
    base: str = PLAIN
    environment: dict[str, str] = dataclasses.field(default_factory=dict)


def beside_plain(function: Callable, arguments: Iterable[Any], **orders: str) -> programs.Calls:
    ours = repjax.reproducible(function, **orders)
    return functools.partial(jax.jit(function), *arguments), functools.partial(ours, *arguments)


def case(name: str, make: Callable[..., programs.Program], *args: Any, bar=None, **orders) -> Case:
    """A program that ``make(*args)`` returns, beside itself in plain JAX."""
    return Case(name, lambda: beside_plain(*make(*args), **orders), bar)


def given(name: str, function: Callable, *arguments: Any, bar=None, **orders: str) -> Case:
    """A function of arrays of these shapes, normal numbers; or of what calls return."""

    def make():
        made = [x() if callable(x) else values(x, seed) for seed, x in enumerate(arguments)]
        return function, made

    return case(name, make, bar=bar, **orders)


def found(source: Callable[[], Iterable], name: str, bar=None, **orders: str) -> Case:
    """The case of this name of another benchmark."""

    def make():
        for other, function, arguments in source():
            if other == name:
                return function, arguments
        raise LookupError(f"expected a case {name!r}, received a source without it")

    return case(name, make, bar=bar, **orders)


def all_found(source: Callable[[], Iterable], bars: dict[str, float | None]) -> list[Case]:
    return [found(source, name, bar) for name, bar in bars.items()]


def integers(shape, below: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, below, shape).astype(np.int32)


# --- sparse operations --------------------------------------------------------------------


def _segments(reduce: Callable, rows: int, columns: tuple[int, ...], segments: int):
    def program(x, ids):
        return reduce(x, ids, num_segments=segments)

    return program, (values((rows, *columns)), integers(rows, segments))


def _scatter_add(rows: int, columns: tuple[int, ...], into: int):
    def program(base, ids, x):
        return base.at[ids].add(x)

    base = jnp.zeros((into, *columns))
    return program, (base, integers(rows, into), values((rows, *columns)))


def _gather_gradient(rows: int, columns: int, count: int):
    def program(x, ids, cotangent):
        return jax.vjp(lambda x: x[ids], x)[1](cotangent)

    return program, (values((rows, columns)), integers(count, rows), values((count, columns), 1))


def _segments_of_batches(batches: int, rows: int, into: int):
    def program(x, ids):
        return jax.vmap(lambda ids: jax.ops.segment_sum(x, ids, into))(ids)

    return program, (values((rows,)), integers((batches, rows), into))


def _segments_of_all_sizes(rows: int, columns: int, into: int):
    program, (x, ids) = _segments(jax.ops.segment_sum, rows, (columns,), into)
    return program, (x * jnp.exp(8 * values((rows, 1), 1)), ids)


def _graph_attention(nodes: int, edges: int, features: int):
    """The gradient of a layer of one head."""

    def loss(w, of_senders, of_receivers, x, senders, receivers):
        h = x @ w
        scores = jax.nn.leaky_relu((h @ of_senders)[senders] + (h @ of_receivers)[receivers])
        largest = jax.ops.segment_max(scores, receivers, nodes)
        weights = jnp.exp(scores - largest[receivers])
        weights /= jax.ops.segment_sum(weights, receivers, nodes)[receivers]
        return (jax.ops.segment_sum(h[senders] * weights[:, None], receivers, nodes) ** 2).sum()

    parameters = (values((features // 2, features)), values((features,)), values((features,), 1))
    senders, receivers = integers((2, edges), nodes)
    inputs = values((nodes, features // 2), 2), senders, receivers
    return jax.grad(loss, (0, 1, 2)), (*parameters, *inputs)


def sparse() -> list[Case]:
    shapes = {
        "10,000 x 64 into 1,000": (10_000, (64,), 1000),
        "10,000 into 1,000": (10_000, (), 1000),
        "200,000 x 16 into 10,000": (200_000, (16,), 10_000),
        "100,000 into 100": (100_000, (), 100),
    }
    gradient = "gradient of a gather, 20,000 of 5,000 x 64"
    return [
        *(
            case(f"segment_sum, {name}", _segments, jax.ops.segment_sum, *shape, bar=1.5)
            for name, shape in shapes.items()
        ),
        *(
            case(f"scatter-add, {name}", _scatter_add, *shape, bar=1.5)
            for name, shape in shapes.items()
        ),
        *(
            case(f"segment_max, {name}", _segments, jax.ops.segment_max, *shapes[name], bar=1.2)
            for name in ("10,000 x 64 into 1,000", "100,000 into 100")
        ),
        case(gradient, _gather_gradient, 5000, 64, 20_000, bar=1.2),
        case("segment_sum of 10 batches, 20,000 into 32", _segments_of_batches, 10, 20_000, 32),
        case(
            "segment_sum of all sizes, 20,000 x 3 into 2,000",
            _segments_of_all_sizes,
            *(20_000, 3, 2000),
        ),
        case("gradient of graph attention, 8,000 edges", _graph_attention, 2000, 8000, 64),
        found(cpu.vocabulary_cases, "embeddings, 512 of 8192x256, gradient", 1.2),
    ]


# --- parts of arrays ----------------------------------------------------------------------


def _diffused(u):
    """A step of the heat equation on a torus."""
    around = sum(jnp.roll(u, by, axis) for axis in (0, 1) for by in (1, -1))
    return u + 0.1 * (around - 4 * u)


def _diffused_inside(u):
    around = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2]
    return u.at[1:-1, 1:-1].add(0.1 * (around - 4 * u[1:-1, 1:-1]))


def _many_steps(u):
    return lax.fori_loop(0, 20, lambda i, u: _diffused(u), u)


def _rotary(x, cosine, sine):
    half = x.shape[-1] // 2
    turned = jnp.concatenate([-x[..., half:], x[..., :half]], -1)
    return x * cosine + turned * sine


def _rotary_in_halves(x, cosine, sine):
    a, b = jnp.split(x, 2, -1)
    cosine, sine = (jnp.split(angles, 2, -1)[0] for angles in (cosine, sine))
    return jnp.concatenate([a * cosine - b * sine, b * cosine + a * sine], -1)


def _pooled(x):
    return lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def _to_three_features(images, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=numbers)


def _normed(images):
    mean, variance = (f((0, 2, 3), keepdims=True) for f in (images.mean, images.var))
    return (images - mean) * lax.rsqrt(variance + 1e-5)


def _polynomial(x, y, z):
    return (x * y + z * x) * (y - z) / (1 + x * x) + y * z


_huber = jax.grad(lambda x, y: optax.huber_loss(x, y).mean())


def _dots_of_rows(x, y):
    return jnp.einsum("ni,ni->n", x, y)


def _turned(turns, points):
    return jnp.einsum("nij,nj->ni", turns, points)


def _scores(queries, keys):
    return jnp.einsum("qd,qwd->qw", queries, keys)


def parts() -> list[Case]:
    heads, angles = (2, 128, 8, 64), (128, 1, 64)
    return [
        given("heat equation, rolls, 512 x 512", _diffused, (512, 512), bar=1.2),
        given("heat equation, rolls, 20 steps, 256 x 256", _many_steps, (256, 256), bar=1.2),
        given("heat equation, slices, 512 x 512", _diffused_inside, (512, 512), bar=1.2),
        given("pad, 256 x 256", lambda x: 2 * jnp.pad(x, 1) + 1, (256, 256), bar=1.2),
        given("polynomial of three arrays, 65,536", _polynomial, *[(1 << 16,)] * 3),
        given("gradient of a Huber loss, 256 x 256", _huber, (256, 256), (256, 256)),
        given("differences, 65,536", lambda x: jnp.diff(x) * 2, (1 << 16,), bar=1.2),
        given("rotary embeddings, 2 x 128 x 8 x 64", _rotary, heads, angles, angles, bar=1.2),
        given("rotary embeddings in halves", _rotary_in_halves, heads, angles, angles, bar=1.2),
        given(
            "gradient of 3 x 3 max pooling, 16 x 32 x 32 x 64",
            lambda x, g: jax.vjp(_pooled, x)[1](g),
            *((16, 32, 32, 64), (16, 16, 16, 64)),
            bar=1.2,
        ),
        given(
            "convolution to 3 features, 8 x 32 x 32 x 64",
            _to_three_features,
            *((8, 32, 32, 64), (3, 3, 64, 3)),
            bar=1.2,
        ),
        given("batch norm, channels first, 32 x 64 x 28 x 28", _normed, (32, 64, 28, 28), bar=1.2),
        given(
            "means of channels, 16 x 3 x 224 x 224",
            lambda x: x.mean((0, 2, 3)),
            (16, 3, 224, 224),
            bar=1.2,
        ),
        given("dots of rows, 1,000 x 64", _dots_of_rows, *[(1000, 64)] * 2, bar=1.2),
        given("10,000 matrices 3 x 3 times vectors", _turned, (10_000, 3, 3), (10_000, 3), bar=1.2),
        given("256 queries of 32 features by 17 keys each", _scores, (256, 32), (256, 17, 32)),
    ]


# --- loops --------------------------------------------------------------------------------


def _with_weights(x, w):
    return lax.fori_loop(0, 50, lambda i, x: jnp.tanh(x @ w.T / 16), x)


def _leapfrog(x, v, steps=20):
    """Of a particle between two wells, each element one."""

    def step(state):
        i, x, v = state
        v = v + 0.01 * (x - x * x * x)
        return i + 1, x + 0.01 * v, v

    return lax.while_loop(lambda state: state[0] < steps, step, (0, x, v))[1:]


def _transport(costs):
    """Sinkhorn's iterations until the last one changes little."""
    kernel = jnp.exp(-jnp.abs(costs))

    def step(state):
        i, u, v, _ = state
        new = 1 / (kernel @ v)
        return i + 1, new, 1 / (kernel.T @ new), jnp.abs(new / u - 1).max()

    def is_far(state):
        return (state[0] < 100) & (state[3] > 1e-6)

    ones = jnp.ones(len(costs))
    return lax.while_loop(is_far, step, (0, ones, ones, jnp.float32(1)))


def _fixed_point(w, x):
    """Of a layer that is its own input, as deep equilibrium models have it."""

    def step(state):
        i, _, h = state
        return i + 1, h, jnp.tanh(h @ w / 16 + x)

    def is_far(state):
        i, before, h = state
        return (i < 50) & (jnp.abs(h - before).max() > 1e-7)

    return lax.while_loop(is_far, step, (0, x + 1, x))


def _training_loop(w, v, images, labels):
    """Adam steps of a network with one hidden layer, in one scan."""
    optimizer = optax.adam(1e-3)

    def loss(parameters, x, y):
        w, v = parameters
        return optax.softmax_cross_entropy(jax.nn.relu(x @ w) @ v, jax.nn.softmax(y)).mean()

    def step(state, batch):
        parameters, optimizer_state = state
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state)
        return (optax.apply_updates(parameters, updates), optimizer_state), value

    return lax.scan(step, ((w, v), optimizer.init((w, v))), (images, labels))


def _rollout(states, w, v):
    """Of poles on carts, whose actions are drawn (Barto, Sutton and Anderson 1983)."""

    def step(state, key):
        action = jax.random.categorical(key, jnp.tanh(state @ w) @ v)
        force = jnp.where(action > 0, 10.0, -10.0)
        _, speed, angle, turning = state.T
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        push = (force + 0.05 * turning**2 * sine) / 1.1
        of_angle = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - cosine**2 * (0.1 / 1.1)))
        of_cart = push - of_angle * cosine * (0.05 / 1.1)
        rates = jnp.stack([speed, of_cart, turning, of_angle], 1)
        new = state + 0.02 * rates
        falls = jnp.abs(new[:, 2]) > 0.2
        return jnp.where(falls[:, None], 0.01, new), (state, action, falls)

    return lax.scan(step, states * 0.05, jax.random.split(jax.random.key(0), 128))


def _viterbi(emissions, transitions):
    def step(best, emission):
        scores = best[:, None] + transitions
        return scores.max(0) + emission, scores.argmax(0)

    return lax.scan(step, jnp.zeros(len(transitions)), emissions)


def _time_warping(a, b):
    def row(above, costs):
        def cell(left, costs_and_above):
            cost, up, diagonal = costs_and_above
            value = cost + jnp.minimum(jnp.minimum(left, up), diagonal)
            return value, value

        _, found = lax.scan(cell, jnp.inf, (costs, above[1:], above[:-1]))
        return jnp.concatenate([jnp.array([jnp.inf]), found]), None

    first = jnp.full(len(a) + 1, jnp.inf).at[0].set(0)
    return lax.scan(row, first, (a[:, None] - b) ** 2)[0][-1]


def _lbfgs(x):
    """Twenty steps of Optax's L-BFGS on Rosenbrock's function."""
    optimizer = optax.lbfgs()

    def loss(x):
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    def step(_, state):
        x, optimizer_state = state
        value, slope = optax.value_and_grad_from_state(loss)(x, state=optimizer_state)
        updates, optimizer_state = optimizer.update(
            slope, optimizer_state, x, value=value, grad=slope, value_fn=loss
        )
        return optax.apply_updates(x, updates), optimizer_state

    return lax.fori_loop(0, 20, step, (x, optimizer.init(x)))[0]


def _q_learning(table, places):
    """Learning from a thousand steps, of a table of 50 places by 4 actions."""

    def step(carry, key):
        table, place = carry
        chance = jax.random.uniform(key)
        best = jnp.argmax(table[place])
        action = jnp.where(chance < 0.1, (chance * 40).astype(jnp.int32) % 4, best)
        following = jnp.abs(places[place, action] * 50).astype(jnp.int32) % 50
        reward = jnp.where(following == 0, 1.0, 0.0)
        change = reward + 0.9 * table[following].max() - table[place, action]
        return (table.at[place, action].add(0.1 * change), following), reward

    keys = jax.random.split(jax.random.key(0), 1000)
    return lax.scan(step, (table, jnp.int32(0)), keys)[0][0]


def _bandit(means):
    """A thousand pulls, each of the arm whose upper confidence bound is the largest."""

    def pull(carry, key):
        pulls, sums, time = carry
        arm = jnp.argmax(sums / pulls + jnp.sqrt(2 * jnp.log(time) / pulls))
        reward = means[arm] + jax.random.normal(key)
        return (pulls.at[arm].add(1), sums.at[arm].add(reward), time + 1), arm

    start = jnp.ones_like(means), jnp.zeros_like(means), 1.0
    return lax.scan(pull, start, jax.random.split(jax.random.key(0), 1000))[1]


def _garch(returns):
    """The gradient of the likelihood of a GARCH model of a thousand days."""

    def loss(p):
        def day(variance, r):
            variance = p[0] ** 2 + p[1] * r**2 + p[2] * variance
            return variance, jnp.log(variance) + r**2 / variance

        return lax.scan(day, 1.0, returns)[1].sum()

    return jax.grad(loss)(jnp.array([0.1, 0.1, 0.8]))


def _kalman(measured):
    """The logarithm of the likelihood of what a Kalman filter measures, of one number."""

    def step(state, z):
        mean, variance = state
        variance = variance + 0.01
        total, error = variance + 0.1, z - mean
        gain = variance / total
        state = mean + gain * error, (1 - gain) * variance
        return state, -0.5 * (jnp.log(2 * jnp.pi * total) + error**2 / total)

    return lax.scan(step, (0.0, 1.0), measured)[1].sum()


def _kalman_of_two(measured):
    """What a Kalman filter makes of a place that is measured: the place and the velocity."""
    motion, noise = jnp.array([[1.0, 0.1], [0.0, 1.0]]), 0.01 * jnp.eye(2)
    seen = jnp.array([1.0, 0.0])

    def step(state, z):
        mean, covariance = state
        mean, covariance = motion @ mean, motion @ covariance @ motion.T + noise
        gain = covariance @ seen / (seen @ covariance @ seen + 0.1)
        mean = mean + gain * (z - seen @ mean)
        return (mean, covariance - jnp.outer(gain, seen @ covariance)), mean

    return lax.scan(step, (jnp.zeros(2), jnp.eye(2)), measured)[1]


def _runge_kutta(rates, state, h: float, steps: int):
    def step(s, _):
        k1 = rates(s)
        k2 = rates(s + h / 2 * k1)
        k3 = rates(s + h / 2 * k2)
        k4 = rates(s + h * k3)
        return s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), s

    return lax.scan(step, state, None, length=steps)[1]


def _lorenz(state):
    """Lorenz's attractor: 2,000 steps of Runge and Kutta."""

    def rates(s):
        x, y, z = s
        return jnp.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z])

    return _runge_kutta(rates, state, 0.01, 2000)


def _neuron(currents):
    """The voltage of a neuron by Hodgkin and Huxley, with one gate."""

    def step(state, current):
        v, m = state
        opens = 0.1 * (v + 40) / (1 - jnp.exp(-(v + 40) / 10))
        closes = 4 * jnp.exp(-(v + 65) / 18)
        m = m + 0.01 * (opens * (1 - m) - closes * m)
        v = v + 0.01 * (10 * current - 120 * m**3 * (v - 50) - 0.3 * (v + 54))
        return (v, m), v

    return lax.scan(step, (-65.0, 0.05), currents)[1]


def _controller(wanted):
    """What a PID controller makes of a plant."""

    def step(state, r):
        y, total, before = state
        error = r - y
        total = total + 0.01 * error
        pushed = 1.2 * error + 0.5 * total + 0.01 * (error - before) / 0.01
        y = y + 0.01 * (pushed - y)
        return (y, total, error), y

    return lax.scan(step, (0.0, 0.0, 0.0), wanted)[1]


def _pendulum(state):
    """A double pendulum: 500 steps of Runge and Kutta."""

    def rates(s):
        a, b, p, q = s
        c = jnp.cos(a - b)
        e = 16 - 9 * c**2
        x, y = 6 * (2 * p - 3 * c * q) / e, 6 * (8 * q - 3 * c * p) / e
        twist = x * y * jnp.sin(a - b)
        of_p, of_q = twist + 29.4 * jnp.sin(a), 9.8 * jnp.sin(b) - twist
        return jnp.stack([x, y, -0.5 * of_p, -0.5 * of_q])

    return _runge_kutta(rates, state, 0.01, 500)


def _quadratic(a):
    """500 steps of Adam on a quadratic function."""
    optimizer = optax.adam(0.01)

    def step(carry, _):
        x, state = carry
        updates, state = optimizer.update(a @ (x @ a), state)
        return (optax.apply_updates(x, updates), state), None

    x = jnp.ones(len(a))
    return lax.scan(step, (x, optimizer.init(x)), None, length=500)[0][0]


def loops() -> list[Case]:
    return [
        *(
            case(f"fori_loop, {n}x{n}", programs.fori_loop, n, bar=1.0 if n == 1000 else 1.3)
            for n in (16, 64, 256, 1000)
        ),
        *(
            case(f"scan, {m}x{n}", programs.scan, m, n, bar=1.0 if m == 1000 else 1.3)
            for m, n in ((16, 16), (256, 256), (4096, 32), (1000, 1000))
        ),
        given("fori_loop of tanh(x @ w.T), 256x256", _with_weights, (1, 256), (256, 256), bar=1.3),
        given("optimal transport by a while, 50 x 50", _transport, (50, 50), bar=1.3),
        given("fixed point by a while, 8 x 64", _fixed_point, (64, 64), (8, 64), bar=1.3),
        given("leapfrog steps, 2 x 262,144", _leapfrog, *[(1 << 18,)] * 2),
        given("leapfrog steps, 2 x 4,194,304", _leapfrog, *[(1 << 22,)] * 2),
        given(
            "scan of 20 Adam steps, 784-128-10, batch 64",
            _training_loop,
            *((784, 128), (128, 10), (20, 64, 784), (20, 64, 10)),
        ),
        given("rollout of 64 carts, 128 steps", _rollout, (64, 4), (4, 32), (32, 2)),
        given("likelihood of a Kalman filter, 2,000 steps", _kalman, (2000,)),
        given("gradient of a filter's likelihood, 2,000 steps", jax.grad(_kalman), (2000,)),
        given("Kalman filter of two numbers, 2,000 steps", _kalman_of_two, (2000,)),
        given("PID controller, 2,000 steps", _controller, (2000,)),
        given("neuron, 2,000 steps", _neuron, (2000,)),
        given("Viterbi, 200 x 16", _viterbi, (200, 16), (16, 16)),
        given("time warping, 64 x 64", _time_warping, (64,), (64,)),
        given("L-BFGS, 20 steps, 20 variables", _lbfgs, (20,)),
        given("Q-learning, 1,000 steps", _q_learning, (50, 4), (50, 4)),
        given("bandit, 1,000 pulls of 10 arms", _bandit, (10,)),
        given("gradient of a GARCH likelihood, 1,000 days", _garch, (1000,)),
        given("double pendulum, 500 steps", _pendulum, (4,)),
        given("Lorenz's attractor, 2,000 steps", _lorenz, (3,)),
        given("Adam on a quadratic of 20 variables, 500 steps", _quadratic, (20, 20)),
    ]


def recurrent() -> list[Case]:
    return [
        *(case(f"RNN, scan, T = {t}", programs.recurrence, t, bar=1.2) for t in (20, 200)),
        case("RNN, scan, T = 20, gradient", programs.recurrence_gradient, 20, bar=1.2),
        *(
            case(f"{name} training step, T = 50", programs.recurrent, cell, bar=1.2)
            for name, cell in (("RNN", "SimpleCell"), ("LSTM", "LSTMCell"), ("GRU", "GRUCell"))
        ),
    ]


# --- elementwise, rows, sums --------------------------------------------------------------


def in_cache() -> list[Case]:
    bars = {"add": 1.0, **dict.fromkeys(("exp", "expm1", "tanh", "logistic", "erf"), 1.2)}
    bars |= dict.fromkeys(("div", "sqrt", "log", "log1p", "rsqrt", "sin", "pow", "lgamma", "atan2"))
    source = functools.partial(cpu.elementwise_cases, [1 << 16])
    return all_found(source, {f"elementwise {n} [65536]": bar for n, bar in bars.items()})


def large() -> list[Case]:
    elementwise = functools.partial(cpu.elementwise_cases, [1 << 24])
    reductions = functools.partial(cpu.reduction_cases, [1 << 24])
    names = ("softmax rows", "softmax gradient", "variance of columns", "reduce_sum all")
    names += ("layer norm rows", "layer norm gradient")
    return [
        *all_found(elementwise, {f"elementwise {n} [16777216]": 1.1 for n in ("add", "sqrt")}),
        *all_found(reductions, {f"{n} [16384x1024]": None if "norm" in n else 1.1 for n in names}),
    ]


_FOUR_MILLION = (1 << 22,)


def _sum(x):
    return x.sum()


def sums() -> list[Case]:
    matrix = (4096, 1024)
    return [
        given("sum of 4 M, pairwise", _sum, _FOUR_MILLION, bar=1.1),
        given("softmax 4096 x 1024", jax.nn.softmax, matrix, bar=1.2),
        found(cpu.vocabulary_cases, "cross-entropy, 512 of 8192", 1.2),
        found(cpu.vocabulary_cases, "cross-entropy, 512 of 8192, gradient", 1.2),
        found(cpu.factorization_cases, "dot [65536]", 1.2),
    ]


def _chain(x):
    return lax.scan(lambda total, term: (total + term, None), jnp.float32(0), x, unroll=16)[0]


def in_sequence() -> list[Case]:
    """Sequential sums beside plain JAX's additions one after the other, which give the same bits.

    A loop in C, as RepDL's, took 0.7 of their time on one machine.
    """

    def make(of):
        x, ours = of(values(_FOUR_MILLION)), repjax.reproducible(_sum, accumulation="sequential")
        return functools.partial(jax.jit(_chain), x), functools.partial(ours, x)

    how = {"of both signs": jnp.asarray, "of one sign": jnp.abs}
    return [
        Case(f"sum of 4 M terms {name}", functools.partial(make, of), 0.7)
        for name, of in how.items()
    ]


def of_pairwise() -> list[Case]:
    """Sums in order_independent beside those in pairwise order."""

    def make(function, shape):
        x, order = values(shape), "order_independent"
        return (
            functools.partial(repjax.reproducible(function), x),
            functools.partial(repjax.reproducible(function, accumulation=order), x),
        )

    how = {
        "sum of 4 M, order_independent": (_sum, _FOUR_MILLION),
        "softmax 4096 x 1024, order_independent": (jax.nn.softmax, (4096, 1024)),
    }
    return [Case(name, functools.partial(make, *args), 2.0) for name, args in how.items()]


# --- products, linear algebra, Fourier ----------------------------------------------------


def _transposed(x, w):
    return x @ w.T


def sequential() -> list[Case]:
    sizes, big = (256, 512, 1024, 2048), ((1024, 1024), (1024, 1024))
    layers = ("convolution 64x14x14x6, 5x5x16", "its input gradient", "its kernel gradient")
    return [
        *(given(f"dot {n}x{n}x{n}", lax.dot, (n, n), (n, n), bar=1.0) for n in sizes),
        given("x @ w.T 1024x1024x1024", _transposed, *big, bar=1.0),
        given("left gradient of 256x784x1000", _transposed, (256, 1000), (784, 1000), bar=1.0),
        given("dot 64x400x120", lax.dot, (64, 400), (400, 120)),
        *(found(functools.partial(cpu.contraction_cases, True), name) for name in layers),
    ]


def order_independent() -> list[Case]:
    order = {"contraction": "order_independent", "bar": 1.2}
    shapes = ((64, 400, 120), (128, 512, 128), (64, 784, 512), (256, 256, 256), (1024, 1024, 1024))
    left = functools.partial(given, "left gradient of 256x784x1000", _transposed)
    return [
        *(given(f"dot {m}x{k}x{n}", lax.dot, (m, k), (k, n), **order) for m, k, n in shapes),
        given("x @ w.T 1024x1024x1024", _transposed, (1024, 1024), (1024, 1024), **order),
        left((256, 1000), (784, 1000), **order),
        given("right gradient of 256x784x1000", _right, (256, 784), (256, 1000), **order),
    ]


def _right(x, g):
    return x.T @ g


def _larger_spectra():
    a = values((512, 512))
    yield "eigh [512x512]", jnp.linalg.eigh, (a + a.T,)
    svd = functools.partial(jnp.linalg.svd, full_matrices=False)
    yield "SVD [2000x100]", svd, (values((2000, 100)),)


def short_rows() -> list[Case]:
    """What reduces rows of few elements: of small models, of heads, of actions, of coordinates."""

    def layer_norm(x):
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    def distances(x, y):
        return jnp.sqrt(((x[:, None] - y) ** 2).sum(-1))

    shapes = [(1 << 20) // n for n in (4, 16, 64)]
    return [
        *(given(f"softmax [{m}x{2**20 // m}]", jax.nn.softmax, (m, 2**20 // m)) for m in shapes),
        *(given(f"layer norm [{m}x{2**20 // m}]", layer_norm, (m, 2**20 // m)) for m in shapes),
        given("largest of 4 [262144x4]", lambda x: x.max(-1), (1 << 18, 4)),
        given("distances of 1,000 points in space", distances, (1000, 3), (1000, 3)),
    ]


def linear_algebra() -> list[Case]:
    bars = {"QR": 1.5, "eigh": 4.0, "SVD": 4.0, "Cholesky": None, "LU": None, "solve": None}
    cases = all_found(cpu.factorization_cases, {f"{n} [256x256]": bar for n, bar in bars.items()})
    return cases + all_found(_larger_spectra, {"eigh [512x512]": 4.0, "SVD [2000x100]": None})


def fourier() -> list[Case]:
    names = ("rfft [256x1024]", "rfft [1000x400]", "rfft [16x1009]", "fft2 [64x64x64]")
    return all_found(cpu.fourier_cases, dict.fromkeys(names))


def random() -> list[Case]:
    """Random numbers, and a dropout of what a layer makes."""

    def drawn(sampler: Callable, *shape: int) -> programs.Program:
        return lambda key: sampler(key, shape), (jax.random.key(0),)

    def dropout() -> programs.Program:
        layer = nn.Dropout(0.1, deterministic=False)

        def program(x, key):
            return layer.apply({}, jnp.tanh(x), rngs={"dropout": key})

        return program, (values((512, 1024)), jax.random.key(0))

    return [
        case("bits [1048576]", drawn, jax.random.bits, 1 << 20),
        case("normal [65536]", drawn, jax.random.normal, 1 << 16),
        case("gumbel [256x1000]", drawn, jax.random.gumbel, 256, 1000),
        case("dropout of tanh [512x1024]", dropout),
    ]


def others() -> list[Case]:
    """Functions of jax.numpy and jax.nn that no other group has."""

    def complex_numbers(x, y):
        z = lax.complex(x, y)
        return jnp.abs(z * z + z)

    def gelu(x):
        return jax.nn.gelu(x, approximate=False)

    def polynomial(x):
        return jnp.polyval(jnp.arange(1.0, 5.0), x)

    def solve(a, b):
        return jnp.linalg.solve(a + 8 * jnp.eye(16), b)

    def either(x):
        return lax.cond(x[0, 0] > 0, lambda x: x * 2, lambda x: x - 1, x)

    def gamma(seeds):
        return jax.random.gamma(jax.random.key(0), jnp.abs(seeds) + 1)

    def moving_average(x):
        return lax.scan(lambda c, row: (0.9 * c + 0.1 * row,) * 2, x[0], x)[1]

    def ctc(logits):
        labels = jnp.arange(80).reshape(8, 10) % 19 + 1
        paddings = jnp.zeros((8, 50)), jnp.zeros((8, 10))
        return optax.ctc_loss(logits, paddings[0], labels, paddings[1]).sum()

    def factor(x):
        return jnp.linalg.cholesky(jnp.eye(512) + x @ x.T)

    def van_der_pol(y):
        def f(y, t):
            return jnp.stack([y[1], (1 - y[0] ** 2) * y[1] - y[0]])

        return odeint(f, y, jnp.linspace(0.0, 5.0, 20))

    def substitute(a, b):
        return jax.scipy.linalg.solve_triangular(a + 30 * jnp.eye(512), b, lower=True)

    def conjugate_gradients(a, b):
        positive = a @ a.T / 400 + jnp.eye(400)
        return jax.scipy.sparse.linalg.cg(lambda x: positive @ x, b, maxiter=50)[0]

    def betainc(a, b, x):
        return jax.scipy.special.betainc(jnp.abs(a) + 1, jnp.abs(b) + 1, jax.nn.sigmoid(x))

    square, many = (512, 512), (1 << 16,)
    return [
        given("top_k, 8 x 50,257, 50", lambda x: lax.top_k(x, 50), (8, 50_257)),
        given("GELU by erfc [512x512]", gelu, square),
        given("complex z * z + z [512x512]", complex_numbers, square, square),
        given("polyval of four [512x512]", polynomial, square),
        given("solve, 256 of 16x16", solve, (256, 16, 16), (256, 16, 1)),
        given("cond [512x512]", either, square),
        given("interp of 1,024", lambda x, y: jnp.interp(x, jnp.arange(1024.0), y), *[(1024,)] * 2),
        given("sort of rows [512x1024]", jnp.sort, (512, 1024)),
        given("gamma variates, 10,000", gamma, (10_000,)),
        given("moving average by scan, 256 x 512", moving_average, (256, 512)),
        given("CTC loss, 8 x 50 x 20", ctc, (8, 50, 20)),
        given("gradient of a CTC loss, 8 x 50 x 20", jax.grad(ctc), (8, 50, 20)),
        given("Cholesky of x @ x.T [512x512]", factor, square),
        given("triangular solve [512x512], one side", substitute, square, (512,)),
        given("odeint, van der Pol, 20 times", van_der_pol, (2,)),
        given("conjugate gradients [400x400]", conjugate_gradients, (400, 400), (400,)),
        given("polygamma(1) [65536]", lambda x: jax.scipy.special.polygamma(1, x * x + 1), many),
        given("i0e [65536]", lax.bessel_i0e, many),
        given("betainc, 10,000", betainc, *[(10_000,)] * 3),
    ]


# --- explicit functions -------------------------------------------------------------------


def explicit_products() -> list[Case]:
    import repjax.lax

    def make(n):
        x = values((n, n)), values((n, n), 1)
        return functools.partial(jax.jit(lax.dot), *x), functools.partial(repjax.lax.dot, *x)

    return [
        Case(f"repjax.lax.dot {n}x{n}x{n}", functools.partial(make, n), 1.05) for n in (1024, 2048)
    ]


def explicit() -> list[Case]:
    """Explicit functions under a plain jax.jit, beside stock ones under the decorator."""

    def beside(make, *args):
        stock, ours, arguments = make(*args)
        return (
            functools.partial(repjax.reproducible(stock), *arguments),
            functools.partial(jax.jit(ours), *arguments),
        )

    parts: dict[str, tuple[Any, ...]] = {
        "chain of 65,536": (programs.chain, 1 << 16),
        "chain of 4 M": (programs.chain, 1 << 22),
        "softmax of rows 1024x1024": (programs.rows, "softmax"),
        "layer norm of rows 1024x1024": (programs.rows, "layer norm"),
        "LeNet-5 of repjax.nn, inference": (programs.layers, "inference"),
        "LeNet-5 of repjax.nn, loss and gradients": (programs.layers, "gradients"),
    }
    return [Case(name, functools.partial(beside, *how), 1.0) for name, how in parts.items()]


# --- training, language models ------------------------------------------------------------


def training() -> list[Case]:
    bfloat16 = functools.partial(cpu.language_cases, jnp.bfloat16)
    lenet = "LeNet-5 training step, batch 64"
    independent = {"contraction": "order_independent"}
    return [
        *(found(cpu.training_cases, f"{lenet}, {name}") for name in ("sgd", "adam")),
        dataclasses.replace(
            found(cpu.training_cases, f"{lenet}, adam", **independent),
            name=f"{lenet}, adam, order_independent",
        ),
        case("784-1000-1000-10 training step, batch 256, adam", programs.perceptron),
        case(
            "784-1000-1000-10 training step, batch 256, adam, order_independent",
            programs.perceptron,
            **independent,
        ),
        case("adam alone, 784-1000-1000-10", programs.adam),
        *(
            found(cpu.network_cases, f"{name} training step, 4 blocks")
            for name in ("transformer", "ResNet")
        ),
        *(
            found(
                lambda: cpu.network_cases(cpu.larger_networks()), f"{name} training step, 4 blocks"
            )
            for name in ("larger transformer", "larger ResNet")
        ),
        found(cpu.language_cases, "language model training step, 8192 words"),
        dataclasses.replace(
            found(bfloat16, "language model training step, 8192 words", 1.1),
            name="bfloat16 language model training step, 8192 words",
        ),
        case("UNet training step", programs.unet, bar=1.1),
        case("VAE training step", programs.vae, bar=1.1),
        case("DQN training step", programs.dqn, bar=1.1),
    ]


SMALL = gpt2.Shape(GPT(vocabulary=8192, positions=256, width=256, depth=4, heads=8), 2, 128, 0)


def language_model(full: bool = False) -> list[Case]:
    """A model of GPT-2's architecture and the pieces of its steps; GPT-2 small's shape if full."""
    shape = gpt2.SHAPES["gpt2"] if full else SMALL
    words, width, rows = shape.model.vocabulary, shape.model.width, shape.rows * shape.length
    batch = f"{shape.rows} x {shape.length} tokens"

    @functools.cache  # the parameters, while this group is measured
    def start():
        begin, step = shape.trainer()
        return step, *repjax.reproducible(begin)(jax.random.key(0))

    def step():
        step, params, state = start()
        return step, (params, state, shape.tokens(shape.rows, shape.length))

    def forward():
        return shape.model.apply, (start()[1], shape.tokens(shape.rows, shape.length))

    def decode(count):
        def program(params, tokens, positions, cache):
            return shape.model.apply(params, tokens, positions, cache)

        at, cache = np.full((count, 1), 100, np.int32), shape.model.make_cache(count, 128)
        return program, (start()[1], shape.tokens(count, 1), at, cache)

    def generate(count):
        """The same as a sampler does it, which gives its cache away."""
        program, (params, tokens, at, _) = decode(count)

        def call(jit):
            step, cache = jit(program, donate_argnums=3), [shape.model.make_cache(count, 128)]

            def token():
                logits, cache[0] = step(params, tokens, at, cache[0])
                return logits

            return token

        return call(jax.jit), call(repjax.reproducible)

    def adamw():
        params, optimizer = start()[1], optax.adamw(3e-4)

        def update(gradient, state, params):
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state

        return update, (jax.tree.map(lambda x: 1e-3 * x, params), optimizer.init(params), params)

    def lookup():
        def program(table, tokens, cotangent):
            return jax.vjp(lambda table: table[tokens], table)[1](cotangent)

        return program, (values((words, width)), integers(rows, words), values((rows, width), 1))

    def loop(e, v):
        return lax.fori_loop(0, 16, lambda _, v: jnp.tanh(v @ e[:width]), v)

    table, x, logits = (words, width), (rows, width), (rows, words)
    cases = [
        case(f"training step, {batch}", step, bar=1.1),
        case(f"forward pass, {batch}", forward, bar=1.1),
        *(case(f"decode a token, batch {n}", decode, n, bar=1.1) for n in (1, 8, 64)),
        *(
            Case(f"generate a token, batch {n}", functools.partial(generate, n), 1.1)
            for n in (1, 8, 64)
        ),
        case("AdamW alone", adamw, bar=1.1),
        case(f"gradient of the embedding, {rows} tokens", lookup, bar=1.2),
        given(f"logits {rows} x {width} x {words}", _transposed, x, table, bar=1.1),
        given("logits, left gradient", lambda g, e: g @ e, logits, table, bar=1.1),
        given("logits, right gradient", lambda g, x: g.T @ x, logits, x, bar=1.1),
        given("q @ w, one row", lambda q, w: q @ w, (1, width), (width, words), bar=1.1),
        given("q @ e.T, one row", _transposed, (1, width), table, bar=1.1),
        given("e.sum()", _sum, table, bar=1.1),
        given(f"a loop that reads e[:{width}]", loop, table, (width,), bar=1.3),
    ]
    title = f"GPT {words} x {width}, {shape.model.depth} blocks"
    return [dataclasses.replace(case, name=f"{title}: {case.name}") for case in cases]


# --- devices, libraries, no kernels -------------------------------------------------------


def split(count: int) -> list[Case]:
    """Training steps whose batch is split over so many devices, parts of the CPU."""

    def source():
        axis = jax.sharding.AxisType.Auto
        return devices.cases(jax.make_mesh((jax.device_count(),), ("batch",), axis_types=(axis,)))

    names = (f"transformer, {count} devices, jit", f"transformer, {count} devices, shard_map")
    return [
        dataclasses.replace(
            found(source, name, 1.15), name=name.replace("transformer", "transformer training step")
        )
        for name in names
    ]


def libraries() -> list[Case]:
    return [
        Case("NNX transformer training step, 4 blocks", programs.nnx_transformer, 1.1),
        dataclasses.replace(
            case("BlackJAX NUTS, 10 draws", programs.nuts, bar=1.1), needs=("blackjax",)
        ),
        dataclasses.replace(
            case("jraph GraphSAGE training step", programs.graph_sage, bar=1.1), needs=("jraph",)
        ),
    ]


def without_kernels() -> list[Case]:
    return [
        given("dot 256x256x256", lax.dot, (256, 256), (256, 256), bar=8.0),
        given("softmax 1024 x 1024", jax.nn.softmax, (1024, 1024), bar=8.0),
        found(cpu.network_cases, "transformer training step, 4 blocks", 8.0),
    ]


def _devices(count: int) -> dict[str, str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    return {"XLA_FLAGS": flags.strip()}


def groups(full: bool = False) -> list[Group]:
    """All of them; ``full`` adds GPT-2 small's shape, which takes gigabytes and minutes."""
    made = {
        "networks": training(),
        "recurrent": recurrent(),
        "language model": language_model(),
        "libraries": libraries(),
        "sparse": sparse(),
        "parts": parts(),
        "loops": loops(),
        "in cache": in_cache(),
        "large": large(),
        "sums and losses": sums(),
        "sequential": sequential(),
        "order_independent": order_independent(),
        "explicit products": explicit_products(),
        "Fourier": fourier(),
        "random numbers": random(),
        "short rows": short_rows(),
        "others": others(),
        "linear algebra": linear_algebra(),
    }
    if full:
        made["GPT-2 small's shape"] = language_model(full=True)
    return [
        *(Group(name, tuple(cases)) for name, cases in made.items()),
        Group("2 devices", tuple(split(2)), environment=_devices(2)),
        Group("8 devices", tuple(split(8)), environment=_devices(8)),
        Group("sequential sums", tuple(in_sequence()), "plain JAX, in the same order"),
        Group("order_independent sums", tuple(of_pairwise()), "pairwise"),
        Group("explicit", tuple(explicit()), "the decorator"),
        Group(
            "without kernels",
            tuple(without_kernels()),
            "plain JAX, without the C++ kernels",
            {"REPJAX_NATIVE": "off"},
        ),
    ]
