"""Requests from outside the policy: hold q or m, go uniform, veto a move. They act on the next step's split alone.

    observe(step)  policy.observe -> proposal, already under the standing pins
    request(...)   from callbacks, at any time during a step; refused with a ValueError if it makes no sense
    amend(...)     requests since -> the decision that is carried out
    plan()         the next step, for the split decided on

Invariants
    * A request changes (q, m) and nothing else: which groups run follows from the accounting, as after any decision.
    * The split is (0, 0) or 1 <= q < N, 1 <= m < R, whatever is asked for; a pool changes with the next plan only.
    * Pins last until their callback takes them back; a veto lasts for one decision.
    * Callbacks that contradict each other: the last one in the configured order wins, and the reason says over whom.
    * A policy with ``hold_to`` (the controller) is held at the pinned split and goes on from there. Any other is
      overruled: it sees steps of a split that is not its own, and a step in transition is one that it does not judge.
    * Same facts and requests in, same decisions out; the state is plain JSON data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tailsieve_verl.core.checks import as_count
from tailsieve_verl.core.plan import Decision, StepObservation, StepPlan
from tailsieve_verl.core.policy import Policy, PolicyContext, make_plan

Kind = Literal["pin", "unpin", "uniform", "veto"]


@dataclass(frozen=True)
class Request:
    """What a callback asks for.

    Attributes:
        by: name of the callback.
        kind: ``pin`` (q, m or both), ``uniform`` (a pin at (0, 0)), ``unpin``, ``veto`` (stay for one step).
        why: its reason, in words.
    """

    by: str
    kind: Kind
    why: str = ""
    q: int | None = None
    m: int | None = None


@dataclass(frozen=True)
class Pins:
    """What the split is held to: q, m, both (both 0: uniform), or nothing; and why."""

    q: int | None = None
    m: int | None = None
    words: str = ""

    @property
    def free(self) -> bool:
        return self.q is None and self.m is None

    def allows(self, q: int, m: int) -> bool:
        """Whether a split keeps to the pins."""
        return self.q in (None, q) and self.m in (None, m)

    def applied(self, q: int, m: int, context: PolicyContext) -> tuple[int, int]:
        """The split nearest to (q, m) that keeps to the pins.

        A pin of one of the two makes uniform routing a split; the other is then N // 8 or R // 2, as where the
        configuration names one only, or what a band of engines leaves of that.
        """
        if self.free or (self.q == 0 and self.m == 0):
            return (q, m) if self.free else (0, 0)
        held_q = max(1, q or context.n_groups // 8) if self.q is None else self.q
        held_m = max(1, m or min(context.replicas // 2, context.largest_m)) if self.m is None else self.m
        return held_q, held_m


FREE = Pins()


def checked(request: Request, context: PolicyContext) -> Request:
    """The request with its numbers as Python ints.

    Raises:
        ValueError: a pin of nothing, or of a split that N groups on R replicas cannot have.
    """
    if request.kind not in ("pin", "unpin", "uniform", "veto"):
        raise ValueError(f"there is no request {request.kind!r}; there are pin, unpin, uniform and veto")
    if request.kind != "pin":
        return request
    if request.q is None and request.m is None:
        raise ValueError("a pin needs q, m or both")
    if context.n_groups < 2 or context.replicas < 2:
        raise ValueError(f"{context.replicas} replicas and {context.n_groups} groups leave nothing to route")
    if request.q == 0 or request.m == 0:
        raise ValueError("a pin at 0 is uniform routing: ask for uniform")
    q = None if request.q is None else as_count(request.q, "q", 1, context.n_groups - 1)
    m = None if request.m is None else as_count(request.m, "m", 1, context.largest_m)
    return replace(request, q=q, m=m)


class SteeredPolicy:
    """A policy whose decisions callbacks may overrule (module docstring).

    Args:
        policy: decides.
        order: names of the callbacks, in the order that settles contradictions.
    """

    def __init__(self, policy: Policy, order: Sequence[str] = ()) -> None:
        self.context = policy.context
        self._policy = policy
        self._order = tuple(order)
        self._standing: dict[str, Request] = {}
        self._vetoes: dict[str, Request] = {}
        self._proposal: Decision | None = None
        self._running: tuple[int, int] | None = None  # split of the step in progress, None before the first decision
        self._next: tuple[int, int] | None = None  # split decided on
        self._reason = ""  # of a decision that was overruled

    # ---- requests -------------------------------------------------------------------------------------------------

    def request(self, request: Request) -> None:
        """Take in a request; it acts with the next :meth:`observe` or :meth:`amend`.

        Raises:
            ValueError: see :func:`checked`; or the callback is not one of ``order``.
        """
        if request.by not in self._order:
            raise ValueError(f"{request.by} is not one of the run's callbacks")
        request = checked(request, self.context)
        if request.kind == "veto":
            self._vetoes[request.by] = request
        elif request.kind == "unpin":
            self._standing.pop(request.by, None)
        else:
            self._standing[request.by] = request

    def release(self, by: str) -> bool:
        """Forget what a callback has asked for; returns whether it held a pin."""
        self._vetoes.pop(by, None)
        return self._standing.pop(by, None) is not None

    # ---- policy protocol ------------------------------------------------------------------------------------------

    def plan(self, *, step: int = 1, carried: int = 0, last: bool = False, stream_left: int | None = None) -> StepPlan:
        plan = self._policy.plan(step=step, carried=carried, last=last, stream_left=stream_left)
        if self._next is None and self._standing:  # asked for before the first step
            pins = self._merged()
            self._next = self._hold(pins, step - 1) or pins.applied(plan.q, plan.m, self.context)
            self._reason = pins.words
        if self._next is None or not self._reason:
            return plan
        return make_plan(
            self.context,
            *self._next,
            step=step,
            carried=carried,
            last=last,
            stream_left=stream_left,
            reason=self._reason,
        )

    def observe(self, observation: StepObservation) -> Decision:
        self._running = self._next
        self._hold(self._merged(), observation.plan.step - 1)
        proposal = self._policy.observe(observation)
        if not isinstance(proposal, Decision):
            raise TypeError(f"a {type(proposal).__name__} is no Decision")
        self._proposal = replace(proposal, q=as_count(proposal.q, "q", 0), m=as_count(proposal.m, "m", 0))
        if self._running is None:
            q = observation.plan.q
            self._running = (q, self._proposal.m or max(1, self.context.replicas // 2)) if q else (0, 0)
        return self._resolved()

    def amend(self, *, end: bool = True) -> Decision:
        """The decision of the last :meth:`observe`, with what has been asked for since.

        Args:
            end: it is final: vetoes end with it.
        """
        decision = self._resolved()
        if end:
            self._vetoes = {}
        return decision

    def state_dict(self) -> dict[str, Any]:
        """The policy's own state; :meth:`steering_state` is apart, because it belongs to the callbacks."""
        return self._policy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._policy.load_state_dict(state)

    def steering_state(self) -> dict[str, Any]:
        """Standing pins and the split decided on; plain JSON data."""
        standing = {name: asdict(request) for name, request in self._standing.items()}
        return {"standing": standing, "next": self._next and list(self._next), "reason": self._reason}

    def load_steering_state(self, state: dict[str, Any]) -> list[str]:
        """Restore after :meth:`load_state_dict`; returns the callbacks whose pins are gone because they are."""
        requests = [Request(**request) for request in state["standing"].values()]
        self._standing = {r.by: checked(r, self.context) for r in requests if r.by in self._order}
        self._next = (state["next"][0], state["next"][1]) if state["next"] else None
        self._reason = state["reason"]
        gone = [r.by for r in requests if r.by not in self._order]
        if gone and not self._standing:
            self._next, self._reason = None, ""  # nobody holds the split any more: it is the policy's again
        self._hold(self._merged(), 0)
        return gone

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _hold(self, pins: Pins, step: int) -> tuple[int, int] | None:
        """Tell a policy that can be held; returns the split that it is at, ``None`` for any other policy."""
        hold_to = getattr(self._policy, "hold_to", None)
        return None if hold_to is None else hold_to(pins, step)

    def _resolved(self) -> Decision:
        assert self._proposal is not None
        assert self._running is not None
        own = (self._proposal.q, self._proposal.m)
        pins = self._merged(own)
        self._next = self._hold(pins, self._proposal.step) or pins.applied(*own, self.context)
        self._reason = "" if pins.free else f"{pins.words}; the policy: {self._proposal.reason}"
        return replace(
            self._proposal,
            q=self._next[0],
            m=self._next[1],
            switched=self._next != self._running,
            reason=self._reason or self._proposal.reason,
        )

    def _merged(self, own: tuple[int, int] | None = None) -> Pins:
        """What all requests together hold the split to; a later callback wins.

        Args:
            own: the policy's split, for the vetoes; without it they are left out.
        """
        held: dict[str, tuple[int, str]] = {}  # q and m: value, and why in words
        owner: dict[str, str] = {}
        pins = FREE
        for request in self._ordered():
            if request.kind == "veto":
                target = None if own is None else pins.applied(*own, self.context)
                if target is None or target == self._running or self._running is None:
                    continue
                wanted: dict[str, int] = dict(zip("qm", self._running, strict=True))
                what = f"move to ({target[0]}, {target[1]}) vetoed"
            else:
                asked = {"q": 0, "m": 0} if request.kind == "uniform" else {"q": request.q, "m": request.m}
                wanted = {key: value for key, value in asked.items() if value is not None}
                what = "uniform pinned" if request.kind == "uniform" else "{} pinned"
            uniform = pins.q == 0 or wanted.get("q") == 0  # it is both or neither
            lost = [owner[key] for key in held if (uniform or key in wanted) and held[key][0] != wanted.get(key)]
            if uniform:
                held, owner = {}, {}
            over = f" over {' and '.join(names)}" if (names := sorted({*lost} - {request.by})) else ""
            why = f"{what} by {request.by}{f' ({request.why})' if request.why else ''}{over}"
            held.update({key: (value, why) for key, value in wanted.items()})
            owner.update(dict.fromkeys(wanted, request.by))
            values = {key: value for key, (value, _) in held.items()}
            pins = Pins(values.get("q"), values.get("m"), _words(held))
        return pins

    def _ordered(self) -> Iterable[Request]:
        for name in self._order:
            for requests in (self._standing, self._vetoes):
                if name in requests:
                    yield requests[name]


def _words(held: Mapping[str, tuple[int, str]]) -> str:
    """The reasons, each once, with the values that they still stand for."""
    reasons = {why: [f"{k}={v}" for k, (v, w) in held.items() if w == why] for _, why in held.values()}
    return ", ".join(why.replace("{}", ", ".join(values), 1) for why, values in reasons.items())
