"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tailsieve_verl.errors import UserError


def write_whole(path: Path, write: Callable[[str], object]) -> None:
    """Write through a file beside ``path`` that replaces it when complete.

    Raises:
        UserError: a folder that cannot be written, or ``path`` is a folder.
    """
    name = _beside(path)
    try:
        write(name)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_place(path: Path) -> None:
    """Raise now what `write_whole` would raise when the work is done."""
    Path(_beside(path)).unlink()


def _beside(path: Path) -> str:
    """An empty file in the folder of ``path``, which is made."""
    if path.is_dir():
        raise UserError(f"{path} cannot be written: it is a folder; name a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
        os.close(handle)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; name a folder that can.") from None
    return name
