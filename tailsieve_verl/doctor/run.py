"""A whole diagnosis: the checks in order, each given what the ones before it found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tailsieve_verl.config.errors import PREFIX, TailSieveConfigError
from tailsieve_verl.config.schema import TailSieveConfig, parse
from tailsieve_verl.doctor.command import Command, CommandError, compose, environment, parse_command
from tailsieve_verl.doctor.edge import Machine
from tailsieve_verl.doctor.findings import Report, Section, report
from tailsieve_verl.doctor.plugins import check_plugins
from tailsieve_verl.doctor.seams import Use, check_seams
from tailsieve_verl.doctor.sizes import check_sizes
from tailsieve_verl.doctor.source import Source
from tailsieve_verl.doctor.versions import check_versions
from tailsieve_verl.doctor.works import check_works
from tailsieve_verl.integration import checkpoint, preflight


def diagnose(
    words: Sequence[str] = (),
    machine: Machine | None = None,
    *,
    with_import: bool = True,
    gpu_memory_gib: float | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Examine the environment, and the verl command if one is given.

    Args:
        words: the command, word by word.
        with_import: also import verl once, in a process of its own (4 to 10 seconds).
        gpu_memory_gib: memory of a device, where this machine has none.
        say: told before something that takes seconds.
    """
    machine = machine or Machine()
    asked = Section("Your command")
    command = _parsed(words, asked)
    environ = {**machine.environ, **(command.environ if command is not None else {})}
    versions, found = check_versions(machine)
    if with_import:
        say("importing verl in a process of its own (some seconds; --no-import leaves it out)")
    plugins = check_plugins(machine, environ, with_import=with_import and "verl" in found)
    config = settings = None
    if command is not None:
        _check_interpreter(machine, command, asked)
        config, settings = _check_command(machine, command, asked)
    uses: list[Use] = ["always"]
    if settings is not None and settings.speculation.enabled:
        uses.append("speculation")
    if environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        uses.append("cpu")
    sections = [versions, plugins, check_seams(machine, uses)]
    if command is not None or asked.findings:
        sections.append(asked)
    if config is not None and settings is not None:
        gpus = [gpu_memory_gib] if gpu_memory_gib is not None else machine.gpu_memory_gib()
        sections.append(check_sizes(config, settings, gpus))
    sections.append(check_works(found, environ, settings))
    return report(sections)


def _parsed(words: Sequence[str], section: Section) -> Command | None:
    if not words:
        return None
    try:
        return parse_command(words)
    except CommandError as error:
        section.error(_sentence(error))
        return None


def _check_interpreter(machine: Machine, command: Command, section: Section) -> None:
    """Two environments on one machine: the doctor would examine the wrong one."""
    path = machine.which(command.python) if "/" not in command.python else command.python
    if path is None:
        section.warning(f"{command.python} is not on the PATH here.", "activate the environment that runs verl")
        return
    prefix = machine.prefix_of(path)
    if prefix is None:
        section.warning(f"{path} does not run here.", "activate the environment that runs verl")
    elif Path(prefix).resolve() != Path(machine.prefix).resolve():
        section.warning(
            f"the command runs in {prefix}, but the doctor in {machine.prefix}: it examined another environment.",
            f"{path} -m tailsieve_verl.cli.main doctor -- <your command>",
        )


def _check_command(
    machine: Machine, command: Command, section: Section
) -> tuple[DictConfig | None, TailSieveConfig | None]:
    """Compose and validate; the configuration and the settings if both are right."""
    folders = {}
    if command.module is not None:
        package = command.module.partition(".")[0]
        if (folder := machine.package_folder(package)) is not None:
            folders[package] = folder
    source = Source(folders)
    try:
        config = compose(command, source)
        # A preset may come from a configuration of the user's own as well as from the command line.
        if OmegaConf.select(config, PREFIX) is None and not command.asks_for_tailsieve:
            section.warning("it does not ask for TailSieve; examined as if it did.", "append +tailsieve=default")
            config = compose(command.with_preset(), source)
    except CommandError as error:
        section.error(_sentence(error))
        return None, None
    section.ok("its configuration composes")
    with environment(command.environ), _warnings(section):
        try:
            OmegaConf.resolve(config)  # as verl does at its start; variables of the command are known here only
            preflight.check(config)
            raw = OmegaConf.select(config, PREFIX)
            settings = parse(OmegaConf.to_container(raw, resolve=True))  # type: ignore[arg-type]
        except (TailSieveConfigError, checkpoint.CheckpointError) as error:
            section.error(_sentence(error), "mend it and ask again: the first error is the only one shown")
            return config, None
        except OmegaConfBaseException as error:
            section.error(f"a value cannot be resolved: {str(error).splitlines()[0]}")
            return config, None
    section.ok("its settings are valid")
    return config, settings


@contextmanager
def _warnings(section: Section) -> Iterator[None]:
    """The checks' logged warnings become findings."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            section.warning(_sentence(record.getMessage().removeprefix("tailsieve: ")))

    handler, logger = Handler(logging.WARNING), logging.getLogger("tailsieve_verl")
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _sentence(error: object) -> str:
    return " ".join(str(error).split())
