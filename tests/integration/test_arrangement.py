"""Plans by history through the real runner, router, ledger and stream; placed groups, failures, wrong placements."""

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tailsieve_verl.core.arrangement import Arrangement
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.integration.guarded import GuardedPolicy

from .test_rollout import make
from .world import Behaviour, World, run_step

N, R, SESSIONS = 5, 4, 2


class Placer(FixedPolicy):
    """Places some of the fresh groups at random, every response on a random replica of its pool."""

    def __init__(self, q, m, seed=0, spoil=None):
        super().__init__(PolicyContext(N, R), q, m)
        self.rng, self.spoil, self.asked = random.Random(seed), spoil, []

    def plan(self, **facts):
        return replace(super().plan(**facts), by_history=True)

    def arrange(self, plan, keys, routes, sessions):
        self.asked.append((keys, routes))
        fresh = [i for i, route in enumerate(routes) if route == "fresh"]
        needed = len(fresh) - plan.counts.left_over
        placed = self.rng.sample(fresh, self.rng.randint(0, needed)) if plan.m else []
        fewer = len(placed)
        counts = replace(
            plan.counts, fresh=plan.counts.fresh - fewer, fresh_needed=plan.counts.fresh_needed - fewer, placed=fewer
        )
        where = []
        for i, route in enumerate(routes):
            pool = plan.tail_replicas if route == "tail" or i in placed else plan.bulk_replicas
            where.append([self.rng.choice(pool) for _ in range(sessions[i])])
        found = Arrangement(replace(plan, counts=counts), tuple(placed), np.array(where))
        return self.spoil(found) if self.spoil else found


@pytest.mark.parametrize("seed", range(30))
def test_random_placements_with_failures_train_every_prompt_once(seed):
    rng = random.Random(seed)
    failures = {i: rng.choice([0, 0, 0, 0, 0, 1, 2]) if seed % 2 else 0 for i in range(1000)}
    world = World(replicas=R, n=SESSIONS, behaviour=Behaviour(failures=failures), seed=seed)
    q = rng.randint(0, 2)
    policy = GuardedPolicy(Placer(q, rng.randint(1, R - 1) if q else 0, seed))
    runner, ledger, stream = make(world, N, arrange=policy.arrange)
    trained, placed = Counter(), 0
    for number in range(1, 9):
        observation = run_step(runner, ledger, policy, number, last=number == 8)
        plan = observation.plan
        for group in observation.groups:
            pool = plan.tail_replicas if group.route in ("tail", "placed") else plan.bulk_replicas
            assert {r for r in group.replicas if r >= 0} <= set(pool)
            assert group.status != "cut" or group.route == "fresh"
        placed += sum(group.route == "placed" for group in observation.groups)
        trained.update(g.prompt for g in observation.groups if g.status == "trained")
        assert set(stream.rows) == set(ledger.waiting)
    assert policy.failure is None
    assert sum(trained.values()) == N * 8
    assert max(trained.values()) == 1
    assert placed or not q or seed % 2  # failures may use up the groups that would be left over


def test_a_placement_sees_the_prompts_in_launch_order():
    world = World(replicas=R, n=SESSIONS)
    placer = Placer(1, 1)
    policy = GuardedPolicy(placer)
    runner, ledger, _ = make(world, N, arrange=policy.arrange)
    for number in (1, 2):
        run_step(runner, ledger, policy, number)
    keys, routes = placer.asked[1]
    assert routes == ["tail", *["fresh"] * N]
    assert len(set(keys)) == N + 1
    assert all(key.startswith("test/train/") for key in keys)


def elsewhere(found):
    return replace(found, replicas=np.zeros_like(found.replicas) + R - 1)


def more(found):
    return replace(found, plan=replace(found.plan, q=found.plan.q + 1))


def short(found):
    return replace(found, replicas=found.replicas[:, :1])


def broken(found):
    raise ZeroDivisionError("no curve")


@pytest.mark.parametrize("spoil", [elsewhere, more, short, broken])
def test_a_placement_that_makes_no_sense_leaves_the_run_uniform(spoil, caplog):
    world = World(replicas=R, n=SESSIONS)
    policy = GuardedPolicy(Placer(1, 1, spoil=spoil))
    runner, ledger, _ = make(world, N, arrange=policy.arrange)
    for number in range(1, 5):
        observation = run_step(runner, ledger, policy, number, last=number == 4)
        assert sum(g.status == "trained" for g in observation.groups) == N
    assert "the run goes on under uniform dispatch" in caplog.text
    assert not policy.plan(step=5, carried=0).by_history
    assert ledger.trained == 4 * N
