"""Whole rollout steps through the real runner, router, ledger and stream; only agent loops and engines are fakes."""

import random
from collections import Counter

import pytest

from tailsieve_verl.core.custom import PoolPlacement, TailSelector
from tailsieve_verl.core.ledger import Ledger
from tailsieve_verl.core.policy import FixedPolicy, PolicyContext
from tailsieve_verl.integration.deadline import ReplicaDiedError, RolloutStalledError
from tailsieve_verl.integration.guarded import GuardedPlacement, GuardedSelector
from tailsieve_verl.integration.prompts import PromptStream
from tailsieve_verl.integration.rollout import RolloutRunner

from .world import Behaviour, World, rows, run_step


def make(world, n_groups=4, prompts=1000, **settings):
    ledger, stream = Ledger(), PromptStream(rows(prompts), n_groups)
    defaults = {"stall_deadline_s": 60.0, "health_interval_s": 1.0, "sync_deadline_s": 5.0}
    runner = RolloutRunner(
        router=world, replicas=world, agents=world, ledger=ledger, stream=stream, sessions=world.n,
        **(defaults | settings),
    )  # fmt: skip
    return runner, ledger, stream


def test_long_prompts_are_cut_carried_and_run_on_the_tail_replicas():
    world = World(replicas=3, behaviour=Behaviour(seconds={3: 50.0, 1: 40.0}))
    runner, ledger, _ = make(world)
    policy = FixedPolicy(PolicyContext(4, 3), 2, 1)
    first = run_step(runner, ledger, policy, 1)
    assert {g.prompt for g in first.groups if g.status == "cut"} == {1, 3} == set(ledger.carried)
    assert ("abort", [0, 1, 2]) in world.log
    assert ("resume", [0, 1, 2]) in world.log
    second = run_step(runner, ledger, policy, 2)
    tail = {g.prompt: g for g in second.groups if g.route == "tail"}
    assert set(tail) == {1, 3}
    assert {r for g in tail.values() for r in g.replicas} == {2}
    assert {r for g in second.groups if g.route == "fresh" for r in g.replicas} == {0, 1}
    assert all(g.status == "trained" for g in tail.values())
    assert ("abort", [0, 1]) in world.log  # never the tail pool
    cut = [g for g in first.groups if g.status == "cut"]
    assert all(g.tokens == (3, 3) and g.complete == (True, False) for g in cut)


@pytest.mark.parametrize("seed", range(60))
def test_random_runs_with_failures_train_every_prompt_once(seed):
    rng = random.Random(seed)
    failures = {i: rng.choice([0, 0, 0, 0, 1, 2]) for i in range(1000)}
    world = World(replicas=4, behaviour=Behaviour(failures=failures), seed=seed)
    n_groups, steps = rng.randint(3, 8), 8
    runner, ledger, stream = make(world, n_groups)
    trained = Counter()
    for number in range(1, steps + 1):
        q = rng.randint(0, n_groups - 1)
        policy = FixedPolicy(PolicyContext(n_groups, 4), q, rng.randint(1, 3) if q else 0)
        observation = run_step(runner, ledger, policy, number, last=number == steps)
        trained.update(g.prompt for g in observation.groups if g.status == "trained")
        assert set(stream.rows) == set(ledger.waiting)
    assert sum(trained.values()) == n_groups * steps
    assert max(trained.values()) == 1


def test_a_prompt_that_always_fails_is_dropped_and_never_a_permanent_tail_candidate(caplog):
    world = World(behaviour=Behaviour(failures={2: 99}))
    runner, ledger, _ = make(world)
    policy = FixedPolicy(PolicyContext(4, 2), 1, 1)
    carried = 0
    for number in range(1, 8):
        run_step(runner, ledger, policy, number)
        carried += 2 in ledger.carried
    assert ledger.dropped == 1
    assert carried <= 1
    assert "dropped after too many failures" in caplog.text


