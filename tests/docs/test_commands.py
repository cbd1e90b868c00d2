"""Every shell command of the pages is known: it runs here, runs in another test, or is looked up word by word.

Looked up means: targets of make, files, options of scripts and of ``tailsieve``, extras of pip, and verl overrides,
which must compose. A command that needs GPUs carries the mark.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import pytest
import typer
from omegaconf import DictConfig
from typer.testing import CliRunner

from tailsieve_verl.cli import main as cli
from tailsieve_verl.doctor.command import compose, parse_command
from tailsieve_verl.doctor.edge import Machine
from tailsieve_verl.doctor.source import Source
from tailsieve_verl.workloads.cpu_run import CpuRun

from ..advise.dumps import write_dump
from .pages import GPU_MARK, ROOT, Command, all_pages, commands, spans, spoken_commands

PAGES = all_pages()
VERL = Source({"verl": Machine().package_folder("verl")})
#: Too long for here, by the first words: the test that runs it, or the same code in short; or, for what is run by hand,
#: the folder that it belongs to.
RUN_ELSEWHERE = {
    "make setup": ".ci/run",
    "make lint": ".ci/run",
    "make test": ".ci/run",
    "make demo": "tests/end_to_end/test_run.py",
    "make compare": "tests/end_to_end/test_run.py",
    "make test-resume": "tests/end_to_end/test_resume.py",
    "make bench": "benchmarks",
    "make docs": "tests/docs/test_site.py",
    "mkdocs build": "tests/docs/test_site.py",
    "python scripts/docs_configuration.py": "tests/docs/test_generated.py",
    "python scripts/docs_example.py": "tests/docs/test_generated.py",
    "python scripts/docs_drawings.py": "tests/docs/test_generated.py",
    "python examples/cpu_demo": "tests/end_to_end/test_run.py",
    **dict.fromkeys(
        (f"python examples/{name}" for name in ("custom_placement", "tail_selector", "warmup_pin", "webhook")),
        "tests/examples/test_callback_examples.py",
    ),
    "python recipes/paper/offline": "tests/recipes/test_offline.py",
    "python recipes/fidelity": "recipes/fidelity/results",
    "python recipes/prompt_history": "tests/recipes/test_prompt_history.py",
    "python recipes/speculation": "recipes/speculation",
    "python benchmarks": "benchmarks",
    "python -m pytest": ".ci/run",
    "pytest": ".ci/run",
    "bash recipes": "tests/recipes/test_recipes.py",
    "tailsieve data": "tests/cli/test_data.py",
    "tailsieve evaluate": "tests/cli/test_evaluate.py",
    "tailsieve compare": "tests/cli/test_compare.py",
    "tailsieve report": "tests/cli/test_report.py",
    "tailsieve calibrate": "tests/cli/test_calibrate_replay.py",
    "tailsieve replay": "tests/cli/test_calibrate_replay.py",
}
#: Pages whose quick commands are run here, in the order of the page and in one folder.
RUN_HERE = ["docs/quickstart.md", "docs/simulation.md", "docs/when-it-helps.md", "docs/troubleshooting.md"]


#: typer brings a click of its own from 0.29 on.
ClickError = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
#: What stands for the reader's own in a command that is run.
VALUES = {"R": "8"}
#: Fewer steps than the page says: the same code, sooner. The last of an option counts.
SHORT = {"simulate": ["--steps", "4", "--seeds", "1"], "advise": ["--steps", "20", "--seeds", "2", "--halves", "4"]}


@pytest.fixture(scope="module")
def tailsieve():
    cli._register()
    return typer.main.get_command(cli.app)


def option_of(folder: Path, option: str) -> bool:
    return any(option in file.read_text() for file in folder.glob("*.py"))


def known_make(command: Command) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in (word for word in command.words[1:] if "=" not in word):
        assert re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE), f"make has no target {target}"


def known_pip(command: Command) -> None:
    assert command.words[1] in ("install", "uninstall", "check"), "pip what?"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in re.findall(r"(?:tailsieve_verl|\.)\[([\w,]+)\]", command.text):
        assert set(extras.split(",")) <= set(project["optional-dependencies"]), f"no extra {extras}"


def known_python(command: Command) -> None:
    words = list(command.words[1:])
    if words[:1] == ["-m"]:
        {"verl.trainer.main_ppo": known_verl, "pytest": known_pytest, "build": lambda c: None}[words[1]](command)
        return
    path = ROOT / words[0]
    if "PLACEHOLDER" in words[0]:
        path = ROOT / words[0].rpartition("/")[0]
        assert path.is_dir(), f"{path} does not exist"
        path = next(path.glob("*.py"))
    assert path.is_file(), f"{words[0]} does not exist"
    for option in re.findall(r"--[a-z][a-z-]*", " ".join(words[1:])):
        assert option_of(path.parent, option), f"{words[0]} has no option {option}"


def known_pytest(command: Command) -> None:
    for word in command.words[1:]:
        if word.startswith("tests"):
            assert (ROOT / word.partition("::")[0]).exists(), f"{word} does not exist"


@lru_cache
def composed(*overrides: str) -> DictConfig:
    run = CpuRun(model=Path("model"), data=Path("data"), out=Path("out"), n_groups=64, n=8, replicas=8)
    return compose(parse_command([*run.command(), *overrides]), VERL)


def known_verl(command: Command) -> None:
    """Its own overrides on top of a complete command, as they would be on top of the reader's."""
    own = parse_command([word for word in command.words if word != "PLACEHOLDER"])
    overrides = tuple(re.sub("PLACEHOLDER", "default", override) for override in own.overrides)
    mode = composed(*overrides).trainer.v1.trainer_mode
    assert mode == "tailsieve" or not own.asks_for_tailsieve


