"""Costs from shapes and files."""

import json

import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.costs import DENSE, SHAPES, read_costs


def test_shapes_and_files_give_costs(tmp_path):
    assert read_costs("dense").curve == DENSE
    path = tmp_path / "c.json"
    path.write_text(
        json.dumps(DENSE.to_dict() | {"context_seconds_per_token": 1e-7, "prefill_seconds_per_token": 2e-5})
    )
    costs = read_costs(str(path))
    assert (costs.curve, costs.context_s, costs.prefill_s) == (DENSE, 1e-7, 2e-5)
    assert read_costs(str(path), context_s=0.0, max_num_seqs=4).context_s == 0
    assert read_costs(str(path), max_num_seqs=4).max_num_seqs == 4


def test_wrong_curves_are_named(tmp_path):
    with pytest.raises(UserError, match="neither a file nor a shipped shape \\(dense, experts\\)"):
        read_costs("dens")
    path = tmp_path / "c.json"
    path.write_text('{"batch_sizes": [1]}')
    with pytest.raises(UserError, match=r"c\.json: .*seconds_per_token"):
        read_costs(str(path))
    assert set(SHAPES) == {"dense", "experts"}
