"""Errors that are the user's to mend: one sentence, shown without a traceback by the command line."""

from __future__ import annotations


class UserError(ValueError):
    """A wrong input: the message names it, says what was wrong and what would be right, in one sentence."""
