import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailsieve_verl.core.controller import Controller, ControllerConfig
from tailsieve_verl.core.plan import GroupRecord, StepObservation

from .closed_loop import DENSE, LOADS, Load, N, Rollout, run


def drive(controller, steps, load=LOADS["real"], curve=DENSE, noise=0.0, spoil=None):
    """Steps of a closed loop: (q, m) before, observation, decision; ``spoil`` may alter an observation."""
    rollout = Rollout(load, curve, noise)
    for step in range(1, steps + 1):
        plan = controller.plan(step=step, carried=len(rollout.carried))
        observation = rollout.step(plan)
        before = (controller.q, controller.m)
        yield before, observation, controller.observe(spoil(observation) if spoil else observation)


STARTS = st.tuples(st.integers(1, 40), st.integers(1, 3)) | st.just((0, 0))
CONFIGS = st.fixed_dictionaries(
    {
        "reoptimise_q": st.booleans(),
        "search_far": st.booleans(),
        "predicted_test": st.booleans(),
        "guard": st.booleans(),
        "reenter": st.booleans(),
        "switch_limit": st.sampled_from([1, 3, 10]),
    }
)
WORK = st.builds(
    Load,
    ratio=st.floats(1.2, 8.0),
    prompt=st.floats(0.05, 1.2),
    response=st.floats(0.05, 1.0),
    runaway=st.sampled_from([0.0, 0.002]),
    drift=st.sampled_from([-0.02, 0.0, 0.02]),
    seed=st.integers(0, 1000),
)


@given(start=STARTS, config=CONFIGS, load=WORK, noise=st.sampled_from([0.0, 0.2]))
@settings(max_examples=6, deadline=None)
def test_invariants(start, config, load, noise):
    controller = Controller(ControllerConfig(*start, **config), N, 4)
    switches, quiet = [], 0
    for (q, m), observation, decision in drive(controller, 25, load, noise=noise):
        counts = observation.plan.counts
        assert (decision.q, decision.m) == (controller.q, controller.m)
        assert (decision.q, decision.m) == (0, 0) or 1 <= decision.q <= max(N // 2, start[0])
        assert (decision.m == 0) == (decision.q == 0)
        assert decision.m <= 3
        assert decision.switched == ((q, m) != (decision.q, decision.m))
        assert decision.reason
        if decision.switched:
            assert 0 in (m, decision.m) or abs(decision.m - m) <= 1  # one replica, except to and from uniform
            if not decision.reason.startswith("guard"):
                assert decision.settled
                assert (counts.tail, counts.residual, counts.fresh) == (q, 0, N)
                assert quiet >= (1 if switches else 0)
            assert config["guard"] or not decision.reason.startswith("guard")
            switches.append(decision.step)
        quiet = 0 if decision.switched else quiet + 1
        json.dumps(decision.extra)
    assert len(switches) <= config["switch_limit"]


@pytest.mark.parametrize("config", [{}, {"reoptimise_q": False, "predicted_test": False, "guard": False}])
def test_a_resume_continues_with_the_same_decisions(config):
    whole = list(drive(Controller(ControllerConfig(8, 2, **config), N, 4), 25, noise=0.1))
    rollout, controller = Rollout(LOADS["real"], DENSE, 0.1), Controller(ControllerConfig(8, 2, **config), N, 4)
    for step, (_, _, expected) in enumerate(whole, start=1):
        fresh = Controller(ControllerConfig(3, 1, **config), N, 4)
        fresh.load_state_dict(json.loads(json.dumps(controller.state_dict())))
        controller = fresh
        observation = rollout.step(controller.plan(step=step, carried=len(rollout.carried)))
        assert controller.observe(observation) == expected


def large_observation(controller, step, n_groups=100_000, n=8, seed=0):
    """A uniform step of very many groups; times by a flat rule, which is enough for size."""
    rng = np.random.default_rng(seed)
    plan = controller.plan(step=step, carried=0)
    tokens = rng.integers(1, 16_000, (plan.counts.fresh, n)).tolist()
    groups = tuple(
        GroupRecord(
            prompt=g,
            key=f"deepscaler/train/{g}",
            route="fresh",
            status="trained" if g < plan.counts.fresh_needed else "cut",
            replicas=tuple((g * n + s) % controller.context.replicas for s in range(n)),
            started_s=(0.0,) * n,
            finished_s=tuple(0.02 * t for t in tokens[g]),
            tokens=tuple(tokens[g]),
            complete=(g < plan.counts.fresh_needed,) * n,
            generated_s=1.0,
        )
        for g in range(plan.counts.fresh)
    )
    return StepObservation(plan, None, 320.0, 320.0, 0.0, groups)


def test_the_state_stays_below_a_megabyte_at_100_000_groups():
    controller = Controller(ControllerConfig(12_500, 512), 100_000, 1024)
    for step in (1, 2):
        controller.observe(large_observation(controller, step, seed=step))
        controller.q, controller.m = 12_500, 512
    text = json.dumps(controller.state_dict())
    assert len(text) < 1_000_000
    Controller(ControllerConfig(), 100_000, 1024).load_state_dict(json.loads(text))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, None])
