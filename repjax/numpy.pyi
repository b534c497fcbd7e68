"""The types of repjax.numpy: those of jax.numpy."""

from jax.numpy import argmax as argmax
from jax.numpy import argmin as argmin
from jax.numpy import dot as dot
from jax.numpy import einsum as einsum
from jax.numpy import matmul as matmul
from jax.numpy import max as max
from jax.numpy import mean as mean
from jax.numpy import min as min
from jax.numpy import std as std
from jax.numpy import sum as sum
from jax.numpy import tensordot as tensordot
from jax.numpy import var as var
