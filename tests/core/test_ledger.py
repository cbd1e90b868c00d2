"""The accounting through whole random runs: ledger, step tracker and plan together, as the shell drives them."""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.ledger import Ledger, LedgerError
from tailsieve_verl.core.policy import PolicyContext, make_plan
from tailsieve_verl.core.step import StepTracker

REPLICAS = 4


def m_of(plan):
    """Tail replicas: where there is a split, groups may be placed in its tail pool."""
    return plan.m or plan.q


class Run:
    """A miniature shell: launches, finishes groups in random order, fails some, cuts, and closes."""

    def __init__(self, n_groups, stream, rng, fail_share=0.0, placing=False):
        self.placing = placing
        self.n_groups, self.stream, self.rng, self.fail_share = n_groups, stream, rng, fail_share
        self.ledger = Ledger(max_retries=2)
        self.trained, self.dropped = [], []
        self.drawn = 0
        self.identity = 0

    def draw(self, count):
        serials = list(range(self.drawn, self.drawn + count))
        self.drawn += count
        return serials

    @property
    def left(self):
        return None if self.stream is None else self.stream - self.drawn + len(self.ledger.waiting)

    def place(self, plan, drawn):
        """Some of the fresh groups that the batch needs, at random."""
        preview = self.ledger.preview(plan, drawn)
        assert preview == self.ledger.preview(plan, drawn)  # it changes nothing
        fresh = [launch.prompt for launch in preview if launch.route == "fresh"]
        needed = len(fresh) - plan.counts.left_over
        count = self.rng.randint(0, max(0, needed)) if self.placing and m_of(plan) else 0
        counts = replace(
            plan.counts,
            fresh=plan.counts.fresh - count,
            fresh_needed=plan.counts.fresh_needed - count,
            placed=count,
        )
        assert (counts.batch, counts.left_over) == (plan.counts.batch, plan.counts.left_over)
        return replace(plan, counts=counts), set(self.rng.sample(fresh, count))

    def step(self, number, q, m, last=False):
        ledger, carried = self.ledger, len(self.ledger.carried)
        stream_left = None if self.stream is None else self.stream - self.drawn + len(ledger.waiting) - carried
        plan = make_plan(
            PolicyContext(self.n_groups, REPLICAS), q, m, step=number, carried=carried, last=last,
            stream_left=stream_left, reason="test",
        )  # fmt: skip
        if stream_left is None:
            assert carried + plan.counts.fresh == self.n_groups + plan.counts.left_over
        prompts = {}

        def name(launches):
            named = []
            for launch in launches:
                uid = f"u{self.identity}"
                self.identity += 1
                prompts[uid] = launch.prompt
                named.append((uid, launch.route))
            return named

        carried_before = ledger.carried
        drawn = self.draw(ledger.to_draw(plan))
        plan, placed = self.place(plan, drawn)
        launches = ledger.open(plan, drawn, placed)
        assert {x.prompt for x in launches if x.route == "placed"} == placed
        assert tuple(x.prompt for x in launches if x.route == "tail") == carried_before[: plan.counts.tail]
        tracker = StepTracker(plan.counts.batch, name(launches))
        stragglers, clock, failures = (), 0.0, 0
        while (verdict := tracker.verdict()).action != "done":
            clock += 1.0
            if verdict.action == "cut":
                stragglers = tracker.cut(clock)
            elif verdict.action == "launch":
                must = tracker.cut_s is not None
                extra, lacking = ledger.extra(verdict.launch, must_finish=must)
                extra = extra + ledger.draw_extra(self.draw(lacking), must_finish=must)
                tracker.add(name(extra))
            else:
                running = [g for g in tracker.groups.values() if not (g.cut or g.failed or g.stored)]
                group = self.rng.choice(running)
                # failures only while the stream can still replace what fails
                may_fail = self.stream is None and failures < self.n_groups
                if may_fail and self.rng.random() < self.fail_share:
                    failures += 1
                    assert tracker.fail(group.uid)
                    if not ledger.fail(prompts[group.uid]):
                        self.dropped.append(prompts[group.uid])
                elif group.generated_s is None:
                    tracker.generated(group.uid, clock)
                else:
                    tracker.stored(group.uid)
        batch = [prompts[g.uid] for g in tracker.selected()]
        assert len(batch) == plan.counts.batch
        assert all(g.stored for g in tracker.selected())
        tail = [g for g in tracker.groups.values() if g.route != "fresh"]
        assert not any(g.cut for g in tail)
        ledger.close(batch, [prompts[uid] for uid in stragglers])
        self.trained += batch
        return plan


