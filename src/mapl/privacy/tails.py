"""Tails of discrete Laplace noise, exact up to rounding; accounting inflates them."""

import math


def laplace_tail(reach: float, scale: float) -> float:
    """Return P(X > reach) for discrete Laplace noise X; ``reach`` an integer."""
    if reach < 0:
        return 1 - laplace_tail(-reach - 1, scale)
    tail = math.exp(-(reach + 1) / scale - math.log1p(math.exp(-1 / scale)))
    return max(tail, 5e-324)  # a leak too small for a float is not 0


def laplace_difference_tail(
    reach: float, scale: float, threshold_scale: float
) -> float:
    r"""Return P(X - A > reach) for discrete Laplace X and A; a scale of 0: A = 0.

    With :math:`\alpha = e^{-1/threshold\_scale}` and :math:`\beta = e^{-1/scale}`, the
    sum of P(A = a) P(X > reach + a) over a >= 0, over 0 > a >= -reach, and over the
    rest; all three are geometric series.
    """
    if threshold_scale == 0:
        return laplace_tail(reach, scale)
    if reach < 0:
        return 1 - laplace_difference_tail(-reach - 1, scale, threshold_scale)
    alpha, beta = math.exp(-1 / threshold_scale), math.exp(-1 / scale)
    weight = math.tanh(1 / threshold_scale / 2)  # P(A = 0)
    alpha_rest = -math.expm1(-1 / threshold_scale)  # 1 - alpha
    both_rest = -math.expm1(-1 / threshold_scale - 1 / scale)  # 1 - alpha beta
    above = math.exp(-(reach + 1) / scale) / both_rest
    gap = abs(1 / threshold_scale - 1 / scale)
    terms = math.expm1(-gap * reach) / math.expm1(-gap) if gap else reach
    if threshold_scale <= scale:
        between = alpha * math.exp(-reach / scale) * terms
    else:
        between = beta * math.exp(-reach / threshold_scale) * terms
    below = alpha / alpha_rest - alpha * beta / ((1 + beta) * both_rest)
    rest = math.exp(-reach / threshold_scale) * below
    return max(weight * ((above + between) / (1 + beta) + rest), 5e-324)
