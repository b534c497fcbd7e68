"""optax transformations made reproducible."""

from collections.abc import Callable as _Callable
from typing import Any as _Any

import optax as _optax

from repjax.reproducible import reproducible as _reproducible


def reproducible(transformation: _optax.GradientTransformation) -> _optax.GradientTransformation:
    """An optax transformation whose state and updates have the same bits everywhere.

    Args:
      transformation: any optax gradient transformation, chained or not, with or without
        extra arguments.

    Returns:
      A transformation with the same state structure.  Its ``init`` and ``update`` compute the
      stock ones' graphs with reproducible operations; under ``repjax.reproducible`` or the
      global switch the stock transformation gives the same bits.

    Raises:
      RefusedError: by ``init`` or ``update``, listing operations without a reproducible form.

    Example::

        optimizer = repjax.optim.reproducible(optax.adam(1e-3))
    """
    if not isinstance(transformation, _optax.GradientTransformation):
        raise TypeError(
            "repjax.optim.reproducible: expected an optax.GradientTransformation, received "
            f"{type(transformation).__name__}; pass the result of optax.sgd(...), optax.adam(...)"
        )
    return _optax.GradientTransformationExtraArgs(
        init=_reproducible(transformation.init),
        update=_reproducible(_optax.with_extra_args_support(transformation).update),
    )


apply_updates: _Callable[[_Any, _Any], _Any] = _reproducible(_optax.apply_updates)

__all__ = ["apply_updates", "reproducible"]
