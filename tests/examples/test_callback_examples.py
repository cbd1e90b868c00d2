"""The examples that extend TailSieve: each is run as its README says, and named in a configuration as it says."""

import importlib
import json
import re
import shlex
from http.server import HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tailsieve_verl.callbacks.build import build_callbacks, build_placement, build_selector
from tailsieve_verl.callbacks.rehearse import rehearse
from tailsieve_verl.config.schema import parse
from tailsieve_verl.core.custom import PlacedGroup, checked_order, checked_slots

from ..config.compose import compose
from ..records.steps import group

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("warmup_pin", "webhook", "tail_selector", "custom_placement")


@pytest.fixture
def load(monkeypatch):
    """Imports an example's module by name, as PYTHONPATH=examples/<name> makes it importable."""

    def loaded(name):
        monkeypatch.syspath_prepend(str(EXAMPLES / name))
        return importlib.import_module(name)

    return loaded


@pytest.mark.parametrize("name", NAMES)
def test_the_command_of_the_readme_is_a_valid_configuration(name, load):
    """The overrides of the README go through Hydra on verl's own configuration, and name classes that can be built."""
    load(name)
    command = re.search(r"PYTHONPATH=(\S+) python -m verl.trainer.main_ppo (.*?)\n\n", readme(name), re.DOTALL)
    assert command[1] == f"examples/{name}"
    overrides = shlex.split(command[2].replace("<your overrides>", "").replace("\\\n", " "))
    settings = parse(compose(*overrides).trainer.v1.tailsieve)
    built = [*build_callbacks(settings), build_placement(settings, "tail"), build_selector(settings)]
    assert any(type(found).__module__ == name for found in built)


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_says_how_to_run_it(name):
    assert f"python examples/{name}/{name}.py" in readme(name)


def readme(name):
    return (EXAMPLES / name / "README.md").read_text()


def test_warmup_pin_holds_the_split_and_gives_it_back(load, capsys):
    module = load("warmup_pin")
    settings = {"policy": "fixed", "q": 2, "m": 1}
    decisions = rehearse([module.WarmupPin(steps=3, q=5, m=2)], steps=6, n_groups=16, settings=settings, strict=True)
    assert [(d.q, d.m) for d in decisions[:5]] == [(5, 2), (5, 2), (2, 1), (2, 1), (2, 1)]
    assert "pinned by WarmupPin (warm-up of 3 steps)" in decisions[0].reason
    uniform = rehearse([module.WarmupPin(steps=3, q=0, m=0)], steps=5, n_groups=16, settings=settings, strict=True)
    assert [d.q for d in uniform[:4]] == [0, 0, 2, 2]
    module.main(steps=2)
    assert capsys.readouterr().out.count("[tailsieve] step") == 2


def test_webhook_posts_changes_and_the_end(load, capsys):
    load("webhook").main(steps=10)
    posted = [json.loads(line.split(" ", 1)[1]) for line in capsys.readouterr().out.splitlines()]
    assert [(e["event"], e["step"]) for e in posted] == [("split", 4), ("split", 8), ("end", 10)]
    assert (posted[0]["q"], posted[0]["m"], posted[-1]["failure"]) == (8, 2, None)


def test_webhook_without_a_server_costs_warnings_and_nothing_else(load, caplog):
    module = load("webhook")
    server = HTTPServer(("127.0.0.1", 0), module.Receiver)
    port = server.server_port
    server.server_close()
    settings = {"policy": "fixed", "q": 2, "m": 1, "schedule": {3: [4, 1]}}
    decisions = rehearse([module.Webhook(f"http://127.0.0.1:{port}/")], steps=4, n_groups=16, settings=settings)
    assert len(decisions) == 4
    assert caplog.text.count("did not take an event") == 2
    assert "switched off" not in caplog.text


def test_webhook_does_not_wait_for_a_slow_server(load):
    module = load("webhook")
    server = HTTPServer(("127.0.0.1", 0), module.Receiver)  # it accepts connections and never answers
    hook = module.Webhook(f"http://127.0.0.1:{server.server_port}/", timeout_s=0.2)
    settings = {"policy": "fixed", "q": 2, "m": 1, "schedule": {3: [4, 1]}}
    runner = Thread(target=rehearse, args=([hook],), kwargs={"steps": 4, "n_groups": 16, "settings": settings})
    runner.start()
    runner.join(30)
    server.server_close()
    assert not runner.is_alive()


def test_tail_selector_orders_every_cut_group(load, capsys):
    module = load("tail_selector")
    cut = [group(i, status="cut", tokens=tokens) for i, tokens in enumerate((30, 90, 60))]
    assert checked_order(module.MostTokens(), cut) == [1, 2, 0]
    default, own = module.main(steps=8, q=8)
    assert 0.5 < default <= 1.0
    assert 0.5 < own <= 1.0
    assert "most tokens first" in capsys.readouterr().out


def test_snake_placement_turns_at_the_ends(load, capsys):
    module = load("custom_placement")
    groups = [PlacedGroup(str(k), 2) for k in range(7)]
    assert [row[0] for row in checked_slots(module.Snake(), groups, 3)] == [0, 1, 2, 2, 1, 0, 0]
    assert checked_slots(module.Snake(), groups, 1) == [(0, 0)] * 7
    means = module.main(steps=4, q=6, m=2)
    assert all(seconds > 0 for seconds in means.values())
    assert "snake" in capsys.readouterr().out
