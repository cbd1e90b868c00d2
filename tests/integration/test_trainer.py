"""What the trainer does before an engine starts, on verl's own classes with the data loader's part as a fake."""

from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf

from tailsieve_verl.config.errors import TailSieveConfigError
from tailsieve_verl.config.schema import parse
from tailsieve_verl.core.ledger import Ledger
from tailsieve_verl.core.length_forecast import LengthForecast
from tailsieve_verl.core.lengths import LengthMonitor
from tailsieve_verl.core.policy import PolicyContext
from tailsieve_verl.integration import checkpoint, preflight, prompt_history
from tailsieve_verl.integration import trainer as ours_module
from tailsieve_verl.integration.trainer import PPOTrainerSync, TailSieveTrainer

from .test_speculation import control, drafted, plan

PROMPTS = 8


def dataset(what="question"):
    return [{"raw_prompt": [{"role": "user", "content": f"{what} {i}"}]} for i in range(PROMPTS)]


TOKENIZER = SimpleNamespace(get_vocab=lambda: {"a": 0})


def history(folder, what):
    forecast = LengthForecast()
    keys, tokens = [str(i) for i in range(PROMPTS)], np.full((PROMPTS, 2), 50.0)
    forecast.take_in(3, keys, tokens, np.ones_like(tokens, dtype=bool), np.ones(PROMPTS, dtype=bool))
    prompt_history.save(folder, forecast, prompt_history.fingerprint(dataset(what), TOKENIZER))


@pytest.fixture
def trainer(monkeypatch, tmp_path):
    def data(self):
        self.train_dataset = self.train_dataloader = dataset()
        self.total_training_steps, self.steps_per_epoch = 4, 2

    monkeypatch.setattr(PPOTrainerSync, "_init_dataloader", data)
    ours = TailSieveTrainer.__new__(TailSieveTrainer)
    ours.config = OmegaConf.create(
        {
            "trainer": {"total_epochs": 2, "resume_mode": "auto", "default_local_dir": str(tmp_path / "run")},
            "data": {"max_response_length": 100},
        }
    )
    ours.settings = parse({"selector": "history", "history_from": str(tmp_path / "earlier")})
    ours.n_groups, ours.forecast, ours.tokenizer = 4, LengthForecast(), TOKENIZER
    return ours


def resumed(tmp_path, what):
    """A checkpoint with a history beside it."""
    run = tmp_path / "run"
    history(run / "global_step_2", what)
    (run / "latest_checkpointed_iteration.txt").write_text("2")


def test_an_earlier_run_s_lengths_are_there_before_an_engine_is(trainer, tmp_path, capsys):
    history(tmp_path / "earlier", "question")
    trainer._init_dataloader()
    assert len(trainer.forecast.history) == PROMPTS
    assert "begins with 8 prompts" in capsys.readouterr().out


def test_a_resume_goes_on_with_the_checkpoint_s_lengths_alone(trainer, tmp_path):
    resumed(tmp_path, "question")  # what history_from names is gone by now
    trainer._init_dataloader()
    assert len(trainer.forecast.history) == PROMPTS


@pytest.mark.parametrize("resume", [False, True])
def test_lengths_of_other_prompts_are_refused_before_an_engine_starts(trainer, tmp_path, resume):
    if resume:
        resumed(tmp_path, "puzzle")
    else:
        history(tmp_path / "earlier", "puzzle")
    with pytest.raises(prompt_history.HistoryMismatchError, match="another data set"):
        trainer._init_dataloader()


def test_a_model_that_verl_has_just_read_is_checked_before_an_engine_starts(trainer, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    trainer.settings = parse({"speculation": {"method": "mtp"}})
    trainer.config.actor_rollout_ref = {"model": {"path": str(tmp_path)}}
    monkeypatch.setattr(preflight, "check_versions", lambda: preflight.VLLM_MIN)
    with pytest.raises(TailSieveConfigError, match="names no MTP layers"):
        trainer._init_dataloader()


class SleepyReplicas:
    """verl's checkpoint manager, and our depth control: which is asked first?"""

    def __init__(self):
        self.calls = []

    def sleep_replicas(self):
        self.calls.append("sleep")

    def read(self, plan):
        self.calls.append("read")


def test_engines_say_what_they_drafted_before_they_sleep(trainer):
    engines = SleepyReplicas()
    trainer.depths = trainer.checkpoint_manager = engines
    trainer.curr_step_profile, trainer._step = False, SimpleNamespace(plan=None)
    trainer.on_sample_end()
    assert engines.calls == ["read", "sleep"]


class Quiet:
    """Books, callbacks and a policy that take everything in."""

    context, arrange, rows = PolicyContext(4, 2), None, {}

    def load_state_dict(self, *args, **kwargs):
        pass

    load_steering_state = end = load_state_dict


class ReadyRouter:
    def __init__(self, handle):
        pass

    def wait_ready(self):
        pass


def test_the_depths_that_auto_had_found_survive_a_resume(trainer, tmp_path, monkeypatch):
    """verl reads the checkpoint when the engines exist, and before the trainer's loop is entered."""
    before, _ = control(depth="auto")
    for _ in range(4):
        before.apply(plan(4, 1))
        drafted(before)
    folder = tmp_path / "run/global_step_2"
    books = {"ledger": Ledger().state_dict(), "lengths": LengthMonitor().state_dict(), "stream": {}}
    state = {"n_groups": 4, "policy": {"state": {}}, "speculation": before.state_dict(), **books}
    checkpoint.save(folder, state, {})
    (tmp_path / "run/latest_checkpointed_iteration.txt").write_text("2")
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", lambda self: setattr(self, "global_steps", 2))
    monkeypatch.setattr(PPOTrainerSync, "fit", lambda self, manager: None)
    monkeypatch.setattr(ours_module, "RayRouter", ReadyRouter)
    trainer.settings = parse({"speculation": {"method": "ngram", "depth": "auto"}})
    trainer.config.actor_rollout_ref = {"rollout": {"n": 2, "max_num_seqs": 8}}
    trainer.llm_server_manager = SimpleNamespace(get_replicas=list, global_load_balancer=None)
    trainer.ledger = trainer.stream = trainer.lengths = trainer.callbacks = trainer.policy = Quiet()
    trainer.depths, trainer.forecast, trainer._identity, trainer._history = None, None, {"name": "controller"}, []
    trainer._load_checkpoint()
    trainer.fit(None)
    assert trainer.depths.tables == before.tables
