import numpy as np
import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.records.lines import FILE, SCHEMA
from tailsieve_verl.report.view import read_view

from .views import N, cut_off, view_of, write


def test_steps_and_lengths(tmp_path):
    view = view_of(tmp_path / "mine")
    assert (view.label, view.sampled, view.resumes, view.skipped) == ("mine", False, 0, 0)
    assert [s.step for s in view.steps] == list(range(1, 9))
    assert [s.split for s in view.steps] == [False] * 3 + [True] * 5
    assert [s.step for s in view.steps if s.moved] == [3]
    assert view.steps[3].before == (1, 1)
    assert view.steps[0].step_s == 16.0
    assert view.trained_on.size == 8 * N * 2
    assert view.fresh[:, 1].sum() == pytest.approx(8 * N * 2 - 2)  # the last step's cut responses are still open


def test_the_record_of_a_run_that_goes_on(tmp_path):
    view = read_view(cut_off(write(tmp_path, (0, 1, 1)), 20))
    assert view.skipped == 1
    assert [s.step_s for s in view.steps] == [16.0, 16.0, None]  # the last update is not recorded whole


def test_a_resumed_run(tmp_path):
    write(tmp_path, (0, 1, 1))
    view = read_view(write(tmp_path, (1, 1, 1), first=3))
    assert view.resumes == 1
    assert [s.step for s in view.steps] == [1, 2, 3, 4, 5]


def test_a_range_of_steps(tmp_path):
    write(tmp_path, (0, 0, 1, 1))
    assert [s.step for s in read_view(tmp_path, first=2, last=3).steps] == [2, 3]
    with pytest.raises(UserError, match=r"has steps 1 to 4, none of those asked for; change --first or --last\.$"):
        read_view(tmp_path, first=9)


def test_a_bound_where_the_policy_gave_none(tmp_path):
    """Two requests a replica at 50 tokens a second, the longest of 400 tokens: 8 s, and nothing faster was seen."""
    view = view_of(tmp_path, uniform_s=None, bound=None, start={"policy": "uniform_group"}, splits=(0,) * 6)
    bounds = [s.lower_bound_s for s in view.steps]
    assert bounds == pytest.approx([8.0] * 6, rel=0.1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no finished rollout yet; ask again when the run's first step is over"),
        (
            '{"kind": "start", "schema": 2, "first_step": 1, "n_groups": 4}\n{"kind": "st',
            r"no finished rollout yet \(1 unreadable line",
        ),
        ("prompt,tokens\n1,200\n", "is no record of a run; name the trainer.default_local_dir"),
        (f'{{"kind": "start", "schema": {SCHEMA + 1}, "first_step": 1}}\n', "upgrade tailsieve_verl"),
        ('{"kind": "step", "step": 1, "weather": "fine"}\n', "holds lines that are no step of a run"),
    ],
)
def test_bad_records_are_one_sentence(tmp_path, text, says):
    path = tmp_path / FILE
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(UserError, match=says):
        read_view(tmp_path)


def test_no_run_s_folder(tmp_path):
    with pytest.raises(
        UserError, match=r"cannot be read \(No such file or directory\); name the trainer.default_local"
    ):
        read_view(tmp_path)


def test_lengths_are_numbers(tmp_path):
    assert view_of(tmp_path).fresh.dtype == np.float64
