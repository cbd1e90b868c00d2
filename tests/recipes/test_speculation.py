"""How the CPU comparison chooses depths and tail groups, on a grid made up here."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from tailsieve_verl.core.speculation import Acceptance, DepthTable
from tailsieve_verl.replay.pick import Picked

RECIPE = Path(__file__).parents[2] / "recipes" / "speculation" / "choosing.py"
SIZES = (1, 8, 32, 64)


@pytest.fixture(scope="module")
def choosing():
    spec = importlib.util.spec_from_file_location("choosing", RECIPE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def chooser(choosing):
    """Memory bound up to 8 tokens in a step, arithmetic bound beyond; drafts cost a tenth of a step."""

    def step(batch, depth):
        return 1.0 + 0.1 * depth + max(0, batch * (depth + 1) - 8) / 16

    rows = [{"batch": b, "depth": d, "step_s": step(b, d)} for b in SIZES for d in range(6)]
    rows += [{"batch": b, "depth": "none", "step_s": step(b, 0)} for b in SIZES]
    lengths = np.full((16, 4), 20)
    lengths[[3, 7]] = 400
    load = Picked(lengths, lengths, np.arange(16), 1.0, 0.0, 0)
    return choosing.Chooser(rows, Acceptance((0.8,) * 5), load)


def test_live_depth_falls_with_the_batch(chooser):
    depths = [chooser.live(b) for b in (1, 8, 64)]
    assert depths[0] > 0
    assert depths == sorted(depths, reverse=True)


def test_a_makespan_is_the_sum_over_running_batches(chooser):
    """All 64 alike: each replica runs 32 for their whole length."""
    chooser.load = Picked(np.full((16, 4), 10), np.full((16, 4), 10), np.arange(16), 1.0, 0.0, 0)
    assert chooser.predicted("uniform_group", None) == pytest.approx(10 * (1 + 24 / 16))


def test_the_long_groups_get_the_tail_pool_and_it_drafts_at_least_as_deep(choosing, chooser):
    bulk, tail = chooser.best_pair()
    assert tail >= bulk
    ways = choosing.all_ways(chooser)
    assert len({way.name for way in ways}) == len(ways)
    for way in ways:
        assert way.placement in ("uniform_group", "verl_default") or way.placement.startswith("fixed:q=")
        if way.name.startswith("budget"):
            depths = [table(1) for table in way.tables]
            assert sum(depths) == 2 * int(way.name.split()[1].rstrip(":"))
            assert depths[1] >= depths[0]
    assert choosing.constants(1, 4) == (DepthTable.constant(1), DepthTable.constant(4))
