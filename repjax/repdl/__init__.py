"""The graphs of RepDL: layers, losses and Adam with the bits of that PyTorch library.

RepDL (Xie, Zhang and Chen 2025, "RepDL: Bit-level Reproducible Deep Learning Training and
Inference", https://github.com/microsoft/RepDL) makes training in PyTorch reproducible by the
principles of repjax: correctly rounded operations in a stated order.  The functions here have its
order, forward and backward, in PyTorch's layouts, so that a run in JAX can be checked against one
in PyTorch bit for bit::

    def loss(params, images, labels):
        x = repdl.relu(repdl.conv2d(images, params["conv"], stride=2))
        return repdl.cross_entropy(repdl.linear(x.reshape(len(x), -1), params["out"]), labels)

    optimizer = repdl.adam(1e-3)

**Notation.**  rn(v) is v rounded to float32.  Each operation of a graph below is rounded on its
own, except for fma(a, b, c) = rn(a * b + c).  A *chain* over k of a[k] and b[k] is
s = fma(a[k], b[k], s), k ascending from s = +0; a *sum* over k is s = rn(s + x[k]), k ascending
from +0.  Over several axes k runs row-major, the last axis fastest.  f(n) is 1/n, rounded to
float64 and then to float32; constants given as Python floats are rounded to float32.  The options
``repjax_accumulation`` and ``repjax_contraction`` do not matter here.

**Where the bits are RepDL's.**  Wherever all values that RepDL computes are finite and canonical
(``docs/numerics.md``, section 1).  It keeps subnormals and -0, which are +0 here: compare with
``x + 0.0`` there.  Three more differences: its logarithm is misrounded at five inputs
(:func:`cross_entropy`); beside infinite weights or gradients, the padding of a convolution and
the holes of its input gradient take part here, 0 * inf = NaN, and are left out there; and where a
value is used in three places or more, the order in which their cotangents are added is JAX's,
not PyTorch's.

**Beyond RepDL.**  ``layer_norm``, ``gelu``, ``silu``, ``embedding``, ``attention``, ``adamw`` and
``sgd``, which it has not got, are graphs of the same kind; ``docs/repdl.md`` has the operations of
PyTorch that each equals.  :class:`Generator`, ``init_linear`` and ``init_conv2d`` begin with
PyTorch's initial weights; ``from_state_dict``, ``to_state_dict`` and ``torch_hash`` carry
parameters over and compare them.

The functions work as those of :mod:`repjax.lax` do: eagerly, under ``jit``, ``vmap`` and
``grad`` (reverse mode), inside ``repjax.reproducible`` and under the switch.
"""

from repjax.repdl.beyond import attention as attention
from repjax.repdl.beyond import embedding as embedding
from repjax.repdl.beyond import gelu as gelu
from repjax.repdl.beyond import layer_norm as layer_norm
from repjax.repdl.beyond import silu as silu
from repjax.repdl.generator import Generator as Generator
from repjax.repdl.generator import init_conv2d as init_conv2d
from repjax.repdl.generator import init_linear as init_linear
from repjax.repdl.graphs import batch_norm as batch_norm
from repjax.repdl.graphs import conv2d as conv2d
from repjax.repdl.graphs import cross_entropy as cross_entropy
from repjax.repdl.graphs import linear as linear
from repjax.repdl.graphs import max_pool2d as max_pool2d
from repjax.repdl.graphs import mean as mean
from repjax.repdl.graphs import relu as relu
from repjax.repdl.graphs import softmax as softmax
from repjax.repdl.graphs import sum as sum
from repjax.repdl.optimizers import adam as adam
from repjax.repdl.optimizers import adamw as adamw
from repjax.repdl.optimizers import sgd as sgd
from repjax.repdl.states import from_state_dict as from_state_dict
from repjax.repdl.states import to_state_dict as to_state_dict
from repjax.repdl.states import torch_hash as torch_hash

__all__ = [
    *("adam", "adamw", "attention", "batch_norm", "conv2d", "cross_entropy"),
    *("embedding", "from_state_dict", "gelu", "Generator", "init_conv2d", "init_linear"),
    *("layer_norm", "linear", "max_pool2d", "mean", "relu", "sgd"),
    *("silu", "softmax", "sum", "to_state_dict", "torch_hash"),
]
