"""Response lengths made up to order: a given P50 and P90, and given shares of the variance (paper Appendix B).

A response's length is a rising function of one standard normal score, Z = a P + b S + c PS + d E, with a^2 + b^2 +
c^2 + d^2 = 1: the prompt's level, the checkpoint's effect, the effect of both together, and chance. The function is
exp(mu + sigma Z), held in 1..cap, or the quantiles of two such components. It fixes the distribution of all lengths,
whatever the weights. The weights follow from the shares: the variance of E[length | part] is K(weight^2), where
K(rho) = sum_k c_k^2 rho^k is the covariance of two lengths whose scores correlate by rho, and c_k are the function's
Hermite coefficients. A runaway goes to the cap whatever its score; its variance is nobody's but chance's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from tailsieve_verl.core.tails import VarianceShares
from tailsieve_verl.errors import UserError
from tailsieve_verl.traces.trace import Trace

#: Shares of the variance of raw lengths, mean over the paper's tracks (Appendix B).
PAPER_SHARES = VarianceShares(prompt=0.648, checkpoint=0.022, interaction=0.069, sampling=0.261)

#: More fill the memory of an ordinary machine, some 40 bytes each, before anything is said.
MOST_RESPONSES = 100_000_000
_DEGREES = 160
_REACH = 9.0  # of the score, in standard deviations
_KNOTS = 1 << 13
_SLACK = 1e-9


class Mixture(NamedTuple):
    """A second component: its share of the responses in (0, 1), and its own P50 and P90 in tokens."""

    share: float
    p50: float
    p90: float


class _Weights(NamedTuple):
    prompt: float
    checkpoint: float
    interaction: float
    sampling: float


@dataclass(frozen=True)
class LengthModel:
    """Log-normal response lengths with a level per prompt, an effect of the checkpoint, and chance.

    Attributes:
        p50: median length of all responses in tokens; with a mixture, of the first component alone. Default: the
            paper's real workload (Table A.3).
        p90: their 90th percentile, above p50 and at most the cap.
        cap: response limit in tokens; longer ones stop there.
        prompt_share: share of the variance of raw lengths that is the prompt's, in 0..1 (Appendix B: 0.648).
        checkpoint_share: share of the checkpoint, the same for all prompts (Appendix B: 0.022).
        interaction_share: share of what a checkpoint does to single prompts (Appendix B: 0.069). Checkpoints scale
            lengths, so some goes with a checkpoint share in any case; 0 asks for that least.
        runaway: chance that a response runs to the cap whatever its prompt, in 0..0.1.
        mixture: second component of a bimodal load: (share, p50, p90).

    Raises:
        UserError: a value out of its range, or shares that these lengths cannot have.
    """

    p50: float = 1160.0
    p90: float = 4115.0
    cap: int = 16384
    prompt_share: float = PAPER_SHARES.prompt
    checkpoint_share: float = 0.0
    interaction_share: float = 0.0
    runaway: float = 0.0
    mixture: Mixture | tuple[float, float, float] | None = None

    def __post_init__(self) -> None:
        _check_component("", self.p50, self.p90, self.cap)
        if not 0 <= self.runaway < 0.1:
            raise UserError(
                f"runaway must be at least 0 and under 0.1, got {self.runaway}: from a tenth on, P90 is the cap."
            )
        if self.mixture is not None:
            share, p50, p90 = self.mixture
            if not 0 < share < 1:
                raise UserError(f"the mixture's share must be above 0 and under 1, got {share}.")
            _check_component("the mixture's ", p50, p90, self.cap)
        for name in ("prompt_share", "checkpoint_share", "interaction_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name} must be in 0..1, got {getattr(self, name)}.")
        if self.prompt_share + self.checkpoint_share + self.interaction_share > 1 + _SLACK:
            raise UserError(
                f"prompt_share {self.prompt_share}, checkpoint_share {self.checkpoint_share} and interaction_share "
                f"{self.interaction_share} must not exceed 1 together."
            )
        _ = self._weights

    @property
    def mean(self) -> float:
        """Mean length in tokens."""
        return float((1 - self.runaway) * self._moments[0] + self.runaway * self.cap)

    @property
    def most_share(self) -> float:
        """The most that prompts and checkpoints can have of the variance together; the rest is the runaways'."""
        return self._scale

    @property
    def shares(self) -> VarianceShares:
        """The shares that the lengths have, as asked for, with the least interaction where 0 was."""
        weights = self._weights
        known = weights.prompt**2 + weights.checkpoint**2 + weights.interaction**2
        prompt, checkpoint, together = (
            self._scale * self._covariance(rho) for rho in (weights.prompt**2, weights.checkpoint**2, known)
        )
        return VarianceShares(prompt, checkpoint, together - prompt - checkpoint, 1 - together)

    def quantile(self, q: ArrayLike) -> NDArray[np.float64]:
        """Length in tokens below which a share `q` of the responses stays, any shape, before rounding."""
        share = np.asarray(q, dtype=np.float64) / (1 - self.runaway)
        return np.where(share < 1, self._length(ndtri(np.minimum(share, 1 - 1e-16))), float(self.cap))

    def levels(self, rng: np.random.Generator, prompts: int, *, stratified: bool = False) -> NDArray[np.float64]:
        """Levels of new prompts, standard normal scores, [I]: the larger, the longer the prompt's responses.

        Args:
            stratified: one from each of I equally likely slices, in mixed order: even a few prompts have the model's
                P50 and P90, where independent ones scatter.

        Raises:
            UserError: `prompts` is under 1.
        """
        if prompts < 1:
            raise UserError(f"prompts must be at least 1, got {prompts}.")
        if not stratified:
            return rng.standard_normal(prompts)
        return ndtri((rng.permutation(prompts) + rng.uniform(1e-9, 1, prompts)) / prompts)

    def draw(
        self, rng: np.random.Generator, levels: ArrayLike, n: int, *, checkpoint: float = 0.0
    ) -> NDArray[np.int64]:
        """`n` responses of each prompt at one checkpoint, [I, n] tokens in 1..cap.

        What the checkpoint does to single prompts (`interaction_share`) is drawn anew in each call.

        Args:
            levels: of the prompts, [I], from `levels`.
            checkpoint: effect of the checkpoint as a standard normal score; 0 is the middle of the training.
        """
        level = np.asarray(levels, dtype=np.float64)
        weights = self._weights
        base = weights.prompt * level + weights.checkpoint * checkpoint
        if weights.interaction > 0:
            base = base + weights.interaction * rng.standard_normal(level.size)
        score = rng.standard_normal((level.size, n), dtype=np.float32)
        if self.mixture is None:
            mu, sigma = self._log_normal
            score *= np.float32(weights.sampling * sigma)
            score += (mu + sigma * base).astype(np.float32)[:, None]
            lengths = np.exp(score, out=score)
        else:
            score *= np.float32(weights.sampling)
            score += base.astype(np.float32)[:, None]
            lengths = self._length(score)
        np.clip(np.rint(lengths, out=lengths), 1, self.cap, out=lengths)
        tokens = np.minimum(lengths.astype(np.int64), self.cap)
        if self.runaway > 0:
            tokens[rng.random(tokens.shape, dtype=np.float32) < self.runaway] = self.cap
        return tokens

    @cached_property
    def _log_normal(self) -> tuple[float, float]:
        # P(length <= x) = (1 - runaway) F(x) below the cap, so F must reach 0.5 and 0.9 over (1 - runaway).
        # With a mixture, P50 and P90 are the component's own.
        keep = 1.0 if self.mixture is not None else 1 - self.runaway
        return _log_normal(self.p50, self.p90, 0.5 / keep, 0.9 / keep)

    @cached_property
    def _table(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores and log lengths of the mixture's quantile function."""
        assert self.mixture is not None
        share, p50, p90 = self.mixture
        (mu1, sigma1), (mu2, sigma2) = self._log_normal, _log_normal(p50, p90, 0.5, 0.9)
        reach = _REACH + 1
        low, high = min(mu1 - reach * sigma1, mu2 - reach * sigma2), max(mu1 + reach * sigma1, mu2 + reach * sigma2)
        log_length = np.linspace(low, high, 8 * _KNOTS)
        z1, z2 = (log_length - mu1) / sigma1, (log_length - mu2) / sigma2
        below = (1 - share) * ndtr(z1) + share * ndtr(z2)
        above = (1 - share) * ndtr(-z1) + share * ndtr(-z2)
        score = np.where(below < 0.5, ndtri(below), -ndtri(above))
        grid = np.linspace(-_REACH, _REACH, _KNOTS)
        return grid, np.interp(grid, score, log_length)

    def _length(self, score: NDArray[np.floating]) -> NDArray[np.float64]:
        """Length in tokens at a score, in 1..cap, not rounded."""
        if self.mixture is None:
            mu, sigma = self._log_normal
            log_length = mu + sigma * np.asarray(score, dtype=np.float64)
        else:
            log_length = np.interp(score, *self._table)
        return np.exp(np.clip(log_length, 0.0, math.log(self.cap)))

    @cached_property
    def _moments(self) -> tuple[float, NDArray[np.float64]]:
        """Mean without runaways, and the squared Hermite coefficients of degree 1 and up; they add up to the variance.

        What the last degree leaves over, of the kink at the cap, goes with a last one.
        """
        score, step = np.linspace(-_REACH, _REACH, _KNOTS, retstep=True)
        root = np.exp(-(score**2) / 4) / (2 * math.pi) ** 0.25
        length = self._length(score)
        before, now = np.zeros_like(score), root
        coefficients = []
        for degree in range(_DEGREES + 1):
            coefficients.append(float(np.sum(length * root * now) * step))
            before, now = now, (score * now - math.sqrt(degree) * before) / math.sqrt(degree + 1)
        mean = coefficients[0]
        squares = np.square(coefficients[1:])
        variance = float(np.sum((length - mean) ** 2 * root**2) * step)
        return mean, np.append(squares, max(variance - squares.sum(), 0.0))

    def _covariance(self, rho: float) -> float:
        """K(rho) as a share of K(1)."""
        squares = self._moments[1]
        return float(np.sum(squares * rho ** np.arange(1, squares.size + 1)) / squares.sum())

    @cached_property
    def _scale(self) -> float:
        """Share of the variance that does not come from runaways."""
        mean, variance = self._moments[0], float(self._moments[1].sum())
        keep, run = 1 - self.runaway, self.runaway
        return keep**2 * variance / (keep * variance + keep * run * (self.cap - mean) ** 2)

    @cached_property
    def _weights(self) -> _Weights:
        scale, asked = self._scale, self.prompt_share + self.checkpoint_share + self.interaction_share
        if asked > scale + _SLACK:
            raise UserError(
                f"prompt, checkpoint and interaction can have {scale:.3g} of the variance together at runaway "
                f"{self.runaway}, not {asked:.3g}, as the rest is the runaways': give less of either."
            )
        prompt, checkpoint = (self._correlation(s / scale) for s in (self.prompt_share, self.checkpoint_share))
        least = scale * self._covariance(min(prompt + checkpoint, 1.0)) - self.prompt_share - self.checkpoint_share
        if prompt + checkpoint > 1 + _SLACK or (0 < self.interaction_share < least - _SLACK):
            raise UserError(
                f"an interaction_share of at least {least:.3f} goes with prompt_share {self.prompt_share} and "
                f"checkpoint_share {self.checkpoint_share}, as checkpoints scale lengths: give that, or smaller shares."
            )
        known = self._correlation(asked / scale) if self.interaction_share > 0 else min(prompt + checkpoint, 1.0)
        parts = (prompt, checkpoint, known - prompt - checkpoint, 1 - known)
        return _Weights(*(math.sqrt(max(part, 0.0)) for part in parts))

    def _correlation(self, share: float) -> float:
        """The rho with K(rho) = share K(1)."""
        if share <= 0 or share >= 1:
            return float(share >= 1)
        return float(brentq(lambda rho: self._covariance(rho) - share, 0.0, 1.0, xtol=1e-12))


def checkpoint_effects(checkpoints: int) -> NDArray[np.float64]:
    """Effects of the checkpoints of one training run, [S], for `LengthModel.draw`: rising, of mean 0 and variance 1."""
    if checkpoints < 2:
        return np.zeros(checkpoints)
    scores = ndtri((np.arange(checkpoints) + 0.5) / checkpoints)
    return scores / scores.std()


def synthetic_trace(
    model: LengthModel, *, prompts: int, samples: int, checkpoints: int = 1, seed: int = 0, name: str = "synthetic"
) -> Trace:
    """A trace of `prompts` prompts with `samples` responses at each checkpoint; lengths rise over the checkpoints.

    Prompt levels are stratified. Responses are in order of checkpoint, prompt and sample. P50 and P90 are those of
    all responses together.

    Raises:
        UserError: a count under 1, more than `MOST_RESPONSES` in all, or a checkpoint share with only one checkpoint.
    """
    for label, count in (("prompts", prompts), ("samples", samples), ("checkpoints", checkpoints)):
        if count < 1:
            raise UserError(f"{label} must be at least 1, got {count}.")
    if (responses := prompts * samples * checkpoints) > MOST_RESPONSES:
        raise UserError(f"{responses} responses are more than {MOST_RESPONSES}: give fewer prompts or samples.")
    if checkpoints == 1 and model.checkpoint_share > 0:
        raise UserError(f"checkpoint_share {model.checkpoint_share} needs at least 2 checkpoints, got 1.")
    rng = np.random.default_rng(seed)
    levels = model.levels(rng, prompts, stratified=True)
    effects = checkpoint_effects(checkpoints)
    tokens = np.concatenate([model.draw(rng, levels, samples, checkpoint=float(e)).ravel() for e in effects])
    return Trace(
        tokens=tokens,
        prompt=np.tile(np.repeat(np.arange(prompts), samples), checkpoints),
        checkpoint=np.repeat(np.arange(checkpoints), prompts * samples),
        truncated=tokens == model.cap,
        prompt_ids=tuple(f"prompt_{i}" for i in range(prompts)),
        checkpoints=tuple(f"step_{i}" for i in range(checkpoints)),
        cap=model.cap,
        name=name,
    )


def _check_component(whose: str, p50: float, p90: float, cap: int) -> None:
    if not (isinstance(cap, int | np.integer) and cap >= 1):
        raise UserError(f"cap must be a whole number of at least 1 token, got {cap!r}.")
    if not 1 <= p50 < p90 < math.inf:
        raise UserError(f"{whose}p50 must be at least 1 token and below p90, got p50 {p50} and p90 {p90}.")
    if p90 > cap:
        raise UserError(f"{whose}p90 {p90} cannot be reached under the cap {cap}: give a larger cap or a smaller p90.")


def _log_normal(p50: float, p90: float, share50: float, share90: float) -> tuple[float, float]:
    """mu and sigma of the log-normal that is below p50 and p90 with these probabilities."""
    z50, z90 = float(ndtri(share50)), float(ndtri(share90))
    sigma = math.log(p90 / p50) / (z90 - z50)
    return math.log(p50) - sigma * z50, sigma
