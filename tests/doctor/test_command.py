from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tailsieve_verl.doctor.command import CommandError, compose, parse_command
from tailsieve_verl.doctor.edge import Machine
from tailsieve_verl.doctor.source import Source

VERL = Source({"verl": Machine().package_folder("verl")})
PLAIN = ["python3", "-m", "verl.trainer.main_ppo"]


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        ([*PLAIN, "a=1", "+tailsieve=default"], {}),
        (["A=1", "B=x=y", *PLAIN, "a=1", "+tailsieve=default"], {"A": "1", "B": "x=y"}),
        (
            ["nohup", "env", "A=1", "/opt/venv/bin/python3.11", "-u", "-X", "dev", *PLAIN[1:], "a=1", "+tailsieve=x"],
            {"A": "1"},
        ),
        (["ray", "job", "submit", "--address=http://h:1", "--", *PLAIN, "a=1", "+tailsieve=default"], {}),
        (["A=1 python -m verl.trainer.main_ppo \\\n  a=1 '+tailsieve=default'  # a remark"], {"A": "1"}),
        ([*PLAIN, "--config-name", "c", "a=1", "-cp", "d", "+tailsieve=mtp", "--cfg", "job"], {}),
    ],
)
def test_commands_as_people_write_them(words, environ):
    command = parse_command(words)
    assert command.module == "verl.trainer.main_ppo"
    assert command.overrides[0] == "a=1"
    assert command.asks_for_tailsieve
    assert command.environ == environ


def test_hydra_s_options():
    command = parse_command(
        ["python", "train.py", "--config-path=conf", "-cn", "mine", "-m", "a=1,2", "~b", "-cd", "x"]
    )
    assert command.script == Path("train.py")
    assert (command.config_path, command.config_name, command.config_dir) == ("conf", "mine", "x")
    assert command.sweep
    assert command.overrides == ("a=1,2", "~b")
    assert not command.asks_for_tailsieve


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bash", "run_qwen.sh"], r"the command \(bash run_qwen.sh\) does not start Python; put the doctor in front"),
        (["python"], "names no program to run"),
        (["python", "-c", "print()"], "names no program to run"),
        (["python 'a"], "cannot be split into words .* check its quotes"),
        ([*PLAIN, "--config-name"], "Hydra's options cannot be read"),
    ],
)
def test_what_is_no_command(words, said):
    with pytest.raises(CommandError, match=said):
        parse_command(words)


def composed(*overrides):
    return compose(parse_command([*PLAIN, *overrides]), VERL)


def test_compose_as_main_ppo_would():
    config = composed("actor_rollout_ref.rollout.name=vllm", "+tailsieve=fixed", "trainer.v1.tailsieve.q=3")
    assert config.trainer.v1.trainer_mode == "tailsieve"
    assert config.trainer.v1.tailsieve.q == 3
    assert config.actor_rollout_ref.rollout.name == "vllm"


def test_a_command_s_variables_are_seen_and_forgotten(monkeypatch):
    monkeypatch.delenv("MY_RUNS", raising=False)
    command = parse_command(["MY_RUNS=there", *PLAIN, "trainer.default_local_dir=${oc.env:MY_RUNS}/x"])
    config = compose(command, VERL)
    with pytest.raises(Exception, match="MY_RUNS"):
        OmegaConf.to_container(config.trainer, resolve=True)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["+tailsieve=defualt"], "does not compose: .*tailsieve/defualt"),
        (["data.train_batchsize=8"], "does not compose: .*train_batchsize"),
        (["trainer.nnodes=[1"], "does not compose: "),
        (["--config-name=none_such"], "does not compose: .*none_such"),
        (["--multirun", "trainer.nnodes=1,2"], "asks Hydra for a sweep"),
    ],
)
def test_what_does_not_compose(overrides, said):
    with pytest.raises(CommandError, match=said) as error:
        composed(*overrides)
    assert "\n" not in str(error.value)


def test_a_program_of_the_user_s_own(tmp_path, monkeypatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/mine.yaml").write_text("defaults:\n  - extra: a\n  - _self_\nsize: 3\n")
    (tmp_path / "more/extra").mkdir(parents=True)
    (tmp_path / "more/extra/a.yaml").write_text("kind: a\n")
    (tmp_path / "train.py").write_text(
        "import hydra\n@hydra.main(config_path='conf', config_name='mine', version_base=None)\ndef main(config): ...\n"
    )
    (tmp_path / "plain.py").write_text("print()\n")
    monkeypatch.chdir(tmp_path)
    for words in (["python", "train.py"], ["python", "-m", "train"]):
        config = compose(parse_command([*words, "size=4", "--config-dir", "more"]), Source({}))
        assert OmegaConf.to_container(config) == {"extra": {"kind": "a"}, "size": 4}
    with pytest.raises(CommandError, match=r"plain.py has no @hydra.main"):
        compose(parse_command(["python", "plain.py"]), Source({}))
    with pytest.raises(CommandError, match=r"none.py does not exist"):
        compose(parse_command(["python", "none.py"]), Source({}))
    with pytest.raises(CommandError, match=r"there is no such module"):
        compose(parse_command(["python", "-m", "none.such"]), Source({}))
