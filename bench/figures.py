"""Measurements: picked out of all that were made, and brought down to a median with its quartiles."""

import random
import statistics


def values(figures, contender, job, key):
    """One value a round, in the order of the rounds."""
    chosen = [f for f in figures if f["contender"] == contender and f["job"] == job]
    return [f[key] for f in sorted(chosen, key=lambda f: f["round"])]


def pairs(figures, contender, base, job, key):
    """The values of two contenders in the same rounds; empty if one of them was not measured."""
    mine, theirs = (values(figures, label, job, key) for label in (contender, base))
    return list(zip(mine, theirs)) if len(mine) == len(theirs) else []


def quartiles(of):
    """Lower quartile, median, upper quartile; of fewer than three values, the extremes and the median."""
    if len(of) < 3:
        return min(of), statistics.median(of), max(of)
    return tuple(statistics.quantiles(of, n=4))


def quartiles_of_ratio(of):
    """The same of the ratio of two medians, given pairs. For differences, whose ratio within one round
    means nothing where the lower one is near zero: how the ratio varies is found by drawing rounds."""
    if not of:
        return None
    draws = random.Random(1)
    samples = [[draws.choice(of) for _ in of] for _ in range(1000)]
    ratios = [ratio for ratio in map(_ratio, samples) if ratio is not None]
    whole = _ratio(of)
    if whole is None or len(ratios) < len(samples) / 2:
        return None
    low, _, high = statistics.quantiles(ratios, n=4)
    return low, whole, high


def _ratio(of):
    over, under = (statistics.median(side) for side in zip(*of))
    return over / under if under > 0 else None


def shown(of, digits=2):
    """Three values as `median (quartiles)`."""
    low, middle, high = of
    if low == high:
        return f"{middle:.{digits}f}"
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"
