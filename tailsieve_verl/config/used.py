"""Settings that would say nothing: what the chosen policy or selector does not read is refused, not ignored.

``uniform_group`` is let off: it is what a command is compared with, as the command stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailsieve_verl.config.errors import PREFIX, TailSieveConfigError
from tailsieve_verl.config.targets import Target

#: The selectors that read a setting.
SELECTOR_SETTINGS = {
    "history_from": ("history", "auto"),
    "history_q": ("history", "auto"),
    "history_scenarios": ("history", "auto"),
    "history_control_every": ("auto",),
}


def check_used(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Check the settings that were given, of the right kinds, against each other.

    Raises:
        TailSieveConfigError: one that is not read, with what would be right.
    """
    policy, selector = values.get("policy", defaults["policy"]), values.get("selector", defaults["selector"])
    for key, selectors in SELECTOR_SETTINGS.items():
        if selector not in selectors and values.get(key, defaults[key]) != defaults[key]:
            needed = " or ".join(selectors)
            raise TailSieveConfigError(
                f"{PREFIX}.{key}={values[key]} needs {PREFIX}.selector={needed}; set that, or remove it."
            )
    for key in ("q", "m"):
        if isinstance(policy, Target) and values.get(key):
            where = "give it to your policy as an argument"
            raise TailSieveConfigError(f"{PREFIX}.{key}={values[key]} is not used by policy={policy.path}; {where}.")
    if values.get("curve") is not None and policy not in ("controller", "uniform_group"):
        raise TailSieveConfigError(f"{PREFIX}.curve needs {PREFIX}.policy=controller; remove it or change the policy.")
    if values.get("schedule") and policy != "fixed":
        raise TailSieveConfigError(f"{PREFIX}.schedule needs {PREFIX}.policy=fixed; remove it or change the policy.")
