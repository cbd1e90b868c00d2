"""Responses that run away: rare, by chance, and far longer than anything else in a step, in closed form.

One response in a thousand that repeats itself up to the limit costs a step ten times its time if the step waits for
it. In the bulk pool up to q groups with runaways are cut for nothing; in the tail pool each is waited for, and q groups
of n meet one in a share q n / 1000 of the steps. A history of some twenty pools holds a handful of bulk runaways and
most often no tail runaway at all, so counting what happened there prices neither. The chance of a response to run away
is known far better: it is one number, told by all responses (`survival`). Hence

    pool's time = usual time with chance 1 - risk, late time with chance risk
    late time   = usual time + (length of a runaway - longest usual one) tau(1)       it decodes the rest alone
    tail risk   = 1 - prod over the q groups (1 - rate)^n
    bulk risk   = P(K > q), K ~ Poisson(expected groups with a runaway); K <= q runaways take K of the q places cut

Invariants: a rate of 0 changes nothing; both risks are in 0..1, the tail's does not fall with q, the bulk's not rise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: A response runs away if it is this many times longer than all but the hundredth part of a history's responses: where
#: more than that are so long, the pools themselves tell enough.
FAR, ALL_BUT = 2.0, 0.01
#: Chance left out of the number of runaways in a pool.
NEGLECTED = 1e-6


@dataclass(frozen=True)
class Runaways:
    """What is known of runaways.

    Attributes:
        rate: chance of a response to run away, for the groups of each scenario, [S, F].
        tokens: mean length of one.
    """

    rate: Floats
    tokens: float


@dataclass(frozen=True)
class PoolTime:
    """Seconds of a pool in each scenario, [S]: usually, and if it waits for a runaway, with what chance.

    ``risk`` is 0.0 where nothing runs away.
    """

    usual: Floats
    late: Floats
    risk: Floats | float = 0.0

    @property
    def expected(self) -> Floats:
        """[S] seconds."""
        return self.usual if isinstance(self.risk, float) else self.usual + self.risk * (self.late - self.usual)

    def both(self, other: PoolTime) -> Floats:
        """Expected time until this pool and another one, independent of it, are done, [S] seconds."""
        usual = np.maximum(self.usual, other.usual)
        if isinstance(self.risk, float) and isinstance(other.risk, float):
            return usual
        mine = self.risk * (1.0 - other.risk) * np.maximum(self.late, other.usual)
        theirs = other.risk * (1.0 - self.risk) * np.maximum(self.usual, other.late)
        two = self.risk * other.risk * np.maximum(self.late, other.late)
        return np.asarray((1.0 - self.risk) * (1.0 - other.risk) * usual + mine + theirs + two)


def number_of_runaways(mean: float, most: int) -> Floats:
    """Chances of 0, 1, ... runaways, at most ``most``, where so many are expected (Poisson), [K]."""
    chances = [np.exp(-mean)]
    while 1.0 - sum(chances) > NEGLECTED and len(chances) <= most:
        chances.append(chances[-1] * mean / len(chances))
    return np.array(chances)


def cut_around(latest: Floats, chances: Floats) -> tuple[Floats, Floats]:
    """Times of the cut if runaways take up part of the places cut, and the risk that they are more than those.

    Args:
        latest: when a pool's groups are complete, latest first, [S, F]: the time of the cut by groups cut.
        chances: of 0, 1, ... groups with a runaway, [K].

    Returns:
        mean time of the cut if all runaways are cut, [S, F], and the chance that some are not, [F].
    """
    mixed, weight = np.zeros_like(latest), np.zeros(latest.shape[1])
    for taken, chance in enumerate(chances[: latest.shape[1]].tolist()):
        mixed[:, taken:] += chance * latest[:, : latest.shape[1] - taken]
        weight[taken:] += chance
    return mixed / weight, np.maximum(0.0, 1.0 - weight)
