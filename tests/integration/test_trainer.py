"""What the trainer does before an engine starts, on verl's own classes with the data loader's part as a fake."""

from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf

from tailsieve_verl.config.schema import parse
from tailsieve_verl.core.length_forecast import LengthForecast
from tailsieve_verl.integration import prompt_history
from tailsieve_verl.integration.trainer import PPOTrainerSync, TailSieveTrainer

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
