"""Forecasts on loads whose truth is known: levels, drift, another model's history, runaways, censoring."""

import numpy as np
import pytest

from tailsieve_verl.core.length_forecast import LengthForecast

N, SESSIONS = 64, 8
BETWEEN, WITHIN, MEDIAN = 0.8, 0.5, 1000.0


class Load:
    """Log-normal lengths about a level per prompt; ``drift`` is added to log lengths every step."""

    def __init__(self, prompts=N * 10, seed=0, drift=0.0, runaway=0.0):
        self.rng = np.random.default_rng(seed)
        self.levels = np.log(MEDIAN) + BETWEEN * self.rng.standard_normal(prompts)
        self.drift, self.runaway = drift, runaway

    def step(self, number):
        """Rows of the step, the lengths of their responses."""
        per_epoch = self.levels.size // N
        epoch, place = divmod(number - 1, per_epoch)
        rows = np.random.default_rng((5, epoch)).permutation(self.levels.size)[place * N : (place + 1) * N]
        logs = self.levels[rows, None] + WITHIN * self.rng.standard_normal((N, SESSIONS)) + self.drift * number
        lengths = np.exp(logs)
        lengths[self.rng.random(lengths.shape) < self.runaway] = 100 * MEDIAN
        return rows, np.rint(lengths)


def shown(forecast, load, steps, limit=np.inf):
    for number in range(1, steps + 1):
        rows, lengths = load.step(number)
        complete = lengths <= limit
        forecast.take_in(number, keys(rows), np.minimum(lengths, limit), complete, np.ones(N, bool))
    return forecast


def keys(rows):
    return [f"set/train/{row}" for row in rows]


def test_levels_of_known_prompts_are_found():
    load = Load()
    forecast = shown(LengthForecast(), load, 20)
    found = forecast.predict(keys(range(N)), 21)
    missed = found.level - load.levels[:N]
    assert found.known.all()
    assert missed.std() < WITHIN / np.sqrt(SESSIONS) * 1.2
    assert missed.std() == pytest.approx(found.error.mean(), rel=0.5)
    assert forecast.reliability == pytest.approx(1.0, abs=0.1)


def test_an_unknown_prompt_is_drawn_from_all_levels():
    load = Load()
    forecast = shown(LengthForecast(), load, 10)
    found = forecast.predict([f"new{i}" for i in range(N)], 11)
    assert not found.known.any()
    logs = np.log(forecast.scenarios(found, SESSIONS, 32, 0))
    assert logs.mean() == pytest.approx(load.levels.mean(), abs=0.1)
    assert logs.std() == pytest.approx(np.hypot(BETWEEN, WITHIN), rel=0.1)


def test_scenarios_have_the_lengths_that_come():
    load = Load()
    forecast = shown(LengthForecast(), load, 30)
    rows, _ = load.step(31)
    drawn = forecast.scenarios(forecast.predict(keys(rows), 31), SESSIONS, 48, 1)
    came = np.exp(load.levels[rows, None] + WITHIN * load.rng.standard_normal((N, SESSIONS)))
    assert drawn.shape == (48, N, SESSIONS)
    assert drawn.mean() == pytest.approx(came.mean(), rel=0.1)
    assert np.quantile(drawn, 0.99) == pytest.approx(np.quantile(came, 0.99), rel=0.25)
    assert np.array_equal(drawn, forecast.scenarios(forecast.predict(keys(rows), 31), SESSIONS, 48, 1))


def test_drift_is_followed():
    load = Load(drift=0.01)
    forecast = shown(LengthForecast(), load, 30)
    found = forecast.predict(keys(range(N)), 31)
    missed = found.level - (load.levels[:N] + 0.31)
    assert abs(missed.mean()) < 0.05  # levels are ten steps old on average: uncorrected it would be 0.1


def test_a_history_that_ranks_by_chance_is_drawn_in():
    forecast = shown(LengthForecast(), Load(seed=1), 10)
    shown(forecast, Load(seed=2), 5)  # other prompts under the same names, as from another model
    assert forecast.reliability < 0.3
    spread = forecast.predict(keys(range(N)), 6).level.std()
    assert spread < 0.4 * BETWEEN


def test_rare_runaways_are_counted_and_do_not_move_levels():
    load = Load(runaway=0.01)
    forecast = shown(LengthForecast(), load, 20)
    assert forecast.runaway_share == pytest.approx(0.01, rel=0.4)
    found = forecast.predict(keys(range(N)), 21)
    assert (found.level - load.levels[:N]).std() < 0.25
    drawn = forecast.scenarios(found, SESSIONS, 48, 0)
    assert (drawn >= 99 * MEDIAN).mean() == pytest.approx(forecast.runaway_share, rel=0.3)


def test_prompts_that_run_away_again_and_again_are_told_from_chance():
    load = Load()
    prone = np.arange(0, load.levels.size, 10)
    often, chance = LengthForecast(), LengthForecast()
    for number in range(1, 11):
        rows, lengths = load.step(number)
        uniform = load.rng.random(lengths.shape)
        for forecast, share in ((often, np.where(np.isin(rows, prone), 0.2, 0.0)), (chance, np.full(N, 0.02))):
            came = np.where(uniform < share[:, None], 100 * MEDIAN, lengths)
            forecast.take_in(number, keys(rows), came, np.ones_like(came, bool), np.ones(N, bool))
    risky, calm = (often.predict(keys(which), 11).runaway for which in (prone, np.arange(1, 60, 10)))
    assert risky.mean() > 0.07
    assert calm.mean() < 0.01
    alike = chance.predict(keys(range(N)), 11).runaway
    assert alike.std() < 0.5 * alike.mean()


def test_censored_responses_are_not_taken_for_short_ones():
    load = Load()
    censored = shown(LengthForecast(), load, 10, limit=2000)
    naive = LengthForecast()
    load = Load()
    for number in range(1, 11):
        rows, lengths = load.step(number)
        naive.take_in(number, keys(rows), np.minimum(lengths, 2000), np.ones_like(lengths, bool), np.ones(N, bool))
    long = np.argsort(load.levels)[-N:]
    ours, theirs = (load.levels[long] - f.predict(keys(long), 11).level for f in (censored, naive))
    assert abs(ours.mean()) < 0.6 * abs(theirs.mean())


def test_state_goes_through_arrays():
    load = Load()
    forecast = shown(LengthForecast(), load, 12)
    restored = LengthForecast()
    restored.load_arrays(forecast.arrays())
    ours, theirs = (f.predict(keys(range(N)), 13) for f in (forecast, restored))
    assert np.array_equal(ours.level, theirs.level)
    drawn = [f.scenarios(ours, SESSIONS, 4, 0) for f in (forecast, restored)]
    assert np.array_equal(*drawn)
    with pytest.raises(ValueError, match="scalars"):
        restored.load_arrays({name: a for name, a in forecast.arrays().items() if name != "scalars"})


def test_nothing_to_draw_from_is_said():
    with pytest.raises(ValueError, match="no response"):
        LengthForecast().scenarios(LengthForecast().predict(["a"], 1), 1, 1, 0)
