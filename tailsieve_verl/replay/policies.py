"""Placements by name, written as `tailsieve simulate` writes its policies.

    uniform_group, verl_default, uniform_oracle, seer_oracle
    streamrl_oracle:m=1               the longest fifth of the requests on m replicas
    fixed:q=2,m=1                     the two pools: the q groups that were longest in another draw of the same prompts
                                      on m replicas (also tail_placement=group, bulk_placement=group)

Defaults of q and m are those of a run: N/8 and R/2.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tailsieve_verl.core.placement import PLACEMENTS, Placement, TailSieve
from tailsieve_verl.errors import UserError

#: Settings that a policy takes.
SETTINGS: dict[str, tuple[str, ...]] = {
    "uniform_group": (),
    "verl_default": (),
    "fixed": ("q", "m", "tail_placement", "bulk_placement"),
    "uniform_oracle": (),
    "seer_oracle": (),
    "streamrl_oracle": ("m",),
}


def longest_groups(history: ArrayLike, q: int) -> tuple[int, ...]:
    """The ``q`` groups with the largest total in ``history`` [N, n], longest first."""
    totals = np.asarray(history).sum(axis=1)
    return tuple(int(g) for g in np.argsort(-totals, kind="stable")[:q])


def place(policy: str, lengths: ArrayLike, history: ArrayLike, replicas: int) -> NDArray[np.int64]:
    """The replica of every response, [N, n].

    Args:
        policy: one of the forms above.
        lengths: [N, n] tokens; only an oracle looks at them.
        history: [N, n] another draw of the same prompts.

    Raises:
        UserError: an unknown policy or setting, or pools that ``replicas`` replicas and N groups do not allow.
    """
    name, _, rest = policy.partition(":")
    if name in ("tailsieve", "paper", "inner_loop"):
        raise UserError(f"policy {name!r} needs steps to learn from; a replay has one load: write fixed:q=2,m=1.")
    if name not in SETTINGS:
        raise UserError(f"policy {name!r} is unknown; choose among {', '.join(SETTINGS)}.")
    try:
        return _build(policy, name, _settings(policy, name, rest), history, replicas).place(lengths, replicas)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"policy {policy!r} does not fit {replicas} replicas: {error}.") from None


def _settings(policy: str, name: str, text: str) -> dict[str, str]:
    found = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in SETTINGS[name]:
            known = ", ".join(SETTINGS[name]) or "none"
            raise UserError(f"policy {policy!r}: write settings as key=value, separated by commas; {name} has {known}.")
        if key in ("q", "m") and not value.isdecimal():
            raise UserError(f"policy {policy!r}: {key} must be a whole number, got {value!r}.")
        if key.endswith("_placement") and value not in ("group", "request"):
            raise UserError(f"policy {policy!r}: {key} must be group or request, got {value!r}.")
        found[key] = value
    return found


def _build(policy: str, name: str, settings: dict[str, str], history: ArrayLike, replicas: int) -> Placement:
    groups = len(np.asarray(history))
    m = int(settings.get("m", max(1, replicas // 2)))
    if name == "streamrl_oracle":
        return PLACEMENTS[name](m)
    if name != "fixed":
        make: Callable[..., Placement] = PLACEMENTS[name]
        return make()
    q = int(settings.get("q", max(1, groups // 8)))
    if q > groups:
        raise UserError(f"policy {policy!r} isolates {q} groups, and there are {groups}.")
    tail, bulk = (settings.get(key, "request") for key in ("tail_placement", "bulk_placement"))
    return TailSieve(longest_groups(history, q), m if q else 0, tail, bulk)  # type: ignore[arg-type]
