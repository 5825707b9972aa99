"""From published answers to a published model (Algorithm 3). Public values only.

All of it is post-processing, hence free. A student averages over points anyway, so it
does not need a few certain labels: noisy shares of the vote on many points tell it more
for the same price.
"""