def known_bash(command: Command) -> None:
    assert (ROOT / command.words[1]).is_file(), f"{command.words[1]} does not exist"


def known_tailsieve(command: Command, group) -> None:
    """Parsed by the real parser; what is the reader's to fill in stands for 1."""
    words = ["1" if re.fullmatch(r"[A-Z]+", word) and word != "PLACEHOLDER" else word for word in command.words[1:]]
    if "PLACEHOLDER" in words and words[0] not in ("doctor", "advise", "replay", "trace"):
        assert words[0] in group.commands, f"no such subcommand: {words[0]}"
        return
    if words[0] == "doctor" and "--" in words:
        inner = words[words.index("--") + 1 :]
        assert inner[:1] in ([], ["PLACEHOLDER"]) or parse_command(inner)
        if inner and inner[0] != "PLACEHOLDER":
            known_verl(Command(command.page, command.text, tuple(inner)))
    current, rest, name = group, words, "tailsieve"
    while hasattr(current, "commands"):
        assert rest, f"{name}: which subcommand?"
        assert rest[0] in current.commands, f"no such subcommand: {rest[0]}"
        name, rest = rest[0], rest[1:]
        current = current.commands[name]
    current.make_context(name, rest)


def check(command: Command, group) -> None:
    known: dict[str, Callable[[Command], None]] = {
        "make": known_make,
        "pip": known_pip,
        "python": known_python,
        "python3": known_python,
        "pytest": known_pytest,
        "bash": known_bash,
        "source": lambda c: None,
        "git": lambda c: None,
        "[": lambda c: None,
        "mkdocs": lambda c: None,
        "tailsieve": lambda c: known_tailsieve(c, group),
    }
    assert command.program in known, f"what is {command.program}?"
    known[command.program](command)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_known(page, tailsieve):
    wrong = []
    for command in (*commands(page), *spoken_commands(page)):
        try:
            check(command, tailsieve)
        except (AssertionError, KeyError, ClickError, ValueError) as error:
            said = error.format_message() if isinstance(error, ClickError) else str(error).splitlines()[0]
            wrong.append(f"{command.text}: {said}")
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_files_that_the_text_names_exist(page):
    named = {word.partition("::")[0] for span in spans(page) for word in span.split()}
    paths = [word for word in named if re.fullmatch(r"[a-z]\w*(/[\w-]+)+\.(py|md|sh|yaml)", word)]
    ours = [path for path in paths if not path.startswith(("verl/", "vllm/"))]
    roots = (ROOT, ROOT / "tailsieve_verl", (ROOT / page).parent)
    assert [path for path in ours if not any((root / path).is_file() for root in roots)] == []


