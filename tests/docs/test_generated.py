"""What scripts wrote into the pages is what they would write now, and the worked example is right."""

from __future__ import annotations

import dataclasses
import sys
import xml.etree.ElementTree as ET

import pytest

from tailsieve_verl.config.schema import TailSieveConfig
from tailsieve_verl.doctor.versions import SUPPORT

from .pages import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import docs_configuration
import docs_drawings
import docs_example


def test_configuration_is_fresh():
    assert (ROOT / "docs/configuration.md").read_text() == docs_configuration.render(), (
        "run: .venv/bin/python scripts/docs_configuration.py --write"
    )


def test_every_setting_and_preset_is_on_the_page():
    keys = [key for key, *_ in docs_configuration.setting_rows()]
    for field in dataclasses.fields(TailSieveConfig):
        assert any(key == field.name or key.startswith(f"{field.name}.") for key in keys), field.name
    assert all(words for *_, words in docs_configuration.setting_rows())
    presets = {path.stem for path in docs_configuration.PRESETS.glob("*.yaml")} - {"base"}
    assert {name for name, *_ in docs_configuration.preset_rows()} == presets


def test_the_example_on_the_page_is_fresh():
    page = docs_example.PAGE.read_text()
    assert page == docs_example.embed(page), "run: .venv/bin/python scripts/docs_example.py --write"


def token_by_token(lengths):
    """Seconds after which each response is done, one token at a time."""
    done, clock, position = [0.0] * len(lengths), 0.0, 0
    while any(position < length for length in lengths):
        running = sum(position < length for length in lengths)
        clock += docs_example.CURVE(running)
        position += 1
        done = [clock if length == position else seconds for length, seconds in zip(lengths, done, strict=True)]
    return done


def test_the_example_holds_token_by_token():
    """Nothing of the core but tau: group g on replica g mod 4; then two pools of two replicas, single responses."""
    numbers = docs_example.numbers()
    fresh, carried = list(docs_example.FRESH.items()), list(docs_example.CARRIED.items())
    uniform = [[t for _, pair in fresh[r::4] for t in pair] for r in range(4)]
    assert numbers["uniform"] == pytest.approx(max(max(token_by_token(w)) for w in uniform))
    default = [[t for i, t in enumerate(t for _, pair in fresh for t in pair) if i % 4 == r] for r in range(4)]
    assert numbers["default"] == pytest.approx(max(max(token_by_token(w)) for w in default))
    tail = [[pair[r] for _, pair in carried] for r in range(2)]
    assert numbers["t_tail"] == pytest.approx(max(max(token_by_token(w)) for w in tail))
    bulk = [token_by_token([pair[r] for _, pair in fresh]) for r in range(2)]
    ends = sorted(max(both) for both in zip(*bulk, strict=True))
    assert numbers["t_bulk"] == pytest.approx(ends[5])
    assert numbers["step"] == max(numbers["t_tail"], numbers["t_bulk"])
    assert numbers["bound"] <= numbers["step"]
    assert numbers["q_star"] == pytest.approx(8 * numbers["r_tail"] / (numbers["r_tail"] + numbers["r_bulk"]))


def test_drawings_can_be_drawn_and_show_the_example(tmp_path, monkeypatch):
    monkeypatch.setattr(docs_drawings, "ASSETS", tmp_path)
    with docs_drawings.plt.rc_context(docs_drawings.STYLE):
        docs_drawings.step()
        docs_drawings.lifecycle()
    for name in ("step.svg", "lifecycle.svg"):
        words = [set(ET.parse(folder / name).getroot().itertext()) for folder in (tmp_path, docs_drawings.ASSETS.parent)
                 if (folder / name).exists()]  # fmt: skip
        committed = set(ET.parse(ROOT / "docs/assets" / name).getroot().itertext())
        assert words[0] == committed, "run: .venv/bin/python scripts/docs_drawings.py"


def test_the_table_of_versions_is_doctor_s():
    page = (ROOT / "docs/troubleshooting.md").read_text()
    by_name = {support.name: support for support in SUPPORT}
    assert f"| verl | {by_name['verl'].tested.strip('=')} | a later 0.9 | others, 0.9.0 too |" in page
    tested = by_name["vllm"].tested.strip("=").removesuffix(".*")
    assert f"| vLLM | {tested} (CPU build) | 0.24 to 0.33 | below 0.24 |" in page
    assert by_name["vllm"].written_for == ">=0.24.0,<0.34"
    others = [by_name[name].tested.strip("=").removesuffix(".*") for name in ("torch", "ray", "transformers")]
    assert f"| torch, Ray, transformers | {', '.join(others)} |" in page


def test_messages_in_troubleshooting_are_messages_of_the_code():
    """The first column quotes what a user sees: errors, their sentences, metrics and settings that exist."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "tailsieve_verl").rglob("*.py"))
    source += (ROOT / "docs/metrics.md").read_text() + (ROOT / "docs/configuration.md").read_text()
    first = [line.split("|")[1] for line in page.partition("## By symptom")[2].splitlines() if line.startswith("| ")]
    quoted = {part for cell in first for part in cell.split("`")[1::2]}
    theirs = {"Could not find 'tailsieve/default'", "No module named 'tailsieve_verl'"}  # Hydra's and Python's words
    assert len(quoted) > 20
    assert [text for text in quoted - theirs if text not in source and text.partition("/")[0] not in source] == []
