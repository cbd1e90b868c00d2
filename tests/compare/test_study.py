import pytest

from tailsieve_verl.compare.plot import plot_fig7
from tailsieve_verl.compare.report import length_table, notes, page, speedup_table
from tailsieve_verl.compare.runlog import read_runlog
from tailsieve_verl.compare.streams import difference
from tailsieve_verl.compare.study import by_step, compare, summary
from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.errors import UserError

from .runs import tau, write_dump, write_metrics, write_record

CURVE = DecodeCurve([1, 2, 4, 8], [tau(b) for b in (1, 2, 4, 8)])


@pytest.fixture
def runs(tmp_path):
    """Ten steps each; TailSieve splits in the first six, and drafts halve the time."""
    made = {
        "uniform": write_record(tmp_path / "uniform", [4.0] * 10, by_group=True),
        "tailsieve": write_record(tmp_path / "tailsieve", [2.0] * 6 + [4.0] * 4, split=range(1, 7)),
        "mtp_uniform": write_record(tmp_path / "mtp_uniform", [2.0] * 10, by_group=True, speculation="mtp"),
        "mtp": write_record(tmp_path / "mtp", [1.0] * 8 + [2.0] * 2, split=range(1, 9), speculation="mtp"),
    }
    return [read_runlog(path) for path in made.values()]


def rows(study):
    return {(c.run, c.baseline, c.window): c.generation.of_means.value for c in study.comparisons}


def test_every_run_against_the_first_and_drafts_against_drafts_under_uniform_routing(runs):
    assert rows(compare(runs)) == pytest.approx(
        {
            ("tailsieve", "uniform", "all"): 40 / 28,
            ("tailsieve", "uniform", "1-8"): 32 / 20,
            ("tailsieve", "uniform", "split"): 2.0,
            ("mtp_uniform", "uniform", "all"): 2.0,
            ("mtp_uniform", "uniform", "1-8"): 2.0,
            ("mtp", "uniform", "all"): 40 / 12,
            ("mtp", "uniform", "1-8"): 4.0,
            ("mtp", "uniform", "split"): 4.0,
            ("mtp", "mtp_uniform", "all"): 20 / 12,  # D.1
            ("mtp", "mtp_uniform", "1-8"): 2.0,
            ("mtp", "mtp_uniform", "split"): 2.0,
        }
    )


def test_another_baseline_window_and_start(runs):
    found = rows(compare(runs[:2], baseline="tailsieve", early=7, skip=5))
    assert found == pytest.approx({("uniform", "tailsieve", "all"): 18 / 20, ("uniform", "tailsieve", "1-7"): 6 / 8})


def test_the_bound_is_that_of_the_baseline_s_lengths_and_a_gain_beyond_it_is_flagged(runs, tmp_path):
    # Four groups of two responses of 100 tokens on two replicas: no placement beats four on each.
    least = 100 * tau(4)
    study = compare(runs[:2], curve=CURVE)
    assert study.bounds["uniform"].by_step[3] == pytest.approx(least)
    found = {c.window: c for c in study.comparisons}
    assert found["all"].most == pytest.approx(4.0 / least)
    assert not found["all"].beyond
    short = read_runlog(write_record(tmp_path / "short", [1.0] * 10, tokens=60))
    study = compare([runs[0], short], curve=CURVE)
    assert study.comparisons[0].beyond
    assert any("by more than routing can give" in note for note in notes(study))
    assert "!" in speedup_table(study)[0]["at most"]


def test_drafts_are_not_held_against_the_bound_of_a_run_without(runs):
    found = {(c.run, c.baseline): c.most for c in compare(runs, curve=CURVE).comparisons if c.window == "all"}
    assert found["mtp", "uniform"] is None
    assert found["mtp", "mtp_uniform"] is not None


def test_the_curve_is_learned_from_completions(runs):
    bound = compare(runs[:2]).bounds["uniform"]
    # In the made-up runs four responses decode together on a replica, each at tau(2).
    assert bound.by_step[1] == pytest.approx(100 * tau(2), rel=0.05)


def test_lengths_against_the_baseline_s(runs, tmp_path):
    short = read_runlog(write_record(tmp_path / "short", [3.0] * 10, tokens=60))
    found = compare([runs[0], short]).comparisons[0].shift
    assert (found.mean, found.p99, found.ks) == pytest.approx((-0.4, -0.4, 1.0))
    assert found.p < 1e-6
    assert length_table(compare([runs[0], short]))[0]["mean"] == "-40.0 %"


def test_summary_and_steps(runs):
    study = compare(runs[:2], curve=CURVE)
    first, second = summary(study, skip=2)
    assert (first["steps"], first["generation_s"], first["with_split"]) == (8, pytest.approx(4.0), 0)
    assert (second["least_s"], second["most_s"], second["with_split"]) == (pytest.approx(2.0), pytest.approx(4.0), 4)
    assert first["over_bound"] == pytest.approx(4.0 / (100 * tau(4)))
    table = by_step(study)
    assert len(table) == 20
    assert table[0]["run"] == "uniform"
    assert table[10]["split"]