def test_when_everything_fails_the_run_ends_with_the_error():
    world = World(behaviour=Behaviour(failures=dict.fromkeys(range(1000), 99)))
    runner, ledger, _ = make(world)
    with pytest.raises(RuntimeError, match=r"failed in step 1.*ValueError: scripted"):
        run_step(runner, ledger, FixedPolicy(PolicyContext(4, 2), 1, 1), 1)


class Silent(World):
    """Agent loops that never finish."""

    def wait_verdict(self, timeout_s):
        return self.loop.run_until_complete(self.router.wait_verdict(0.01))


def test_silence_ends_at_the_deadline_and_says_what_is_missing():
    runner, ledger, _ = make(Silent(), stall_deadline_s=0.05)
    with pytest.raises(RolloutStalledError, match=r"waited \d+ s .* for 4 more fresh groups to be generated"):
        run_step(runner, ledger, FixedPolicy(PolicyContext(4, 2), 1, 1), 1)


def test_a_dead_replica_found_by_the_health_check_ends_the_run():
    world = Silent()
    world.dead = ReplicaDiedError("rollout replica 1 died: ActorDiedError")
    runner, ledger, _ = make(world)
    with pytest.raises(ReplicaDiedError, match="replica 1"):
        run_step(runner, ledger, FixedPolicy(PolicyContext(4, 2), 1, 1), 1)


def test_a_dead_replica_reported_by_a_client_ends_the_run():
    world = Silent()
    runner, _ledger, _ = make(world)
    policy = FixedPolicy(PolicyContext(4, 2), 1, 1)
    step = runner.open(policy.plan(step=1))
    uid = next(iter(step.uids))
    world.router.release_server("server0", uid, 0, 0, "EngineDeadError: gone")
    with pytest.raises(ReplicaDiedError, match=r"server0 died in step 1: EngineDeadError"):
        runner.wait(step)


def test_uniform_cuts_nothing():
    world = World()
    runner, ledger, _ = make(world)
    observation = run_step(runner, ledger, FixedPolicy(PolicyContext(4, 2), 0, 0), 1)
    assert {g.status for g in observation.groups} == {"trained"}
    assert not any(entry[0] in ("abort", "resume") for entry in world.log)


class FailsAtTheLastMoment(World):
    """A reward fails between the verdict and the cut."""

    done = False

    def cut(self):
        if not self.done:
            self.done = True
            uid = next(u for u, g in self.router._tracker.groups.items() if g.generated_s is not None)
            self.router.group_stored(uid, "ValueError: judge")
        return super().cut()


def test_a_failure_between_the_verdict_and_the_cut_is_made_good():
    runner, ledger, _ = make(FailsAtTheLastMoment())
    observation = run_step(runner, ledger, FixedPolicy(PolicyContext(4, 2), 1, 1), 1)
    assert observation.failed == 1
    assert sum(g.status == "trained" for g in observation.groups) == 4


class Leaky(World):
    """A client that was cancelled while it acquired: the router never hears of a release."""

    def submit(self, pairs):
        super().submit(pairs)
        self.router.acquire_server("lost", pairs[0][0], 0)


def test_a_request_that_is_never_released_does_not_end_the_run(monkeypatch, caplog):
    monkeypatch.setattr("tailsieve_verl.integration.rollout.DRAIN_S", 0.01)
    runner, ledger, _ = make(Leaky())
    for number in (1, 2, 3):
        run_step(runner, ledger, FixedPolicy(PolicyContext(4, 2), 1, 1), number)
    assert "were never released" in caplog.text


def test_engines_that_go_on_after_the_abort_end_the_run():
    world = World()
    world.unfinished = lambda replicas: 3
    runner, ledger, _ = make(world)
    with pytest.raises(RolloutStalledError, match="3 requests are still unfinished on the bulk replicas"):
        run_step(runner, ledger, FixedPolicy(PolicyContext(4, 2), 1, 1), 1)


