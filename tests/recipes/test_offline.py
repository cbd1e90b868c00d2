"""The offline figures and tables of the paper: every script in its quick form, and properties of what it writes."""

import csv
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "recipes" / "paper" / "offline"
LIMIT_BYTES = 1_500_000


@pytest.fixture(scope="module")
def scripts():
    """Imports a script by name, as if started from its folder."""
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def quick(scripts, tmp_path_factory):
    """Runs a script once with --quick and reads its CSV; without real traces, so that it is the same everywhere."""
    out, done = tmp_path_factory.mktemp("offline"), {}
    common = scripts("offline_common")

    def run(name, points=False):
        if name not in done:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("TAILSIEVE_TRACES", str(out / "none"))
                scripts(name).run(common.parse_options(None, ["--quick", "--out", str(out)]))
            done[name] = True
            assert (out / f"{name}.png").stat().st_size > 5000
        return _read(out / f"{name}{'_points' if points else ''}.csv")

    return run


def _read(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _first(cell):
    """The mean of ``mean +- deviation``."""
    return float(cell.split()[0])


def test_all_runs_every_script(scripts):
    names = {path.stem for path in FOLDER.glob("*.py")} - {"all"}
    assert set(scripts("all").NAMES) == {name for name in names if not name.startswith("offline_")}


def test_replica_time_is_the_sum_of_marginal_costs(quick):
    for row in quick("fig1"):
        assert 0 < float(row["longest_share"]) < float(row["10 longest_share"]) < 1
    shares = {}
    for point in quick("fig1", points=True):
        shares[point["curve"]] = shares.get(point["curve"], 0) + float(point["share"])
    assert shares == {curve: pytest.approx(1, abs=1e-3) for curve in shares}


def test_exact_optimum_is_balanced_and_least(quick):
    even, optimum, isolated = quick("fig2")
    assert float(optimum["makespan_s"]) <= float(isolated["makespan_s"]) <= float(even["makespan_s"])
    assert float(optimum["tail_s"]) == pytest.approx(float(optimum["bulk_s"]), rel=0.05)
    assert int(float(optimum["tail_responses"])) < 50  # imbalanced in count


def test_best_k_is_never_worse_than_a_fixed_tenth_and_uniform(quick, scripts):
    rows = quick("figA1")
    assert all(0 <= float(r["best_k"]) <= min(float(r["fixed_10"]), float(r["uniform"])) for r in rows)
    assert all(float(r["proven"]) == 1 and _first(r["within_4"]) > 0.8 for r in rows)
    figure, rng = scripts("figA1"), np.random.default_rng(1)
    (named, *_) = scripts("offline_common").decode_curves()
    gap, proven = figure.gaps(rng.integers(1, 5000, 100), named, rng)
    assert proven
    assert 0 <= gap["best-k"] <= gap["fixed 10 %"]


def test_capture_grows_with_rho(quick):
    rows = quick("fig3")
    for load in {row["load"] for row in rows}:
        mine = [row for row in rows if row["load"] == load]
        captured = [_first(row["prompt, top 2"]) for row in mine]
        assert [float(row["rho"]) for row in mine] == [0.05, 0.1, 0.25]
        assert captured[0] <= captured[-1]
    lucky = {row["load"]: _first(row["prompt"]) for row in rows if row["rho"] == "0.25"}
    assert lucky["code"] > 0.5 > lucky["math, cut by chance"]  # the signal is the prompt's share


def test_known_lengths_are_worth_more_than_the_pipeline_gets(quick):
    rows = {(row["scene"], row["landscape"]): row for row in quick("fig4")}
    for scene in ("weak", "real", "strong"):
        assert _first(rows[scene, "known"]["over_group"]) > _first(rows[scene, "simulated"]["over_group"])
        assert float(rows[scene, "replayed"]["bulk_s_at_known_best"]) > 1.1 * float(rows[scene, "known"]["bulk_s"])
        assert 1 <= int(rows[scene, "known"]["m"]) < 4
    assert len(quick("fig4", points=True)) == 3 * 3 * 12


def test_tails_follow_the_formula(quick):
    rows = {row["scene"]: row for row in quick("tableA3")}
    assert [float(rows[scene]["max"]) for scene in ("weak", "real", "strong")] == [3248, 11800, 22044]
    assert [float(rows[scene]["P90"]) for scene in ("weak", "real", "strong")] == [1740, 4115, 6960]
    assert {row["P50"] for row in rows.values()} == {"1160"}


def test_synthetic_checkpoints_have_the_papers_shares_and_auc(quick):
    (row,) = quick("figB1")
    assert float(row["prompt"]) == pytest.approx(0.648, abs=0.08)
    assert sum(float(row[part]) for part in ("prompt", "sampling", "interaction", "checkpoint")) == pytest.approx(1)
    assert _first(row["adjacent_mean"]) > 0.9


@pytest.mark.parametrize("name", ["table1", "table4"])
def test_uniform_is_the_yardstick(quick, name):
    rows = quick(name)
    assert {float(row["over_group"]) for row in rows if row["policy"] == "uniform by group"} == {1.0}
    assert {float(row["over_verl"]) for row in rows if row["policy"] == "verl's default"} == {1.0}
    oracles = [row for row in rows if row["policy"] == "Seer-style oracle"]
    bounds = {tuple(row[key] for key in ("load", "curve", "R", "N")): row for row in rows if "bound" in row["policy"]}
    for row in oracles if bounds else ():
        bound = bounds[tuple(row[key] for key in ("load", "curve", "R", "N"))]
        assert float(row["over_group"]) <= 1.1 * float(bound["over_group"])  # the bound is that of other steps


def test_rerolling_shortens_only_what_chance_made_long(quick):
    rows = {(r["load"], r["curve"], r["R"], r["policy"]): r for r in quick("table1")}
    for (load, curve, replicas, policy), row in rows.items():
        if policy == "fixed split N/8, R/2" and load == "code, cut by chance":
            uniform = rows[load, curve, replicas, "uniform by group"]
            assert float(row["truncated"]) < float(uniform["truncated"])
        if policy == "TailSieve, lengths replayed":
            assert float(row["mean_bias"]) == 0


def test_convergence_keeps_every_start(quick):
    rows = quick("fig6b")
    assert len(rows) == 3 * 8
    points = quick("fig6b", points=True)
    first = {(p["curve"], p["R"], p["start"]): float(p["q"]) for p in points if p["step"] == "1"}
    for (_, _, start), q in first.items():
        expected = {"q0=1": 1, "q0=8": 8, "q0=32": 32, "m0=3": 8, "m0=7": 8, "uniform": 0}[start.split(", ")[1]]
        assert q == expected


def test_gain_regimes_differ_as_the_appendix_says(quick):
    rows = {row["regime"]: row for row in quick("figD1")}
    gains = {name: _first(row["gain"]) for name, row in rows.items()}
    assert gains["gain"] > max(gains["tail too small"], gains["tail route overloaded"])
    assert _first(rows["gain"]["early_s"]) > _first(rows["gain"]["late_s"])
    assert _first(rows["no low-concurrency advantage"]["early_s"]) == 0
    assert gains["no low-concurrency advantage"] == pytest.approx(0, abs=1e-9)
    assert float(rows["tail route overloaded"]["tail_s"]) > float(rows["tail route overloaded"]["bulk_s"])


def test_length_bias_vanishes_for_prompt_tails_and_stays_for_chance(quick):
    rows = {(row["load"], row["moment"]): float(row["mean_%"]) for row in quick("appendixE")}
    assert abs(rows["all prompt", "stable, q=4"]) < 3
    assert rows["chance", "stable, q=12"] < -8
    assert rows["all prompt", "q 4 -> 12"] < -5 < 5 < rows["all prompt", "q 12 -> 4"]
    assert rows["chance", "one step after that"] == 0


def test_regimes_cover_both_baselines(quick):
    rows = quick("regimes")
    assert len(rows) == 4
    assert all(0.5 < float(row[key]) < 3 for row in rows for key in ("over_group", "over_verl"))


def test_drafts_speed_every_dispatch_up_and_live_depth_most(quick):
    rows = {(r["curve"], r["R"], r["dispatch"], r["drafts"]): float(r["over_group"]) for r in quick("drafts")}
    places = {key[:2] for key in rows}
    assert len(places) == 3
    for place in places:
        assert rows[*place, "uniform by group", "no drafts"] == 1
        for dispatch in ("uniform by group", "verl's default"):
            none, one, live = (rows[*place, dispatch, kind] for kind in ("no drafts", "one depth", "live depth"))
            assert none < one < live
        assert rows[*place, "two pools", "a depth by route"] >= rows[*place, "two pools", "one depth"]


def test_table_2_has_the_papers_columns_and_the_baselines_it_lacks(quick, scripts):
    rows = quick("table2")
    assert {r["method"] for r in rows} == {"routing", "MTP", "DFlash"}
    assert {r["policy"] for r in rows} == set(scripts("table2").ROWS)
    found = {(r["load"], r["curve"], r["policy"], r["method"]): float(r["over_group"]) for r in rows}
    assert {value for key, value in found.items() if key[2:] == ("uniform by group", "routing")} == {1}
    for (load, curve, policy, method), value in found.items():
        if policy == "verl's default, live depth":
            assert value > found[load, curve, "verl's default", method] > 0


def test_a_pair_of_depths_is_at_least_as_good_as_the_same_one_twice(quick):
    for row in quick("fig6a"):
        assert int(row["d_bulk"]) + int(row["d_tail"]) == 2 * int(row["d_base"])
        assert float(row["routes"]) >= float(row["same"])
        assert float(row["live"]) > float(row["verl"])
    points = quick("fig6a", points=True)
    assert {int(p["d_bulk"]) + int(p["d_tail"]) for p in points} == {2, 4, 6}


def test_curves_are_read_and_scaled(scripts, tmp_path, monkeypatch):
    common = scripts("offline_common")
    header = "source,model,gpu,engine,tp,concurrency,context_tokens,tpot_ms,tokens_per_s,kind\n"
    lines = [f"x,Qwen3-4B,h100_sxm,e,1,{b},{ctx},{b + 4},1,modelled" for b in (8, 128) for ctx in (1024, 4096)]
    (tmp_path / common.CURVE_FILE).write_text(header + "\n".join(lines) + "\n")
    monkeypatch.setenv("TAILSIEVE_TRACES", str(tmp_path))
    (named,) = common.decode_curves()
    assert named.name == "Qwen3-4B"
    assert named.curve(8) == pytest.approx(0.012 / 0.88)
    assert named.curve(128) == pytest.approx(0.132 / 0.66)


def test_the_same_seed_gives_the_same_files(scripts, tmp_path):
    common = scripts("offline_common")
    for folder in ("a", "b"):
        scripts("fig3").run(common.parse_options(None, ["--quick", "--seed", "3", "--out", str(tmp_path / folder)]))
    assert (tmp_path / "a" / "fig3.csv").read_bytes() == (tmp_path / "b" / "fig3.csv").read_bytes()


def test_a_script_runs_as_a_command(tmp_path):
    done = subprocess.run(
        [sys.executable, str(FOLDER / "tableA3.py"), "--quick", "--out", str(tmp_path)],
        env={**os.environ, "TAILSIEVE_TRACES": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Table A.3" in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"tableA3.csv", "tableA3.png"}


def test_kept_results_are_small_and_complete(scripts):
    kept = list((FOLDER / "results").iterdir())
    assert {f"{name}.{kind}" for name in scripts("all").NAMES for kind in ("csv", "png")} <= {p.name for p in kept}
    assert sum(path.stat().st_size for path in kept) < LIMIT_BYTES
