"""PyTorch's random numbers on CPUs, and what its layers and loaders draw from them.

``torch.manual_seed(seed)`` seeds a Mersenne Twister (Matsumoto and Nishimura 1998, MT19937), from
which the initial weights of layers and the order of examples are made.  All that is here is exact
up to one rounding, so that it has PyTorch's bits on every machine.  Normal numbers, with which
``torch.nn.Embedding`` begins, are not here: PyTorch makes them by logarithms and cosines whose bits
depend on the machine.
"""

from __future__ import annotations

import math
import operator

import numpy as np

_N, _M = 624, 397
_UPPER, _LOWER = np.uint32(1 << 31), np.uint32((1 << 31) - 1)


def _twisted(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    y = (high & _UPPER) | (low & _LOWER)
    return (y >> np.uint32(1)) ^ ((y & np.uint32(1)) * np.uint32(0x9908B0DF))


class Generator:
    """The generator of ``torch.manual_seed(seed)``: draws change it, one after the other.

    Args:
      seed: an integer of 64 bits, of which the last 32 count, as in PyTorch.
    """

    def __init__(self, seed: int):
        try:
            seed = operator.index(seed)
        except TypeError:
            seed = None
        if seed is None or not -(2**63) <= seed < 2**64:
            raise ValueError(
                "repjax.repdl.Generator: expected an integer of 64 bits as seed, received "
                f"{seed if seed is not None else 'none'}; give one, such as 0"
            )
        words = [seed % 2**32]
        for i in range(1, _N):
            words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + i) % 2**32)
        self._state = np.array(words, np.uint32)
        self._rest = np.zeros(0, np.uint32)

    def words(self, count: int) -> np.ndarray:
        """The next ``count`` words, uint32[count]."""
        parts = [self._rest]
        missing = count - len(self._rest)
        while missing > 0:
            parts.append(self._next())
            missing -= _N
        words = np.concatenate(parts)
        self._rest = words[count:]
        return words[:count]

    def _next(self) -> np.ndarray:
        """The next 624 words."""
        old, new = self._state, np.empty_like(self._state)
        for start, stop in ((0, _N - _M), (_N - _M, 2 * (_N - _M)), (2 * (_N - _M), _N - 1)):
            far = old[start + _M :] if start == 0 else new[start - (_N - _M) :]
            twisted = _twisted(old[start:stop], old[start + 1 : stop + 1])
            new[start:stop] = far[: stop - start] ^ twisted
        new[-1:] = new[_M - 1 : _M] ^ _twisted(old[-1:], new[:1])
        self._state = new
        y = new ^ (new >> np.uint32(11))
        y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
        y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
        return y ^ (y >> np.uint32(18))

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
        """``torch.empty(shape).uniform_(low, high)``: float32, u * (high - low) + low rounded once.

        u is a multiple of 2**-24 from the last 24 bits of a word, and low, high and their
        difference are float32.
        """
        low, high = np.float32(low), np.float32(high)
        u = (self.words(math.prod(shape)) & np.uint32((1 << 24) - 1)).astype(np.float64) / 2**24
        # The product of 24 and 24 bits is exact in float64, so that a fused sum has the same bits.
        return (u * np.float64(high - low) + np.float64(low)).astype(np.float32).reshape(shape)

    def integer(self) -> int:
        """``torch.empty((), dtype=torch.int64).random_()``: an integer of 63 bits."""
        high, low = self.words(2).tolist()
        return ((high << 32) | low) % 2**63

    def permutation(self, count: int) -> np.ndarray:
        """``torch.randperm(count)``, int64[count], for less than 2**32 // 20 elements.

        Raises:
          ValueError: ``count`` is another one: PyTorch then draws words of 64 bits.
        """
        if not 0 <= count < 2**32 // 20:
            raise ValueError(
                f"repjax.repdl.Generator.permutation: expected a count in 0, ..., {2**32 // 20 - 1}"
                f", received {count}"
            )
        order = list(range(count))
        for i, word in enumerate(self.words(max(count - 1, 0)).tolist()):
            j = i + word % (count - i)
            order[i], order[j] = order[j], order[i]
        return np.array(order, np.int64)

    def epoch(self, count: int) -> np.ndarray:
        """The order of ``DataLoader(dataset, shuffle=True)`` in one epoch, int64[count].

        The loader draws a seed for its workers, which it uses for nothing else, and one for a
        generator of its own, which gives the permutation.
        """
        self.integer()
        return Generator(self.integer()).permutation(count)


def _layer(generator: Generator, shape: tuple[int, ...], bias: bool):
    inputs = math.prod(shape[1:])
    # kaiming_uniform_(a=sqrt(5)): the gain is sqrt(2 / (1 + a**2)), each operation in float64.
    gain = math.sqrt(2.0 / (1 + math.sqrt(5) ** 2))
    bound = math.sqrt(3.0) * (gain / math.sqrt(inputs))
    weight = generator.uniform(shape, -bound, bound)
    bound = 1 / math.sqrt(inputs)
    return weight, generator.uniform(shape[:1], -bound, bound) if bias else None


def _count(name: str, **given) -> tuple[int, ...]:
    try:
        counts = tuple(map(operator.index, given.values()))
    except TypeError:
        counts = (0,)
    if min(counts) < 1:
        raise ValueError(f"repjax.repdl.{name}: expected integers >= 1, received {given}")
    return counts


def init_linear(
    generator: Generator, inputs: int, outputs: int, bias: bool = True
) -> tuple[np.ndarray, np.ndarray | None]:
    """Weight and bias of ``torch.nn.Linear(inputs, outputs)``, of a generator's next draws.

    The weight is kaiming_uniform with a = sqrt(5), the bias uniform in +-1/sqrt(inputs).

    Returns:
      float32[outputs, inputs], and float32[outputs] or, without a bias, None.
    """
    inputs, outputs = _count("init_linear", inputs=inputs, outputs=outputs)
    return _layer(generator, (outputs, inputs), bias)


def init_conv2d(
    generator: Generator,
    inputs: int,
    outputs: int,
    window: int | tuple[int, int],
    groups: int = 1,
    bias: bool = True,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Weight and bias of ``torch.nn.Conv2d(inputs, outputs, window)``; see :func:`init_linear`.

    Returns:
      float32[outputs, inputs / groups, height, width], and float32[outputs] or None.
    """
    height, width = window if np.ndim(window) else (window, window)
    sizes = {"inputs": inputs, "outputs": outputs, "groups": groups}
    inputs, outputs, groups, *window = _count("init_conv2d", **sizes, height=height, width=width)
    if inputs % groups or outputs % groups:
        raise ValueError(
            f"repjax.repdl.init_conv2d: expected multiples of groups={groups}, received {inputs} "
            f"inputs and {outputs} outputs"
        )
    return _layer(generator, (outputs, inputs // groups, *window), bias)
