"""Our warnings reach the user although a dependency turns everybody's off.

vLLM's server imports ``model_hosting_container_standards``, which sets the root logger and its handlers to ERROR; verl
isolates its own logger for the same reason. A run that degrades with a warning that nobody sees would degrade in
silence, so the logger of this package has a level of its own, and a handler that speaks where the root's would not.
"""

from __future__ import annotations

import logging
import os
import sys

PACKAGE = "tailsieve_verl"


class _WhereRootIsSilent(logging.StreamHandler):
    """Writes a record to stderr unless a handler of the root logger does (nothing is said twice)."""

    def emit(self, record: logging.LogRecord) -> None:
        if not any(handler.level <= record.levelno for handler in logging.getLogger().handlers):
            self.stream = sys.stderr
            super().emit(record)


def configure() -> None:
    """Give the package's logger its level (``VERL_LOGGING_LEVEL``, WARNING without) and its handler, once a process."""
    logger = logging.getLogger(PACKAGE)
    if any(isinstance(handler, _WhereRootIsSilent) for handler in logger.handlers):
        return
    try:
        logger.setLevel(os.environ.get("VERL_LOGGING_LEVEL", "WARNING").strip().upper())
    except ValueError:  # verl says what it thinks of such a level
        logger.setLevel(logging.WARNING)
    handler = _WhereRootIsSilent()
    handler.setFormatter(logging.Formatter("%(levelname)s:%(asctime)s:%(message)s"))
    logger.addHandler(handler)
