"""What is printed: tables in files and pipes, and in terminals wide and narrow."""

import re

import pytest

from tailsieve_verl.cli.output import print_table

ROWS = [
    {"policy": f"policy_{i}", "what": "a sentence of some length about it", "mean_step_s": 1.23456 * i, "idle": None}
    for i in range(3)
]


def test_a_table_in_a_pipe_has_a_whole_line_a_row(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_table(ROWS, "title", ["note"])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "policy_2 a sentence of some length about it 2.469 -" in lines
    assert lines[0] == "title"
    assert lines[-1] == "note"


@pytest.mark.parametrize(("columns", "paragraphs"), [(40, True), (120, False)])
def test_a_terminal_too_narrow_for_the_table_gets_paragraphs(capsys, monkeypatch, columns, paragraphs):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(ROWS, "title")
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    assert ("mean step s 2.469, idle -" in text) == paragraphs
    assert all(f"policy_{i}" in text for i in range(3))
