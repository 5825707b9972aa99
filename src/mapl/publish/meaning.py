"""What epsilon means for one person, in numbers and in words."""

import math

from mapl.errors import positive, probability
from mapl.privacy.rounding import decimals_up

PRIORS = (0.5, 0.1, 0.01)


def what_epsilon_means(epsilon: float, *, prior: float = 0.5) -> float:
    r"""Return the highest probability that a belief about one person can rise to.

    If somebody believed with probability p that a record is in the data, then after
    seeing what was published they believe it with at most
    :math:`pe^\epsilon/(1 - p + pe^\epsilon)`, up to delta: an output that tells more
    is possible, and one that multiplies the odds by more than
    :math:`e^{\epsilon + t}` has probability at most :math:`\delta/(1 - e^{-t})`.

    Examples
    --------
    >>> from mapl.publish.meaning import what_epsilon_means
    >>> round(what_epsilon_means(1.0), 2), round(what_epsilon_means(1.0, prior=0.01), 3)
    (0.73, 0.027)
    """
    epsilon, prior = positive(epsilon=epsilon), probability(prior=prior)
    return 1 / (1 + (1 - prior) / prior * math.exp(-epsilon))


def right_guess(epsilon: float, delta: float) -> float:
    r"""Return the highest probability of a right guess at even odds:
    :math:`(e^\epsilon + \delta)/(e^\epsilon + 1)`.
    """
    odds = math.exp(-epsilon)
    return (1 + delta * odds) / (1 + odds)


def in_plain_words(
    epsilon: float, delta: float, *, unit: str = "a record", privacy: str = "records"
) -> str:
    """Return one sentence about what the guarantee means for one person."""
    who = "a certain record"
    if unit != "a record":
        who = "the records of a certain group, a person for instance"
    question = {
        "records": f"the private data hold {who} or do not",
        "labels": f"{who} may be labelled in two ways",
    }[privacy]
    return (
        f"In plain words: {question}. Somebody who thinks both equally likely, knows "
        "everything else and sees all that was published guesses right with a "
        f"probability of at most {percent_up(right_guess(epsilon, delta))}."
    )


def beliefs(epsilon: float) -> dict[str, float]:
    """Return how far a belief can rise, from each of `PRIORS`."""
    return {f"{p:.0%}": what_epsilon_means(epsilon, prior=p) for p in PRIORS}


def beliefs_in_words(epsilon: float) -> str:
    """Return the rises of `beliefs` as text."""
    rises = (
        f"from {prior} to {percent_up(most)}"
        for prior, most in beliefs(epsilon).items()
    )
    return ", ".join(rises)


def percent_up(share: float) -> str:
    """Return an upper bound as text, rounded up.

    Examples
    --------
    >>> from mapl.publish.meaning import percent_up
    >>> percent_up(0.7311), percent_up(0.88), percent_up(0.99997)
    ('73.2%', '88%', '100%')
    """
    return f"{100 * decimals_up(share, 3):.4g}%"
