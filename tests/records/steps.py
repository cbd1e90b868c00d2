"""Finished steps made by hand: N groups of n responses on R replicas, some of them tail, some cut."""

from tailsieve_verl.core.plan import Candidate, Decision, GroupRecord, LaunchCounts, StepObservation, StepPlan


def group(prompt, route="fresh", status="trained", *, n=2, replicas=4, end=1.0, tokens=100):
    cut = status == "cut"
    return GroupRecord(
        prompt=prompt,
        key=f"key/{prompt}",
        route=route,
        status=status,
        replicas=tuple((prompt + s) % replicas for s in range(n)),
        started_s=(0.01,) * n,
        finished_s=tuple(end + 0.1 * s for s in range(n)),
        tokens=(tokens,) * n,
        complete=(not cut,) * n,
        generated_s=None if cut else end + 0.1 * (n - 1),
    )


def observation(step=1, n_groups=4, q=1, n=2, replicas=4):
    """A steady step: q tail groups, N - q trained fresh ones, q cut."""
    plan = StepPlan(step, n_groups, replicas, q, 1 if q else 0, LaunchCounts(q, 0, n_groups, n_groups - q))
    groups = [group(i, "tail", n=n, replicas=replicas, end=3.0 + i / 7) for i in range(q)]
    groups += [group(q + i, n=n, replicas=replicas, end=1.0 + i / 3) for i in range(n_groups - q)]
    groups += [group(n_groups + i, status="cut", n=n, replicas=replicas, end=2.0) for i in range(q)]
    return StepObservation(plan, 3.1, 2.1, 2.0, 0.05, tuple(groups))


def decision(step=1, q=1, m=1):
    return Decision(
        step, q, m, True, False, "balanced", q_star=1.5, candidates=(Candidate(2, 1, 3.5),), extra={"predicted_s": 3.0}
    )
