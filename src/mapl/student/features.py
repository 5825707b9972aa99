"""Features of public points: random Fourier features, and a spectral embedding."""

import numpy as np

from mapl.arrays import Array, Floats, Singles

_FEWEST = 50  # points, to be embedded
_WAVES, _FREQUENCIES = 600, (0.5, 2.0)  # random Fourier features beside the others
_LANDMARKS, _NEIGHBOURS = 10_000, 10  # of the graph of public points
_COORDINATES, _WALKS = 40, 10  # coordinates in it, and rounds of steps to find them


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


def spectral_embedding(features: Floats, rng: np.random.Generator) -> Singles:
    """Return coordinates of the points in the graph of their nearest neighbours
    (Belkin, Niyogi 2003): the slow directions of a random walk over it.

    The graph has at most _LANDMARKS points; the others are interpolated.
    """
    from scipy.sparse import csr_array, diags_array
    from sklearn.neighbors import NearestNeighbors

    # Equal points would be neighbours of each other alone.
    table, equal = np.unique(_centre_and_scale(features), axis=0, return_inverse=True)
    n = len(table)
    if n < _FEWEST:
        return np.asarray(table[equal])
    marks = np.sort(rng.permutation(n)[:_LANDMARKS])
    near = NearestNeighbors(n_neighbors=_NEIGHBOURS).fit(table[marks])
    distance, index = near.kneighbors(table)
    reach = np.maximum(distance[:, -1], 1e-3)
    close = np.exp(-(distance**2) / (reach[:, None] * reach[marks][index]))
    ends = np.arange(0, close.size + 1, _NEIGHBOURS)
    shape = n, len(marks)
    ties = csr_array((close.ravel(), index.ravel(), ends), shape, dtype=np.float32)
    walk = ties[marks] + ties[marks].T
    scale = diags_array(1 / np.sqrt(walk.sum(axis=1)))
    walk = scale @ walk @ scale
    embedding = rng.normal(size=(len(marks), min(_COORDINATES, len(marks)))).astype(
        np.float32
    )
    for _ in range(_WALKS):
        for _ in range(_WALKS):
            embedding = walk @ embedding
        embedding = np.linalg.qr(embedding)[0]
    embedding = ties @ (scale @ embedding)
    norm = np.sqrt((embedding**2).sum(axis=1, keepdims=True))
    return _centre_and_scale((embedding / np.maximum(norm, 1e-30))[equal])


def _centre_and_scale(table: Array) -> Singles:
    """Centre the columns, and scale all by one number: mean squared norm 1, for which
    the penalties of the regressions are made.
    """
    centred = table - table.mean(axis=0)
    norm = float(np.sqrt((centred**2).sum(axis=1).mean()))
    return np.asarray(centred / (norm or 1.0), dtype=np.float32)
