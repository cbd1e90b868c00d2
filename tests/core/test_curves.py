"""Curve files."""

from __future__ import annotations

import pytest

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.curves import load_curve, save_curve

CURVE = DecodeCurve([1, 8, 64], [1 / 300, 0.0041, 0.0123])


@pytest.mark.parametrize("name", ["curve.json", "curve.csv", "curve.CSV"])
def test_round_trip(tmp_path, name):
    save_curve(tmp_path / name, CURVE)
    assert load_curve(tmp_path / name) == CURVE
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_csv_may_carry_more_columns(tmp_path):
    path = tmp_path / "curve.csv"
    path.write_text("model,batch_size,seconds_per_token\nx,1,0.01\nx,4,0.02\n")
    assert load_curve(path) == DecodeCurve([1, 4], [0.01, 0.02])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.txt", "", "path must end in .json or .csv, got .*c.txt"),
        ("c.json", "[1]", "c.json: curve data must be an object, got list"),
        ("c.json", "{", "c.json: Expecting"),
        ("c.json", '{"batch_sizes": [1]}', "c.json: curve data lacks 'seconds_per_token'"),
        ("c.csv", "batch_size\n1\n", "c.csv: column 'seconds_per_token' is missing or short"),
        ("c.csv", "batch_size,seconds_per_token\n", "c.csv: batch_sizes must not be empty"),
        ("c.csv", "batch_size,seconds_per_token\n1,fast\n", "c.csv: could not convert"),
        ("c.csv", "batch_size,seconds_per_token\n2,0.1\n1,0.1\n", "c.csv: .*got unsorted 1.0 after 2.0"),
    ],
)
def test_bad_files(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_curve(path)


def test_missing_file_and_bad_suffix(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_curve(tmp_path / "none.json")
    with pytest.raises(ValueError, match=r"path must end in \.json or \.csv"):
        save_curve(tmp_path / "curve.yaml", CURVE)
