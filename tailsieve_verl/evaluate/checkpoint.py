"""A checkpoint as a folder that vLLM loads: taken as it is, or merged out of verl's shards by verl's own merger.

<folder>/config.json + weights                              a Hugging Face folder
<run>/latest_checkpointed_iteration.txt                     a verl run: its latest checkpoint
<run>/global_step_30[/actor], with fsdp_config.json         a verl checkpoint of FSDP shards
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tailsieve_verl.errors import UserError

_PROGRESS = "latest_checkpointed_iteration.txt"
#: Merging reads and writes every weight once: minutes from a slow disk for a large model.
MERGE_TIMEOUT_S = 3600.0
MERGER = (sys.executable, "-m", "verl.model_merger")


@dataclass(frozen=True)
class Checkpoint:
    """Where the weights are. ``shards`` is verl's actor folder, ``None`` for a Hugging Face folder."""

    path: Path
    shards: Path | None = None


def find_checkpoint(path: str | Path) -> Checkpoint:
    """Tell what a path is (module docstring).

    Raises:
        UserError: nothing of that kind.
    """
    folder = Path(path).expanduser()
    if not folder.exists():
        raise UserError(f"{path} does not exist; give a Hugging Face folder, a verl checkpoint or a run of verl.")
    progress = folder / _PROGRESS
    if progress.is_file():
        folder = folder / f"global_step_{progress.read_text().strip()}"
    actor = folder / "actor" if (folder / "actor").is_dir() else folder
    if _is_shards(actor):
        ready = actor / "huggingface"
        # verl writes whole weights beside the shards if hf_model is among the checkpoint's save_contents.
        return Checkpoint(ready) if _is_model(ready) else Checkpoint(actor, shards=actor)
    if _is_model(folder):
        return Checkpoint(folder)
    raise UserError(
        f"{path} is no checkpoint: it has neither config.json with *.safetensors (a Hugging Face folder) nor verl's "
        f"model_world_size_*_rank_*.pt (global_step_N/actor)."
    )


def ready_model(checkpoint: Checkpoint, merged: Path) -> Path:
    """The folder to load; shards are merged into ``merged`` once, whole or not at all.

    Raises:
        UserError: the merger failed.
    """
    if checkpoint.shards is None:
        return checkpoint.path
    if (merged / "config.json").is_file():
        return merged
    merged.parent.mkdir(parents=True, exist_ok=True)
    temporary = merged.with_name(merged.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    options = ["--backend", "fsdp", "--local_dir", str(checkpoint.shards), "--target_dir", str(temporary)]
    try:
        done = subprocess.run(
            [*MERGER, "merge", *options],
            capture_output=True, text=True, errors="replace", check=False, timeout=MERGE_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError(f"merging {checkpoint.shards} took longer than {MERGE_TIMEOUT_S:.0f} s.") from None
    if done.returncode or not (temporary / "config.json").is_file():
        end = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise UserError(f"verl could not merge {checkpoint.shards} (status {done.returncode}); it ends with:\n{end}")
    os.replace(temporary, merged)
    return merged


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any(
        next(folder.glob(pattern), None) is not None for pattern in ("*.safetensors", "pytorch_model*.bin")
    )


def _is_shards(folder: Path) -> bool:
    return next(folder.glob("model_world_size_*_rank_*.pt"), None) is not None
