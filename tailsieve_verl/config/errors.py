"""What all settings share: where they live, and the error that names a wrong one."""

PREFIX = "trainer.v1.tailsieve"


class TailSieveConfigError(ValueError):
    """A setting is wrong; the message is one sentence that names the key, the value and the remedy."""
