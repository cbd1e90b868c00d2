"""The settings under ``trainer.v1.tailsieve.sampling``: what verl's rollout configuration has no key for.

    presence_penalty        subtracted from the logit of every token that the response holds already (Table A.1: 1.5)
    val_presence_penalty    the same for validation
    stop                    strings that end a response; they stay in it (Table A.1: <END>)

The bounds are vLLM's own, checked here before an engine starts. Nothing here imports verl or vllm.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tailsieve_verl.config.errors import PREFIX, TailSieveConfigError

SAMPLING = f"{PREFIX}.sampling"
#: vLLM refuses a request outside of this.
LARGEST_PENALTY = 2.0


@dataclass(frozen=True)
class SamplingConfig:
    """Sampling beyond verl's own keys.

    Attributes:
        presence_penalty: for training responses; 0 is none.
        val_presence_penalty: for validation responses, which have their own settings in verl too.
        stop: strings that end a response, in training and validation alike (the prompt asks for them in both).
    """

    presence_penalty: float = 0.0
    val_presence_penalty: float = 0.0
    stop: tuple[str, ...] = ()

    def parameters(self, *, validate: bool) -> dict[str, Any]:
        """Further sampling parameters of a request, under vLLM's names; empty if nothing was set."""
        penalty = self.val_presence_penalty if validate else self.presence_penalty
        extra: dict[str, Any] = {}
        if penalty:
            extra["presence_penalty"] = penalty
        if self.stop:
            # vLLM finds stop strings in the text, so it must make one. The token ids, which are what is trained on,
            # hold the stop string in any case; with it in the text the two agree.
            extra.update(stop=list(self.stop), detokenize=True, include_stop_str_in_output=True)
        return extra


def parse_sampling(raw: Mapping[str, Any] | None) -> SamplingConfig:
    """Check a plain mapping and fill in defaults.

    Raises:
        TailSieveConfigError: an unknown key, or a value that vLLM would refuse.
    """
    known = [f.name for f in fields(SamplingConfig)]
    values = {key: value for key, value in dict(raw or {}).items() if value is not None}
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known keys are {', '.join(known)}."
            raise TailSieveConfigError(f"{SAMPLING}.{key} is not a setting; {hint}")
    penalties = {key: _penalty(key, values[key]) for key in known[:2] if key in values}
    return SamplingConfig(**penalties, stop=_strings(values.get("stop", ())))


def _penalty(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_PENALTY:
        raise TailSieveConfigError(
            f"{SAMPLING}.{key}={value} must be a number from -{LARGEST_PENALTY:g} to {LARGEST_PENALTY:g}; 0 is none."
        )
    return float(value)


def _strings(value: Any) -> tuple[str, ...]:
    entries = [value] if isinstance(value, str) else value
    strings = (None,) if isinstance(entries, Mapping) or not isinstance(entries, Iterable) else tuple(entries)
    if not all(isinstance(entry, str) and entry for entry in strings):
        raise TailSieveConfigError(
            f"{SAMPLING}.stop={value} must be a list of strings that are not empty, for example ['<END>']."
        )
    return tuple(dict.fromkeys(strings))