def test_a_long_wait_is_said_before_its_deadline(monkeypatch, caplog):
    monkeypatch.setattr("tailsieve_verl.integration.rollout.NOTE_EVERY_S", 0.02)
    runner, ledger, _ = make(Silent(), stall_deadline_s=0.2)
    with pytest.raises(RolloutStalledError):
        run_step(runner, ledger, FixedPolicy(PolicyContext(4, 2), 1, 1), 1)
    assert "step 1 has waited" in caplog.text


class Together(PoolPlacement):
    """Each group whole, the first ones on the last replica of the pool."""

    def slots(self, groups, replicas):
        self.seen = [g.key for g in groups]
        return [[(replicas - 1 - i) % replicas] * g.sessions for i, g in enumerate(groups)]


def test_placements_of_one_s_own_deal_inside_the_pools():
    world = World(replicas=5, behaviour=Behaviour(seconds={3: 50.0, 1: 40.0}))
    tail, bulk = Together(), Together()
    placements = {"tail": GuardedPlacement(tail, "tail", 5.0), "bulk": GuardedPlacement(bulk, "bulk", 5.0)}
    runner, ledger, _ = make(world, placements=placements)
    policy = FixedPolicy(PolicyContext(4, 5), 2, 2)
    run_step(runner, ledger, policy, 1)
    observation = run_step(runner, ledger, policy, 2)
    assert len(tail.seen) == 2
    assert [g.replicas for g in observation.groups if g.route == "tail"] == [(4, 4), (3, 3)]
    assert [g.replicas for g in observation.groups if g.route != "tail"] == [(2, 2), (1, 1), (0, 0), (2, 2)]


def test_a_placement_of_one_pool_leaves_the_other_alone():
    world = World(replicas=4)
    runner, ledger, _ = make(world, placements={"tail": GuardedPlacement(Together(), "tail", 5.0)})
    observation = run_step(runner, ledger, FixedPolicy(PolicyContext(4, 4), 0, 0), 1)
    assert [g.replicas for g in observation.groups] == [(0, 1), (2, 3), (0, 1), (2, 3)]


class Youngest(TailSelector):
    def order(self, cut):
        return sorted(range(len(cut)), key=lambda i: -cut[i].prompt)


def test_a_selector_of_one_s_own_orders_the_carried_groups():
    for selector, carried in ((None, (1, 3)), (GuardedSelector(Youngest()), (3, 1))):
        world = World(replicas=3, behaviour=Behaviour(seconds={3: 50.0, 1: 40.0}))
        runner, ledger, _ = make(world, selector=selector)
        run_step(runner, ledger, FixedPolicy(PolicyContext(4, 3), 2, 1), 1)
        assert ledger.carried == carried


def test_what_happened_in_a_step_comes_in_order_of_time():
    world = World(replicas=3, behaviour=Behaviour(seconds={3: 50.0, 1: 40.0}))
    runner, ledger, _ = make(world)
    policy = FixedPolicy(PolicyContext(4, 3), 2, 1)
    for number in (1, 2):
        step = runner.open(policy.plan(step=number, carried=len(ledger.carried)))
        assert [launch.prompt for launch in step.launches] == list(step.uids.values())
        runner.wait(step)
        events = runner.events(step)
        observation = runner.observation(step)
        runner.close(step, observation)
        cut = [g.prompt for g in observation.groups if g.status == "cut"]
        assert ("on_cut", tuple(cut), observation.cut_s) in events
        assert ("on_pool_done", "bulk", observation.t_bulk_s) in events
        assert [e for e in events if e[1] == "tail"] == (
            [("on_pool_done", "tail", observation.t_tail_s)] if number == 2 else []
        )
        assert [e[-1] for e in events] == sorted(e[-1] for e in events)


def test_without_a_straggler_nothing_is_told_of_a_cut():
    runner, ledger, _ = make(World())
    step = runner.open(FixedPolicy(PolicyContext(4, 2), 0, 0).plan(step=1))
    runner.wait(step)
    assert [event[0] for event in runner.events(step)] == ["on_pool_done"]
    runner.close(step, runner.observation(step))
    assert not ledger.carried
