"""A file that is written whole replaces the old one at once; what fails leaves the old one and nothing beside it."""

from pathlib import Path

import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.whole_file import check_place, write_whole


def test_the_folder_is_made_and_the_file_replaced(tmp_path):
    path = tmp_path / "new" / "table.csv"
    for text in ("old", "new"):
        write_whole(path, lambda name, text=text: Path(name).write_text(text))
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["table.csv"]


def test_a_writer_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")

    def torn(name):
        Path(name).write_text("ne")
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        write_whole(path, torn)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "table.csv"):
        with pytest.raises(UserError, match="cannot be written"):
            write_whole(path, lambda name: None)


def test_a_place_that_cannot_be_written_is_named_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    for bad in (tmp_path, tmp_path / "file" / "x.csv"):
        with pytest.raises(UserError, match="cannot be written"):
            check_place(bad)
    check_place(tmp_path / "new" / "x.csv")
    assert list((tmp_path / "new").iterdir()) == []
