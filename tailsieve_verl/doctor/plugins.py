"""Whether verl, vLLM and Hydra find us: entry points, environment variables, and one real ``import verl``."""

from __future__ import annotations

from collections.abc import Mapping

from tailsieve_verl.doctor.edge import Machine
from tailsieve_verl.doctor.findings import Section

#: What pyproject.toml declares; a test holds the two together.
EXPECTED = {
    "verl.plugins": "tailsieve_verl.integration.plugin",
    "vllm.general_plugins": "tailsieve_verl.integration.patches:apply_to_vllm",
}
WHY = {
    "verl.plugins": "the trainer mode `tailsieve` is never registered",
    "vllm.general_plugins": "the patches of vLLM's CPU build are not applied",
}
REINSTALL = "install TailSieve again into this environment (pip install -e . for a checkout)"
SEARCH_PATH = "hydra_plugins.tailsieve_search_path"


def check_plugins(machine: Machine, environ: Mapping[str, str], *, with_import: bool) -> Section:
    """Findings on the plug-ins.

    Args:
        environ: the environment of the command that is examined.
        with_import: also import verl, in a process of its own.
    """
    section = Section("Plug-ins")
    for group, value in EXPECTED.items():
        _check_entry_point(machine, group, value, section)
    if machine.finds_module(SEARCH_PATH):
        section.ok("Hydra finds the presets (+tailsieve=...)")
    else:
        section.error(f"Hydra does not find {SEARCH_PATH}: +tailsieve=default is unknown.", REINSTALL)
    policy = environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto").strip().lower()
    if policy != "auto" and "tailsieve" not in {name.strip() for name in policy.split(",")}:
        section.error(
            f"VERL_USE_EXTERNAL_PLUGINS={policy} keeps verl from loading TailSieve's plug-in.",
            "unset it, or add tailsieve to it",
        )
        return section
    allowed = environ.get("VLLM_PLUGINS")
    if allowed is not None and "tailsieve" not in {name.strip() for name in allowed.split(",")}:
        _vllm_plugins(environ, allowed, section)
    if with_import and not section.failed:
        loaded, said = machine.ask_verl(environ)
        if loaded:
            section.ok("verl loads the plug-in (tried: import verl)")
        else:
            section.error(f"verl does not load the plug-in{': ' + said if said else ''}.", REINSTALL)
    return section


def _check_entry_point(machine: Machine, group: str, value: str, section: Section) -> None:
    ours = [point for point in machine.entry_points(group) if point.name == "tailsieve"]
    if not ours:
        section.error(
            f"no entry point {group}: tailsieve in the installed package, so {WHY[group]}. "
            f"The package was installed before pyproject.toml named it, or into another environment.",
            REINSTALL,
        )
    elif any(point.value != value for point in ours):
        wrong = next(point for point in ours if point.value != value)
        section.error(
            f"entry point {group}: tailsieve of {wrong.distribution} is {wrong.value}, expected {value}: "
            f"the installation is older than the code.",
            REINSTALL,
        )
    elif len(ours) > 1:
        section.warning(
            f"entry point {group}: tailsieve is installed {len(ours)} times.",
            "pip uninstall tailsieve_verl until it says that it is not installed, then install it once",
        )
    else:
        section.ok(f"entry point {group}: tailsieve")


def _vllm_plugins(environ: Mapping[str, str], allowed: str, section: Section) -> None:
    text = f"VLLM_PLUGINS={allowed} keeps vLLM from loading TailSieve's patches"
    if environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        section.error(f"{text}, which its CPU build needs.", "unset it, or add tailsieve to it")
    else:
        section.note(f"{text}; only its CPU build needs them.")
