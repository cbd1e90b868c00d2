"""The user's verl command: taken apart, and its configuration composed by Hydra without running it."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from hydra import compose as hydra_compose
from hydra import initialize_config_dir, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from tailsieve_verl.doctor.source import Source
from tailsieve_verl.errors import UserError

MAIN = "verl.trainer.main_ppo"
PRESET = "+tailsieve="
EXAMPLE = f"tailsieve doctor -- python -m {MAIN} <your overrides> {PRESET}default"
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"python[0-9.]*")
#: Options of the interpreter that take a value.
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")


class CommandError(UserError):
    """The command, or its configuration, cannot be read; one sentence."""


@dataclass(frozen=True)
class Command:
    """A Python command that starts verl.

    Attributes:
        python: the interpreter as typed.
        module, script: what it runs, one of the two.
        overrides: Hydra overrides in order.
        config_path, config_name, config_dir: Hydra's options of these names, if given.
        sweep: whether Hydra is asked for several jobs.
        environ: variables set in front of the command.
    """

    python: str
    module: str | None = None
    script: Path | None = None
    overrides: tuple[str, ...] = ()
    config_path: str | None = None
    config_name: str | None = None
    config_dir: str | None = None
    sweep: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def asks_for_tailsieve(self) -> bool:
        return any(o.lstrip("+").startswith("tailsieve=") for o in self.overrides)

    def with_preset(self, preset: str = "default") -> Command:
        return replace(self, overrides=(*self.overrides, f"{PRESET}{preset}"))


def parse_command(words: Sequence[str]) -> Command:
    """Take a command line apart.

    Whatever stands before the interpreter (``nohup``, ``ray job submit ... --``) is passed over; assignments among it
    count as environment.

    Raises:
        CommandError: it runs no Python program.
    """
    if len(words) == 1 and " " in words[0].strip():
        try:
            words = shlex.split(words[0], comments=True)
        except ValueError as error:
            raise CommandError(f"the command cannot be split into words ({error}); check its quotes.") from None
    words = [word for word in words if word.strip() and word != "\\"]
    start = next((i for i, word in enumerate(words) if _PYTHON.fullmatch(Path(word).name)), None)
    if start is None:
        shown = " ".join(words[:3])
        raise CommandError(
            f"the command ({shown}{' ...' if len(words) > 3 else ''}) does not start Python; put the doctor in front "
            f"of the python line of your script: {EXAMPLE}."
        )
    environ = dict(word.split("=", 1) for word in words[:start] if _ASSIGNMENT.match(word))
    python, rest = words[start], list(words[start + 1 :])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        del rest[: 2 if rest[0] in _WITH_VALUE else 1]
    if rest[:1] == ["-m"] and len(rest) > 1:
        program = Command(python, module=rest[1], environ=environ)
        rest = rest[2:]
    elif rest and rest[0].endswith(".py"):
        program = Command(python, script=Path(rest[0]), environ=environ)
        rest = rest[1:]
    else:
        raise CommandError(f"the command names no program to run; write it as in: {EXAMPLE}.")
    return _hydra_options(program, rest)


def compose(command: Command, source: Source) -> DictConfig:
    """The configuration that the command would run with.

    Raises:
        CommandError: the program declares no Hydra configuration, or it does not compose.
    """
    if command.sweep:
        raise CommandError("the command asks Hydra for a sweep (--multirun); give the overrides of one of its jobs.")
    path, name, folder = _declared(command, source)
    path, name = command.config_path or path, command.config_name or name
    if name is None:
        raise CommandError("the program names no configuration; add --config-name.")
    overrides = list(command.overrides)
    if command.config_dir:
        overrides.append(f"hydra.searchpath=[file://{Path(command.config_dir).resolve()}]")
    with _environment(command.environ):
        GlobalHydra.instance().clear()
        try:
            start: AbstractContextManager[None]
            if path is not None and path.startswith("pkg://"):
                start = initialize_config_module(path.removeprefix("pkg://").replace("/", "."), version_base=None)
            else:
                start = initialize_config_dir(str((folder / (path or ".")).resolve()), version_base=None)
            with start:
                return hydra_compose(name, overrides=overrides)
        except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
            said = " ".join(line.strip() for line in str(error).splitlines()[:2] if line.strip())
            raise CommandError(f"the configuration does not compose: {said}") from None
        finally:
            GlobalHydra.instance().clear()


@contextmanager
def _environment(extra: Mapping[str, str]) -> Iterator[None]:
    saved = dict(os.environ)
    os.environ.update(extra)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved)


environment = _environment


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandError(f"Hydra's options cannot be read: {message}; see python -m {MAIN} --help.")


def _hydra_options(program: Command, words: list[str]) -> Command:
    parser = _Parser(add_help=False, allow_abbrev=False)
    valued = [("--config-path", "-cp"), ("--config-name", "-cn"), ("--config-dir", "-cd")]
    parser.add_argument("--multirun", "-m", action="store_true")
    # Passed over: they change what Hydra prints, not what it composes.
    valued += [("--cfg", "-c"), ("--package", "-p"), ("--info", "-i")]
    switches = [("--resolve", "--resolve"), ("--run", "-r"), ("--help", "-h"), ("--hydra-help", "--hydra-help")]
    for long, short in valued:
        parser.add_argument(long, short)
    for long, short in switches:
        parser.add_argument(long, short, action="store_true")
    parser.add_argument("overrides", nargs="*")
    found = parser.parse_intermixed_args(words)
    return replace(
        program,
        overrides=tuple(found.overrides),
        config_path=found.config_path,
        config_name=found.config_name,
        config_dir=found.config_dir,
        sweep=found.multirun,
    )


def _declared(command: Command, source: Source) -> tuple[str | None, str | None, Path]:
    """``config_path`` and ``config_name`` of the program's ``@hydra.main``, and the folder of its file."""
    if command.module is not None:
        file = source.file(command.module) or _in_working_folder(command.module)
        if file is not None and file.name == "__init__.py" and (file.parent / "__main__.py").exists():
            file = file.parent / "__main__.py"
        if file is None:
            raise CommandError(f"python -m {command.module}: there is no such module here; check its name.")
    else:
        assert command.script is not None
        file = command.script
        if not file.is_file():
            raise CommandError(f"{file} does not exist; run the doctor where the command runs.")
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise CommandError(f"{file} cannot be read: {error}.") from None
    for node in ast.walk(tree):
        for decorator in getattr(node, "decorator_list", []):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in ("hydra.main", "main"):
                names = dict(zip(("config_path", "config_name"), decorator.args, strict=False))
                names |= {k.arg: k.value for k in decorator.keywords if k.arg}
                return _text(names.get("config_path")), _text(names.get("config_name")), file.parent
    raise CommandError(
        f"{file} has no @hydra.main, so its configuration cannot be composed; give a command of {MAIN}, or of a "
        f"program like it."
    )


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _in_working_folder(module: str) -> Path | None:
    base = Path(*module.split("."))
    return next((f for f in (base / "__init__.py", base.with_suffix(".py")) if f.is_file()), None)
