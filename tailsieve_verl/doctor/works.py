"""What works with the versions at hand and what does not, so that nobody finds out by an error after an hour."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.version import Version

from tailsieve_verl.config.schema import TailSieveConfig
from tailsieve_verl.doctor.findings import Section
from tailsieve_verl.integration.speculation_checks import HYBRID_DEPTH_0, RUNNER, V2_HONOURS_DEPTH

NEVER = (
    "Does not work, with any version: DAPO group filtering, asynchronous and disaggregated rollouts, rollout engines "
    "other than vLLM."
)


def check_works(
    versions: Mapping[str, Version], environ: Mapping[str, str], settings: TailSieveConfig | None
) -> Section:
    """Findings on features by version.

    Args:
        settings: of the command, if there is one: without speculation its limits are left out.
    """
    section = Section("What works")
    if "verl" in versions:
        section.ok("Two-pool routing, cut, carried prompts, resume: yes")
    vllm = versions.get("vllm")
    if vllm is not None and (settings is None or settings.speculation.enabled):
        _speculation(vllm, environ, section)
    if environ.get("VERL_PLATFORM", "").strip().lower() == "cpu":
        section.note("On the CPU platform engines do not sleep, and two replicas show that it works, not that it pays.")
    section.note(NEVER)
    return section


def _speculation(vllm: Version, environ: Mapping[str, str], section: Section) -> None:
    v2 = environ.get(RUNNER) == "1"
    if not v2 and vllm < V2_HONOURS_DEPTH:
        section.ok(
            f"Draft depths changed at run time (vLLM {vllm}): yes, on model runner V1, which engines are started with"
        )
    elif not v2:
        section.ok(f"Draft depths changed at run time (vLLM {vllm}): yes")
    elif vllm >= V2_HONOURS_DEPTH:
        section.ok(f"Draft depths changed at run time (vLLM {vllm}, model runner V2): yes")
    else:
        section.warning(
            f"Draft depths changed at run time: model runner V2 ignores them before vLLM {V2_HONOURS_DEPTH}.",
            f"unset {RUNNER}, or set trainer.v1.tailsieve.speculation.control=launch",
        )
    if vllm < HYBRID_DEPTH_0:
        section.note(
            f"Depth 0 on models with linear attention: not before vLLM {HYBRID_DEPTH_0}; `auto` is refused for them."
        )
    section.note(
        "Of the drafters, n-gram, MTP and a draft model were run in verl, DFlash and EAGLE-3 in a plain engine; "
        "all of it on vLLM's CPU build."
    )
