"""Runs as they lie on disk: TailSieve's record, verl's metrics file, and rollout dumps, with times that are known."""

import json

from tailsieve_verl.core.plan import Decision, GroupRecord, LaunchCounts, StepObservation, StepPlan
from tailsieve_verl.records.lines import FILE, start_line, step_line, trained_line

N, SAMPLES, REPLICAS = 4, 2, 2


def tau(batch):
    """Seconds per token of every replica here."""
    return 0.01 + 0.001 * batch


def group(serial, replica, tokens, *, route="fresh", key=None):
    """A group whose responses start together; the caller has chosen tokens that make the times easy."""
    seconds = tuple(t * tau(SAMPLES) for t in tokens)
    return GroupRecord(
        prompt=serial,
        key=key or f"data/{serial}",
        route=route,
        status="trained",
        replicas=(replica,) * SAMPLES,
        started_s=(0.0,) * SAMPLES,
        finished_s=seconds,
        tokens=tokens,
        complete=(True,) * SAMPLES,
        generated_s=max(seconds),
    )


def write_record(
    folder,
    generation_s,
    *,
    reward=0.5,
    tokens=100,
    split=(),
    by_group=False,
    speculation="none",
    start=0,
    bias=0.0,
    keys="data",
    shape=None,
):
    """A record of a step for each of ``generation_s``; steps of ``split`` have a tail pool."""
    shape = {"n_groups": N, "replicas": REPLICAS, "n": SAMPLES, "speculation": speculation, **(shape or {})}
    lines = [start_line(shape, 1)]
    for step, seconds in enumerate(generation_s, start=1):
        q = int(step in split)
        plan = StepPlan(
            step, N, REPLICAS, q, q, LaunchCounts(q, 0, N, N - q),
            bulk_placement="group" if by_group else "request",
        )  # fmt: skip
        first = start + (step - 1) * N
        groups = tuple(group(first + i, i % REPLICAS, (tokens, tokens), key=f"{keys}/{first + i}") for i in range(N))
        seen = StepObservation(plan, None, seconds, None, 0.0, groups)
        decision = Decision(step, q, q, True, False, "made up")
        lines.append(step_line(seen, decision))
        metrics = {
            "timing_s/gen": seconds - 0.03,
            "dispatch_s": 0.01,
            "decide_s": 0.02,
            "step_s": seconds + 10,
            "reward": reward,
            "length": float(tokens),
            "bias/mean": bias,
            "bias/p99": 0.0,
            "bias/truncated": 0.0,
            "bias/ks": 0.01,
        }
        lines.append(trained_line(step, metrics))
    path = folder / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_metrics(path, generation_s, first=1):
    """verl's file logger."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for step, seconds in enumerate(generation_s, start=first):
            data = {
                "timing_s/gen": seconds,
                "timing_s/step": seconds + 10,
                "critic/rewards/mean": 0.4,
                "response_length/mean": 90.0,
            }
            file.write(json.dumps({"step": step, "data": data}) + "\n")
    return path.parent


def write_dump(folder, prompts_by_step):
    """trainer.rollout_data_dir."""
    rollouts = folder / "rollouts"
    rollouts.mkdir(parents=True, exist_ok=True)
    for step, prompts in prompts_by_step.items():
        lines = [{"input": p, "output": "text", "step": step} for p in prompts for _ in range(SAMPLES)]
        (rollouts / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
