"""Features of public points for the smoother: linear, and random Fourier features."""

import numpy as np

from mapl.arrays import Array, Floats, Singles

_WAVES, _FREQUENCIES = 600, (0.5, 2.0)  # random Fourier features beside the others


def feature_maps(features: Floats, rng: np.random.Generator) -> list[Singles]:
    """Return the features alone, and with random Fourier features of each frequency
    (Rahimi, Recht 2007) appended; centred, with mean squared norm 1.
    """
    linear = _centre_and_scale(features)
    maps = [linear]
    for frequency in _FREQUENCIES:
        shape = linear.shape[1], _WAVES
        waves = np.sqrt(2 * frequency) * rng.normal(size=shape)
        phases = rng.uniform(0, 2 * np.pi, _WAVES)
        curved = _centre_and_scale(np.cos(linear @ waves.astype(np.float32) + phases))
        maps.append(np.hstack([linear, curved]) * np.float32(np.sqrt(0.5)))
    return maps


def _centre_and_scale(table: Array) -> Singles:
    """Centre the columns, and scale all by one number: mean squared norm 1, for which
    the penalties of the regressions are made.
    """
    centred = table - table.mean(axis=0)
    norm = float(np.sqrt((centred**2).sum(axis=1).mean()))
    return np.asarray(centred / (norm or 1.0), dtype=np.float32)
