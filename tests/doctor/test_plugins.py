import tomllib
from pathlib import Path

import pytest

from tailsieve_verl.doctor.edge import EntryPoint, Machine
from tailsieve_verl.doctor.plugins import EXPECTED, check_plugins

from .machine import FakeMachine


def errors(machine, environ=None, status="error"):
    section = check_plugins(machine, environ or machine.environ, with_import=True)
    return [finding.text for finding in section.findings if finding.status == status]


def test_expected_is_what_pyproject_declares():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = {group: points["tailsieve"] for group, points in project["entry-points"].items()}
    assert declared == EXPECTED


def test_the_installed_entry_points_are_right():
    machine = Machine()
    section = check_plugins(machine, machine.environ, with_import=False)
    assert {finding.status for finding in section.findings} == {"ok"}


def test_all_right():
    assert errors(FakeMachine()) == []


def test_an_install_that_is_older_than_pyproject():
    (text,) = errors(FakeMachine(entry_points={"vllm.general_plugins": []}))
    assert "no entry point vllm.general_plugins: tailsieve in the installed package" in text
    assert "installed before pyproject.toml named it" in text


def test_an_entry_point_of_an_older_layout():
    old = EntryPoint("tailsieve", "tailsieve_verl.plugin", "tailsieve_verl")
    (text,) = errors(FakeMachine(entry_points={"verl.plugins": [old]}))
    assert "is tailsieve_verl.plugin, expected tailsieve_verl.integration.plugin" in text


def test_two_installations():
    twice = [EntryPoint("tailsieve", EXPECTED["verl.plugins"], name) for name in ("tailsieve_verl", "tailsieve-verl")]
    assert "installed 2 times" in errors(FakeMachine(entry_points={"verl.plugins": twice}), status="warning")[0]


@pytest.mark.parametrize(
    ("value", "wrong"), [("none", True), ("other", True), ("auto", False), ("x, tailsieve", False)]
)
def test_verl_is_told_to_leave_us_out(value, wrong):
    machine = FakeMachine(environ={"VERL_USE_EXTERNAL_PLUGINS": value})
    said = errors(machine)
    assert bool(said) == wrong
    if wrong:
        assert f"VERL_USE_EXTERNAL_PLUGINS={value} keeps verl from loading" in said[0]
        assert machine._imports == []  # nothing to learn from seconds of importing


def test_verl_does_not_load_it_and_hides_why():
    said = errors(FakeMachine(verl_says=(False, "ModuleNotFoundError: No module named 'x'")))
    assert said == ["verl does not load the plug-in: ModuleNotFoundError: No module named 'x'."]


def test_vllm_plugins_matter_on_the_cpu_only():
    on_gpu = {"VLLM_PLUGINS": "lora"}
    assert errors(FakeMachine(environ=on_gpu)) == []
    assert "keeps vLLM from loading" in errors(FakeMachine(environ={**on_gpu, "VERL_PLATFORM": "cpu"}))[0]
