"""Kill a real run after a checkpoint, resume it with ``resume_mode=auto``: the same prompts are trained, once each.

The default test kills once. ``make test-resume`` kills after every step (``TAILSIEVE_KILL_EVERY_STEP=1``).
"""

import itertools
import os
from collections import Counter

import pytest

from tailsieve_verl.config.schema import build_policy, parse
from tailsieve_verl.records.read import observation_of, read_steps

from .harness import N, Run, write_data

pytestmark = pytest.mark.end_to_end

STEPS = 6
KILLS = range(1, STEPS) if os.environ.get("TAILSIEVE_KILL_EVERY_STEP") else [3]


@pytest.mark.timeout(len(KILLS) * 400 + 400)
def test_kill_and_resume(tmp_path):
    # 20 prompts: 2 batches an epoch and 4 prompts dropped, so that epochs end at steps 2 and 4, with a carried tail
    data = write_data(tmp_path / "data", prompts=20, tool_every=1000)
    options = ["+tailsieve=default", "trainer.v1.tailsieve.q=2", "trainer.save_freq=1"]
    options.append("trainer.v1.tailsieve.callbacks=[{_target_:tests.end_to_end.run_callbacks.Counts}]")
    for kill_after in KILLS:
        run = Run(tmp_path / "out", data, *options, steps=STEPS)
        try:
            run.wait_for(lambda run=run, k=kill_after: run.checkpoint() >= k, f"checkpoint {kill_after}")
        finally:
            run.kill()
    run = Run(tmp_path / "out", data, *options, steps=STEPS)
    assert run.wait() == 0, run.log[-5000:]

    assert (run.out / "count").read_text() == str(STEPS)  # a callback's own state
    assert "the policy starts afresh" not in run.log
    assert "the policy could not" not in run.log
    steps = read_steps(run.out)
    assert [s["step"] for s in steps] == list(range(1, STEPS + 1))
    trained = Counter(g["prompt"] for s in steps for g in s["groups"] if g["status"] == "trained")
    assert trained == Counter(range(N * STEPS))
    # By identity: what an uninterrupted run trains is fixed by the data and the seed, whoever is cut.
    keys = Counter(g["key"] for s in steps for g in s["groups"] if g["status"] == "trained")
    assert keys == uninterrupted_keys(data)
    assert any(s["plan"]["counts"]["tail"] for s in steps)
    for before, after in itertools.pairwise(steps):
        cut = {g["prompt"] for g in before["groups"] if g["status"] == "cut"}
        assert cut == {g["prompt"] for g in after["groups"] if g["route"] in ("tail", "residual")}
    for step in steps:
        assert all(f["min_version"] == f["max_version"] == step["step"] - 1 for f in step["batch"].values())
    # One controller that is shown all steps, never interrupted, decides what the killed and resumed run decided.
    policy = build_policy(parse({"q": 2}), N, 2)
    for step in steps:
        observation = observation_of(step)
        plan = policy.plan(
            step=step["step"], carried=len(by_route(step, "tail", "residual")), last=step["step"] == STEPS
        )
        assert plan == observation.plan
        decision = policy.observe(observation)
        for name in ("q", "m", "settled", "switched", "reason", "predicted_s", "predicted_uniform_s", "confidence"):
            assert getattr(decision, name) == step["decision"][name], (step["step"], name)


def by_route(step, *routes):
    return [g for g in step["groups"] if g["route"] in routes]


def uninterrupted_keys(data):
    """Identities of the first N * STEPS prompts of verl's own dataloader over this data."""
    import pandas as pd
    import torch
    from torchdata.stateful_dataloader.sampler import RandomSampler

    frame = pd.read_parquet(data / "train.parquet")
    generator = torch.Generator()
    generator.manual_seed(0)
    sampler = RandomSampler(range(len(frame)), generator=generator)
    per_epoch = len(frame) // N * N
    order = []
    while len(order) < N * STEPS:
        order += list(sampler)[:per_epoch]
    infos = [frame["extra_info"][i] for i in order[: N * STEPS]]
    return Counter(f"tailsieve/counting/{info['split']}/{info['index']}" for info in infos)