def elsewhere(command: Command) -> str | None:
    """The test, or the place, that runs a command; ``None`` if nothing does."""
    text = " ".join([command.program, *command.words[1:]])
    return next((where for words, where in RUN_ELSEWHERE.items() if text.startswith(words)), None)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_run_or_needs_gpus_or_is_the_reader_s_to_complete(page):
    left = [
        command.text
        for command in commands(page)
        if not command.needs_gpus
        and not command.has_placeholder
        and not (page in RUN_HERE and command.program == "tailsieve")
        and command.program not in ("source", "pip", "git", "[")
        and elsewhere(command) is None
    ]
    assert left == [], f"mark the block with {GPU_MARK!r}, run it here, or say where it is run"


def test_the_places_that_run_commands_exist():
    assert [where for where in RUN_ELSEWHERE.values() if not (ROOT / where).exists()] == []


@pytest.mark.parametrize("page", RUN_HERE)
def test_quick_commands_run(page, tmp_path, monkeypatch, tailsieve):
    monkeypatch.chdir(tmp_path)
    write_dump(
        tmp_path / "DUMP",
        {step: [(f"question {step} {g}", [20 + 7 * ((g * k + step) % 9) for k in range(4)]) for g in range(8)]
         for step in range(1, 5)},
    )  # fmt: skip
    make = ["trace", "make", "lengths.csv", "--prompts", "64", "--samples", "8"]
    assert CliRunner().invoke(cli.app, make).exit_code == 0
    ran = 0
    for command in commands(page):
        if command.program != "tailsieve" or command.needs_gpus or command.names_a_run or elsewhere(command):
            continue
        words = [VALUES.get(word, word) for word in command.words[1:] if word != "PLACEHOLDER"]
        if words[0] == "doctor" and "--" in words:
            if "PLACEHOLDER" in command.words[command.words.index("--") + 1 : command.words.index("--") + 2]:
                continue
            run = CpuRun(model=Path("model"), data=Path("data"), out=Path("out"), replicas=8)
            words = [*words[: words.index("--") + 1], *run.command("+tailsieve=default")]
        if words[0] == "doctor" and "--no-import" not in words:
            words.insert(1, "--no-import")
        result = CliRunner().invoke(cli.app, [*words, *SHORT.get(words[0], [])])
        assert result.exit_code == 0, f"{command.text}: {result.output[-500:]} {result.exception}"
        ran += 1
    assert ran


PAGE = """
```bash
# needs GPUs
python -m verl.trainer.main_ppo <your overrides> +tailsieve=default
```

```bash
FOO=1 make demo && tailsieve simulate \\
  --steps 3  # a remark
```

    make demo     # about six minutes
    trainer.v1.tailsieve.q=3
    python recipes/x.py --quick        what it is for

```python
print("make nothing")
```
"""


def test_commands_are_found_in_pages():
    found = list(commands("docs/x.md", PAGE))
    assert [command.text_of_words for command in found] == [
        "python -m verl.trainer.main_ppo PLACEHOLDER +tailsieve=default",
        "make demo",
        "tailsieve simulate --steps 3",
        "make demo",
        "python recipes/x.py --quick",
    ]
    assert [command.needs_gpus for command in found] == [True, False, False, False, False]
    assert found[1].environ == {"FOO": "1"}


@pytest.mark.parametrize(
    "text",
    [
        *("make nothing", "tailsieve simulat", "tailsieve simulate --step 3", "tailsieve trace", "python none.py"),
        *("python examples/cpu_demo/demo.py --not-there", "pip install '.[none]'", "bash none.sh", "frobnicate"),
        *("python -m verl.trainer.main_ppo +tailsieve=defualt", "python -m verl.trainer.main_ppo data.no_such=1"),
        *("tailsieve doctor --nothing -- python -m x", "tailsieve doctor -- python", "pytest tests/none.py"),
    ],
)
def test_what_is_wrong_is_noticed(text, tailsieve):
    (command,) = commands("docs/x.md", f"```bash\n{text}\n```\n")
    with pytest.raises((AssertionError, KeyError, ClickError, ValueError)):
        check(command, tailsieve)
