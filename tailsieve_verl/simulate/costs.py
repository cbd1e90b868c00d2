"""Where an engine's costs come from: a file that `tailsieve calibrate` wrote, any curve file, or a shipped shape.

The shipped shapes are made up, in the range of what is measured on one GPU of the H100 class; they are for seeing what
matters and for tests, not for predicting a particular machine.
"""

from __future__ import annotations

import json
from pathlib import Path

from tailsieve_verl.core.decode import DecodeCurve
from tailsieve_verl.curves import load_curve
from tailsieve_verl.errors import UserError
from tailsieve_verl.simulate.engine import EngineCosts

#: A dense model on one GPU: 6 ms a token alone, memory-bound up to some ten requests, about 0.2 ms for each further.
DENSE = DecodeCurve(
    [1, 4, 8, 16, 32, 64, 128, 256, 512], [0.006, 0.0064, 0.007, 0.0085, 0.0115, 0.0175, 0.03, 0.055, 0.105]
)
#: A mixture of experts: small batches touch few experts, so tau rises early and flattens.
EXPERTS = DecodeCurve(
    [1, 4, 8, 16, 32, 64, 128, 256, 512], [0.004, 0.007, 0.009, 0.0115, 0.0145, 0.019, 0.027, 0.042, 0.07]
)
SHAPES = {"dense": DENSE, "experts": EXPERTS}

#: Keys that a calibration adds to its curve file, and what they set.
CALIBRATED = {"context_seconds_per_token": "context_s", "prefill_seconds_per_token": "prefill_s"}


def read_costs(
    curve: str,
    *,
    context_s: float | None = None,
    prefill_s: float | None = None,
    max_num_seqs: int | None = None,
    kv_tokens: int | None = None,
) -> EngineCosts:
    """Costs by the name of a shipped shape or a file; numbers given here overrule a calibration's.

    Raises:
        UserError: an unknown name, a file that is no curve, or numbers out of range.
    """
    found: dict[str, float] = {}
    if curve in SHAPES:
        known = SHAPES[curve]
    else:
        path = Path(curve)
        if not path.is_file():
            raise UserError(f"curve {curve!r} is neither a file nor a shipped shape ({', '.join(SHAPES)}).")
        try:
            known = load_curve(path)
            if path.suffix.lower() == ".json":
                data = json.loads(path.read_text(encoding="utf-8"))
                found = {name: float(data[key]) for key, name in CALIBRATED.items() if data.get(key) is not None}
        except (ValueError, TypeError) as error:
            raise UserError(f"curve {error}") from None
    return EngineCosts(
        known,
        found.get("context_s", 0.0) if context_s is None else context_s,
        found.get("prefill_s", 0.0) if prefill_s is None else prefill_s,
        max_num_seqs,
        kv_tokens,
    )
