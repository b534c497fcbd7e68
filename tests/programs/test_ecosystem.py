"""Programs of other libraries, unmodified, under the switch: covered, with kernels and without.

    pip install "repjax[ecosystem]"

has the libraries; a test is skipped without its own.  The graphs are theirs and change with their
versions, so nothing is recorded here.
"""

from __future__ import annotations

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import repjax
from helpers.bits import normal
from repjax.primitives.cpu import library

pytestmark = pytest.mark.filterwarnings("ignore")

KEY = jax.random.key(0)
X = normal((32, 10))
Y = (X.sum(1) > 0).astype(np.int32)


def _cross_entropy(logits):
    return optax.softmax_cross_entropy_with_integer_labels(logits, Y).mean()


def equinox():
    import equinox as eqx

    model, optimizer = eqx.nn.MLP(10, 2, 32, 2, key=KEY), optax.adamw(1e-3)
    state = optimizer.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit
    def step(model, state):
        loss, gradient = eqx.filter_value_and_grad(lambda m: _cross_entropy(jax.vmap(m)(X)))(model)
        updates, state = optimizer.update(gradient, state, eqx.filter(model, eqx.is_array))
        return eqx.apply_updates(model, updates), state, loss

    for _ in range(2):
        model, state, loss = step(model, state)
    return loss, eqx.filter(model, eqx.is_array)


def haiku():
    import haiku as hk

    def network(x):
        core = hk.LSTM(8)
        y, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        y = hk.MultiHeadAttention(2, 4, w_init=hk.initializers.VarianceScaling(1.0))(y, y, y)
        return hk.LayerNorm(-1, True, True)(hk.dropout(hk.next_rng_key(), 0.1, y)).sum()

    network, x = hk.transform(network), normal((5, 3, 4), 1)
    params = network.init(KEY, x)
    return jax.jit(jax.grad(lambda params: network.apply(params, KEY, x)))(params)


def distrax():
    import distrax

    def loss(params):
        d = distrax.MultivariateNormalDiag(X @ params, jnp.exp(X @ params * 0.1))
        z, standard = d.sample(seed=KEY), distrax.MultivariateNormalDiag(jnp.zeros(3), jnp.ones(3))
        return jnp.mean(d.log_prob(z) + d.kl_divergence(standard)) + jnp.mean(
            distrax.Dirichlet(jnp.exp(z)).entropy() + distrax.VonMises(z[:, 0], 2.0).entropy()
        )

    return jax.jit(jax.value_and_grad(loss))(X[:10, :3] * 0.1)


def numpyro():
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    def model(x, y=None):
        w = numpyro.sample("w", dist.Normal(jnp.zeros(10), 1).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def positive(x, y=None):
        shape = numpyro.sample("shape", dist.Gamma(2.0, 2.0))
        numpyro.sample("y", dist.Gamma(shape, 1.0), obs=y)

    chain = MCMC(NUTS(model), num_warmup=5, num_samples=5, progress_bar=False)
    chain.run(KEY, X, Y)
    inference = SVI(positive, AutoNormal(positive), numpyro.optim.Adam(1e-2), Trace_ELBO())
    params = inference.run(KEY, 5, X, np.exp(X[:, 0]), progress_bar=False).params
    return chain.get_samples(), params


def diffrax():
    import diffrax

    def loss(a):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, a: jnp.tanh(a @ y)),
            diffrax.Tsit5(),
            *(0.0, 1.0, 0.1, jnp.full(10, 0.1)),
            args=a,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-4),
        )
        return jnp.sum(solution.ys**2)

    return jax.jit(jax.value_and_grad(loss))(X[:10] * 0.1)


def optimistix():
    import optimistix

    return optimistix.least_squares(
        lambda y, _: jnp.tanh(X @ y) - Y,
        optimistix.LevenbergMarquardt(rtol=1e-3, atol=1e-3),
        jnp.zeros(10),
        max_steps=20,
        throw=False,
    ).value


def jaxopt():
    import jaxopt

    def loss(w):
        return jnp.mean(jnp.log1p(jnp.exp(-(2 * Y - 1) * (X @ w)))) + 0.01 * jnp.sum(w * w)

    return jaxopt.LBFGS(loss, maxiter=5).run(jnp.zeros(10)).params


def jraph():
    import jraph

    def update(*features):
        return jnp.tanh(sum(jnp.sum(x, -1, keepdims=True) for x in features[:3])) * jnp.ones(10)

    edges = np.arange(20)
    graph = jraph.GraphsTuple(
        nodes=X,
        edges=X[:20],
        senders=edges,
        receivers=edges * 7 % 32,
        n_node=np.array([32]),
        n_edge=np.array([20]),
        globals=None,
    )
    network = jraph.InteractionNetwork(update, update)
    return jax.jit(lambda graph: network(graph).nodes)(graph)


def blackjax():
    import blackjax

    sampler = blackjax.hmc(lambda x: -0.5 * jnp.sum(x**2), 1e-1, jnp.ones(3), 5)

    def step(state, key):
        state, _ = sampler.step(key, state)
        return state, state.position

    return jax.lax.scan(step, sampler.init(jnp.ones(3)), jax.random.split(KEY, 10))[1]


PROGRAMS = [equinox, haiku, distrax, numpyro, diffrax, optimistix, jaxopt, jraph, blackjax]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs_of_other_libraries(program, monkeypatch):
    # Their errors at run time are callbacks, which are refused; read when they are imported.
    monkeypatch.setitem(os.environ, "EQX_ON_ERROR", "nan")
    pytest.importorskip(program.__name__)

    def digest():
        jax.clear_caches()
        with repjax.enabled():
            return repjax.digest([np.asarray(x) for x in jax.tree.leaves(program())])

    with_kernels = digest()
    monkeypatch.setattr(library, "available", lambda: False)
    assert digest() == with_kernels
