"""The planner in a loop with an engine of known costs: it probes, finds the best table, and follows changes."""

import json

import numpy as np
import pytest

from tailsieve_verl.core.draft_planner import DraftPlanner
from tailsieve_verl.core.drafting import DraftCounts
from tailsieve_verl.core.speculation import Acceptance, DepthTable

LARGEST, DEEPEST = 128, 5


class Engine:
    """Memory-bound up to 32 tokens, then 0.2 ms a token; the drafter takes `draft` of a plain step a position.

    A share `found` of the requests has a draft in a step, as with n-grams.
    """

    def __init__(self, rate=0.7, draft=0.05, noise=0.02, found=1.0):
        self.rate, self.draft, self.noise, self.found = rate, draft, noise, found
        self.rng = np.random.default_rng(0)

    def seconds(self, batch, depth):
        tokens = batch * (depth + 1)
        return 0.006 + 5e-5 * tokens + 1.5e-4 * max(tokens - 32, 0) + depth * self.draft * 0.006

    def tokens_per_second(self, batch, depth):
        return (1 + self.found * (Acceptance((self.rate,)).length(depth) - 1)) / self.seconds(batch, depth)

    def run(self, table):
        """A batch that drains from 96 requests to one."""
        counts = DraftCounts(DEEPEST)
        for batch in [*range(96, 0, -1), *([1] * 40), *([4] * 20)]:
            depth = table(batch)
            passes = 3
            seconds = sum(self.seconds(batch, depth) * np.exp(self.rng.normal() * self.noise) for _ in range(passes))
            drafts, chances = [], []
            for _ in range(batch * passes if depth else 0):
                accepted = 0
                if self.found < 1 and self.rng.random() > self.found:
                    chances.append((depth, 0, 1))
                    continue
                while accepted < depth and self.rng.random() < self.rate:
                    accepted += 1
                drafts.append((depth, accepted, 1))
            times = [(batch, depth, passes, seconds)]
            counts.add([(batch, depth, passes)], drafts, times, chances + drafts)
        return counts


def closed_loop(engine, steps, planner=None):
    planner = planner or DraftPlanner(DEEPEST, LARGEST)
    tables = [planner.table]
    for _ in range(steps):
        tables.append(planner.observe(engine.run(tables[-1])))
    return planner, tables


def regret(engine, table):
    """Worst loss of tokens a second against the best depth at each batch size visited."""
    losses = []
    for batch in (1, 2, 4, 8, 16, 32, 64, 96):
        best = max(engine.tokens_per_second(batch, d) for d in range(DEEPEST + 1))
        losses.append(1 - engine.tokens_per_second(batch, table(batch)) / best)
    return max(losses)


@pytest.mark.parametrize("rate", [0.4, 0.7, 0.9])
def test_it_finds_a_table_within_six_percent_of_the_best_depth_everywhere(rate):
    engine = Engine(rate)
    _, tables = closed_loop(engine, 8)
    assert tables[0] == DepthTable.constant(DEEPEST)
    assert tables[1].deepest < DEEPEST  # the probe
    assert regret(engine, tables[-1]) < 0.06


def test_drafts_that_are_rarely_found_are_worth_little_however_often_they_are_accepted():
    engine = Engine(rate=0.9, found=0.25)
    planner, tables = closed_loop(engine, 20)
    assert planner.acceptance.rates[0] == pytest.approx(0.9 * 0.25, abs=0.03)
    assert regret(engine, tables[-1]) < 0.06
    assert tables[-1](96) == 0


def test_a_good_table_stays():
    _, tables = closed_loop(Engine(), 25)
    assert len(set(tables[8:])) <= 2


def test_a_useless_drafter_is_switched_off_and_probed_again():
    engine = Engine(rate=0.02, draft=0.2)
    planner, tables = closed_loop(engine, 120)
    assert tables[10] == DepthTable.constant(0)
    assert "does not pay" in planner.choice.reason
    probes = [i for i, table in enumerate(tables) if i > 10 and table.deepest]
    assert 1 <= len(probes) <= 6


def test_a_drafter_that_goes_stale_is_followed():
    planner, _ = closed_loop(Engine(0.9), 8)
    deep = planner.table(1)
    planner, _ = closed_loop(Engine(0.3), 12, planner)
    assert planner.table(1) < deep
    assert regret(Engine(0.3), planner.table) < 0.08


def test_its_state_is_plain_and_goes_on_the_same():
    planner, _ = closed_loop(Engine(), 6)
    again = DraftPlanner(DEEPEST, LARGEST)
    again.load_state_dict(json.loads(json.dumps(planner.state_dict())))
    counts = Engine().run(planner.table)
    assert again.table == planner.table
    assert again.observe(counts) == planner.observe(counts)
    other = DraftPlanner(3, LARGEST)
    other.load_state_dict(planner.state_dict())
    assert other.table == DepthTable.constant(3)


def test_with_one_draft_token_the_other_depth_is_none():
    planner = DraftPlanner(1, 8)
    counts = DraftCounts(1)
    counts.add([(1, 1, 100)], [(1, 1, 100)], [(1, 1, 100, 1.0)])
    assert planner.observe(counts) == DepthTable.constant(0)


def test_an_engine_that_slows_down_steeply_is_planned_for_as_well():
    """Few steps at large batches, all slow: the fit goes on so steeply that throughput would fall below half."""
    planner = DraftPlanner(DEEPEST, 1024)
    for _ in range(4):
        depth, counts = planner.table(1), DraftCounts(DEEPEST)
        times = [(2, depth, 300, 3.0), (4, depth, 300, 3.3), (30, depth, 100, 10.0), (32, depth, 100, 12.0)]
        counts.add([(b, d, n) for b, d, n, _ in times], [(depth, depth, 200)] if depth else [], times)
        planner.observe(counts)
    assert planner.choice is not None
    assert planner.table.deepest <= DEEPEST
