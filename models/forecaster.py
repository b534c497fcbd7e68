"""An LSTM that forecasts the next number of a time series.

It stands for ModelX of B. Chen et al. ("Towards training reproducible deep learning models", ICSE
2022, section 4.1), an LSTM which forecasts energy usage, and whose design is not disclosed.
"""

from __future__ import annotations

import flax.linen as nn
import numpy as np


class Forecaster(nn.Module):
    """One layer of LSTM over a window, then an affine layer of its last output.

    Attributes:
      features: of the LSTM.

    Float32 windows (batch, steps) to float32 forecasts (batch,).  64 features have 16,961
    parameters.
    """

    features: int = 64

    @nn.compact
    def __call__(self, windows):
        if windows.ndim != 2 or windows.dtype != np.float32:
            raise ValueError(
                "Forecaster: expected float32 windows of shape (batch, steps), received "
                f"{windows.dtype} of shape {windows.shape}; cut the series into windows and "
                "convert them to float32"
            )
        outputs = nn.RNN(nn.OptimizedLSTMCell(self.features))(windows[..., None])
        return nn.Dense(1)(outputs[:, -1])[:, 0]