@settings(max_examples=1000, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    n_groups=st.integers(2, 12),
    steps=st.integers(1, 12),
    fail_share=st.sampled_from([0.0, 0.0, 0.05, 0.3]),
    placing=st.booleans(),
    data=st.data(),
)
def test_every_prompt_is_trained_exactly_once(seed, n_groups, steps, fail_share, placing, data):
    run = Run(n_groups, None, random.Random(seed), fail_share, placing)
    for step in range(1, steps + 1):
        q = data.draw(st.integers(0, n_groups - 1), label="q")
        m = data.draw(st.integers(1, REPLICAS - 1), label="m") if q else 0
        run.step(step, q, m, last=step == steps)
        state = json.loads(json.dumps(run.ledger.state_dict()))
        restored = Ledger(max_retries=2)
        restored.load_state_dict(state)
        assert restored.state_dict() == run.ledger.state_dict()
        run.ledger = restored  # every step is a resume
    assert len(run.trained) == n_groups * steps
    assert max(Counter(run.trained).values()) == 1
    left = set(range(run.drawn)) - set(run.trained) - set(run.dropped)
    assert left == set(run.ledger.waiting)
    assert not run.ledger.carried
    if not fail_share:
        assert set(run.trained) == set(range(n_groups * steps))


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), n_groups=st.integers(2, 8), stream=st.integers(1, 40), q=st.integers(0, 7))
def test_a_stream_that_ends_is_trained_to_its_last_prompt(seed, n_groups, stream, q):
    run = Run(n_groups, stream, random.Random(seed))
    step = 0
    while run.left:
        step += 1
        run.step(step, min(q, n_groups - 1), 1 if q else 0)
    assert sorted(run.trained) == list(range(stream))


def test_a_prompt_that_was_cut_once_must_finish_the_next_time():
    run = Run(2, None, random.Random(0))
    run.step(1, 1, 1)
    (carried,) = run.ledger.carried
    plan = make_plan(
        PolicyContext(2, 2), 1, 1, step=2, carried=1, last=False, stream_left=None, reason="test"
    )  # fmt: skip
    run.ledger.open(plan, run.draw(run.ledger.to_draw(plan)))
    run.ledger.fail(carried)
    again, lacking = run.ledger.extra(1, must_finish=False)
    assert [(launch.prompt, launch.route) for launch in again] == [(carried, "residual")]
    assert lacking == 0


def opened(n_groups=2, q=1):
    ledger = Ledger()
    plan = make_plan(
        PolicyContext(n_groups, 2), q, 1, step=1, carried=0, last=False, stream_left=None, reason="test"
    )  # fmt: skip
    ledger.open(plan, list(range(ledger.to_draw(plan))))
    return ledger


@pytest.mark.parametrize(
    ("breach", "said"),
    [
        (lambda ledger: ledger.close([0, 0], [1]), "distinct"),
        (lambda ledger: ledger.close([0, 1], []), "unaccounted"),
        (lambda ledger: ledger.close([0, 7], [1]), "not in flight"),
        (lambda ledger: ledger.state_dict(), "still open|is open"),
        (lambda ledger: ledger.draw_extra([9], must_finish=False), "out of order"),
        (lambda ledger: Ledger().open(ledger._plan, [0, 1, 2], [1]), "plans 0 placed"),
    ],
)
def test_breaches_are_refused(breach, said):
    with pytest.raises(LedgerError, match=said):
        breach(opened())