def test_page_and_picture(runs, tmp_path):
    study = compare(runs)
    text = page(study, "fig7.png")
    assert text.count("| mtp | mtp_uniform |") == 4
    assert "![generation time, reward and mean length by step](fig7.png)" in text
    plot_fig7(tmp_path / "p.png", [study, study], ["one", "two"])
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_ended_early_is_compared_as_far_as_it_went(tmp_path, runs):
    short = read_runlog(write_record(tmp_path / "short", [2.0] * 3))
    study = compare([runs[0], short])
    assert rows(study) == {("short", "uniform", "all"): pytest.approx(2.0)}
    assert any("end at different steps (uniform 10, short 3)" in note for note in notes(study))


def test_plain_verl_runs_are_paired_by_their_dumps(tmp_path):
    prompts = {step: [f"p{4 * step + i}" for i in range(4)] for step in range(1, 6)}
    carried = {step: [f"p{4 * step + i + 1}" for i in range(4)] for step in range(1, 6)}
    other = {step: [f"x{4 * step + i}" for i in range(4)] for step in range(1, 6)}
    made = {}
    for name, dump in (("plain", prompts), ("carried", carried), ("other", other), ("blind", {})):
        folder = write_metrics(tmp_path / name / "metrics.jsonl", [3.0 if name == "plain" else 2.0] * 5)
        made[name] = read_runlog(write_dump(folder, dump))
    (tmp_path / "plain" / "rollouts" / "6.jsonl").write_text('{"input": "p2')  # being written
    study = compare([made["plain"], made["carried"]])
    assert rows(study) == {("carried", "plain", "all"): pytest.approx(1.5)}
    assert any("no TailSieve record for plain, carried" in note for note in notes(study))
    assert "20 prompts" in difference(made["other"], made["plain"])
    assert "blind has neither a TailSieve record nor rollout dumps" in difference(made["blind"], made["plain"])


def test_one_step_of_other_prompts_is_noticed_too(tmp_path):
    one = read_runlog(write_dump(write_metrics(tmp_path / "a" / "metrics.jsonl", [1.0]), {1: list("abcd")}))
    two = read_runlog(write_dump(write_metrics(tmp_path / "b" / "metrics.jsonl", [1.0]), {1: list("wxyz")}))
    assert difference(one, two) is not None


def test_another_number_of_responses_is_told_from_the_dumps(tmp_path):
    made = []
    for name, times in (("a", 1), ("b", 2)):
        folder = write_metrics(tmp_path / name / "metrics.jsonl", [1.0])
        made.append(read_runlog(write_dump(folder, {1: [p for p in "abcd" for _ in range(times)]})))
    assert difference(*made) == "a has 2 responses a group and b 4"


def test_other_prompts_are_refused_unless_unpaired(tmp_path, runs):
    for name, options, sentence in (
        ("keys", {"keys": "other"}, r"prompt 0 of the stream is other/0 in keys and data/0 in uniform"),
        ("shift", {"start": 100}, "have no step in common"),
        ("shape", {"shape": {"n": 4}}, "shape has 4 responses a group and uniform 2"),
    ):
        other = read_runlog(write_record(tmp_path / name, [2.0] * 10, **options))
        with pytest.raises(UserError, match=f"did not train on the same prompts.*{sentence}.*--unpaired"):
            compare([runs[0], other])
        found = compare([runs[0], other], unpaired=True).comparisons[0]
        assert found.generation.of_means.value == pytest.approx(2.0)
        assert (found.generation.paired, found.shift) == (None, None)


def test_runs_that_cannot_be_compared_cost_the_others_nothing(tmp_path, runs):
    odd = read_runlog(write_record(tmp_path / "odd", [2.0] * 10, keys="other"))
    found = compare([runs[0], odd, runs[1]])
    assert [run.label for run in found.runs] == ["uniform", "tailsieve"]
    assert rows(found) == rows(compare(runs[:2]))
    assert "Left out: odd and uniform did not train on the same prompts" in page(found)


def test_bad_input_is_one_sentence(runs, tmp_path):
    for arguments, options, sentence in (
        (runs[:1], {}, "needs at least two runs"),
        ([runs[0], runs[0]], {}, "two runs are called uniform"),
        (runs, {"baseline": "verl"}, "--baseline verl is none of the runs: uniform, tailsieve, mtp_uniform, mtp"),
        (runs, {"skip": 10}, "have no finished step in common after step 10"),
    ):
        with pytest.raises(UserError, match=sentence):
            compare(arguments, **options)