@pytest.mark.parametrize("pool", ["t_tail_s", "t_bulk_s"])
def test_senseless_times_are_ignored_and_counted(bad, pool):
    controller = Controller(ControllerConfig(8, 4, guard=False), N, 8)
    list(drive(controller, 3))
    ignored = controller.ignored
    curve = controller.evidence.tau.curve
    spoiled = drive(controller, 4, spoil=lambda o: replace(o, **{pool: bad}) if o.plan.counts.tail else o)
    for (q, m), observation, decision in spoiled:
        if observation.plan.counts.tail:
            assert not decision.settled
            assert not decision.switched
            assert (q, m) == (controller.q, controller.m)
            assert "makes no sense" in decision.reason
    assert controller.ignored > ignored
    assert controller.evidence.tau.curve is not None
    assert curve is not None


def test_a_step_with_failures_is_counted_and_changes_nothing():
    controller = Controller(ControllerConfig(8, 2), N, 4)
    list(drive(controller, 3))
    state = json.dumps({k: v for k, v in controller.state_dict().items() if k in ("evidence", "loop")})
    rollout = Rollout(LOADS["real"], DENSE)
    decision = controller.observe(replace(rollout.step(controller.plan(step=4)), failed=2))
    assert "2 groups failed" in decision.reason
    after = {k: v for k, v in controller.state_dict().items() if k in ("evidence", "loop")}
    assert json.dumps(after) == state


def test_without_records_the_inner_loop_works_alone():
    controller = Controller(ControllerConfig(1, 2), N, 4)
    carried, qs = 0, []
    for step in range(1, 31):
        plan = controller.plan(step=step, carried=carried)
        carried, q = plan.counts.left_over, plan.counts.tail
        decision = controller.observe(StepObservation(plan, 1.0 * q or None, 0.2 * (N - q), None, 0.0, ()))
        qs.append(decision.q)
        assert decision.m == 2
        assert decision.predicted_s is None
    assert abs(qs[-1] - N / 6) <= 1


def test_a_curve_that_is_given_is_used_from_the_first_step():
    seen = list(drive(Controller(ControllerConfig(8, 2), N, 4, curve=DENSE), 6))
    assert seen[0][2].confidence == 1.0
    assert all(decision.predicted_uniform_s for *_, decision in seen)


def test_every_intermediate_is_reported():
    seen = list(drive(Controller(ControllerConfig(8, 4, guard=False), N, 8), 30))
    decisions = [d for *_, d in seen]
    assert all(d.candidates for d in decisions if d.settled and not d.switched)
    settled = [d for d in decisions if d.candidates and d.m]
    assert settled
    for decision in settled:
        assert decision.q_star is not None
        assert decision.rate_tail > 0
        assert decision.velocity is not None
        assert (0, 0) in {(c.q, c.m) for c in decision.candidates}
        assert decision.lower_bound_s > 0
        assert {"predicted_uniform_s", "lower_bound_s", "confidence"} <= set(decision.extra)
    assert any(d.m_tail is not None and d.m_bulk is not None for d in settled)
    errors = [abs(d.prediction_error) for d in decisions[10:] if d.prediction_error is not None]
    assert np.mean(errors) < 0.15
    assert all(d.lower_bound_s <= o.generation_s * 1.02 for _, o, d in seen[5:])


def test_two_replicas_and_tiny_batches():
    for n_groups, replicas in ((2, 2), (3, 2), (2, 8)):
        controller, carried = Controller(ControllerConfig(1, 1), n_groups, replicas), 0
        for step in range(1, 8):
            plan = controller.plan(step=step, carried=carried)
            carried = plan.counts.left_over
            groups = tuple(
                GroupRecord(
                    prompt=10 * step + g,
                    key=f"{10 * step + g}",
                    route="fresh",
                    status="trained",
                    replicas=(g % replicas,),
                    started_s=(0.0,),
                    finished_s=(1.0 + g,),
                    tokens=(100 * (g + 1),),
                    complete=(True,),
                    generated_s=1.0,
                )
                for g in range(plan.counts.fresh)
            )
            decision = controller.observe(
                StepObservation(plan, 2.0 if plan.counts.tail else None, 3.0, 3.0, 0.0, groups)
            )
            assert decision.q < n_groups
            assert decision.m < replicas
    alone = Controller(ControllerConfig(), 64, 1)
    decision = alone.observe(StepObservation(alone.plan(), None, 3.0, 3.0, 0.0, ()))
    assert (decision.q, decision.m) == (0, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"q": 64, "m": 1}, "q=64 must be between 1 and 63"),
        ({"q": 4, "m": 4}, "m=4 must be between 1 and 3"),
        ({"q": 4, "m": 0}, "m=0 must be"),
        ({"inner_gain": -0.1}, "inner_gain must be a finite number of at least 0, got -0.1"),
        ({"guard_excess": math.nan}, "guard_excess must be a finite number"),
        ({"switch_limit": 0}, "switch_limit must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        Controller(ControllerConfig(**arguments), N, 4)


def test_the_letter_of_the_paper_sticks_at_one_group():
    """With constant rates as the only prediction the inner loop leaves q = 1 only if bulk takes twice as long."""
    letter = ControllerConfig(1, 2, reoptimise_q=False, predicted_test=False, guard=False, reenter=False)
    qs = {d.q for *_, d in drive(Controller(letter, N, 4), 20)}
    ours = {d.q for *_, d in drive(Controller(ControllerConfig(1, 2), N, 4), 20)}
    assert qs <= {0, 1}
    assert max(ours) > 1 or 0 in ours


def test_log_lines_say_why():
    decisions = run(Controller(ControllerConfig(1, 7), N, 8), LOADS["real"], steps=12).decisions
    moves = [d.reason for d in decisions if d.switched]
    assert moves
    assert all(any(word in reason for word in ("guard", "->", "uniform")) for reason in moves)
