"""What TailSieve adds to a checkpoint: ``global_step_K/tailsieve/state.json`` and ``prompts.pt``.

Invariants
    * Both files are complete before verl writes its progress file, so a checkpoint that verl resumes from has them.
    * Each file appears by a rename; ``state.json`` comes last and names the prompts that ``prompts.pt`` must hold.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

FOLDER, STATE, PROMPTS = "tailsieve", "state.json", "prompts.pt"
FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint cannot be continued by this run; the message says why and what to do."""


def save(step_folder: Path, state: dict[str, Any], rows: dict[int, Any]) -> None:
    """Write the state (plain JSON data) and the rows of the prompts that wait to be trained."""
    import torch

    folder = step_folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{PROMPTS}.tmp"
    torch.save(rows, temporary)
    os.replace(temporary, folder / PROMPTS)
    temporary = folder / f"{STATE}.tmp"
    temporary.write_text(json.dumps({"format": FORMAT, "prompts": sorted(rows), **state}))
    os.replace(temporary, folder / STATE)


def load(step_folder: Path, *, n_groups: int) -> tuple[dict[str, Any], dict[int, Any]]:
    """Read what :func:`save` wrote, after :func:`check`."""
    import torch

    state = check(step_folder, n_groups=n_groups)
    # Rows hold dataset objects, as verl's own data.pt does; both are files of the user's own run.
    rows = torch.load(step_folder / FOLDER / PROMPTS, weights_only=False)
    if sorted(rows) != state["prompts"]:
        raise CheckpointError(f"{step_folder / FOLDER / PROMPTS} does not hold the prompts that {STATE} names.")
    return state, rows


def check(step_folder: Path, *, n_groups: int) -> dict[str, Any]:
    """Whether a run with N groups a batch can continue from this checkpoint; returns its state.

    Raises:
        CheckpointError: no TailSieve state, one that is damaged or of another format, or another N.
    """
    path = step_folder / FOLDER / STATE
    if not path.exists():
        raise CheckpointError(
            f"{step_folder} was saved by a run without TailSieve (no {FOLDER}/{STATE}); finish that run without "
            f"+tailsieve, or start a new one with trainer.resume_mode=disable."
        )
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        found = state.get("format")
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}); resume from an older global_step folder with "
            f"trainer.resume_mode=resume_path, or start a new run with trainer.resume_mode=disable."
        ) from None
    if found != FORMAT:
        raise CheckpointError(f"{path} has format {found}, this version reads format {FORMAT}.")
    if state["n_groups"] != n_groups:
        raise CheckpointError(
            f"{step_folder} was saved with data.train_batch_size={state['n_groups']}, this run has {n_groups}; "
            f"set it back, or start a new run with trainer.resume_mode=disable."
        )
    return state
