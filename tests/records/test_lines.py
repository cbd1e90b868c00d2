import json
from collections import Counter

from tailsieve_verl.records.lines import MOST_REQUESTS, plain, sampled, step_line, totals

from .steps import decision, observation


def test_a_step_of_usual_size_is_written_whole():
    step = observation(n_groups=64, q=8, n=8)
    line = step_line(step, decision())
    assert len(line["groups"]) == 72
    assert "totals" not in line


def test_a_large_step_is_sampled_and_every_route_keeps_its_share():
    step = observation(n_groups=20_000, q=2_000, n=8)
    kept = sampled(step.groups, MOST_REQUESTS)
    assert 0.95 * MOST_REQUESTS < sum(len(g.tokens) for g in kept) < 1.05 * MOST_REQUESTS
    share = Counter((g.route, g.status) for g in kept)
    for stratum in (("tail", "trained"), ("fresh", "cut")):  # 2,000 of 22,000 groups each
        assert 46 <= share[stratum] <= 47  # one more if it ends the step
    assert len({g.prompt for g in kept}) == len(kept)
    assert [g.prompt for g in kept] == sorted(g.prompt for g in kept)


def test_the_groups_that_end_the_step_stay_in_the_sample():
    step = observation(n_groups=5_000, q=500, n=8)
    kept = sampled(step.groups, 100)
    for pool in ("tail", "fresh"):
        times = [g.generated_s for g in step.groups if g.route == pool and g.status == "trained"]
        assert max(times) == max(g.generated_s for g in kept if g.route == pool and g.status == "trained")


def test_a_sampled_step_says_what_all_groups_did():
    step = observation(n_groups=5_000, q=500, n=8)
    line = step_line(step, decision(), most_requests=80)
    assert line["totals"] == totals(step.groups, 4)
    assert line["totals"]["routes"]["fresh/trained"] == {"groups": 4_500, "requests": 36_000, "tokens": 3_600_000}
    replicas = line["totals"]["replicas"]
    assert sum(r["requests"] for r in replicas) == 5_500 * 8
    assert all(r["first_s"] == 0.01 for r in replicas)
    assert max(r["last_s"] for r in replicas) == max(t for g in step.groups for t in g.finished_s)


def test_a_step_at_100_000_groups_stays_small():
    line = step_line(observation(n_groups=100_000, q=12_500, n=8, replicas=1_024), decision())
    assert len(json.dumps(line, default=plain)) < 1_000_000
