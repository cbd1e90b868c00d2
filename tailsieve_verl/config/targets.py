"""Classes of the user's own, named in a setting by ``_target_`` with their arguments, as Hydra writes it.

    {_target_: my_package.MyCallback, steps: 20}

Every error is one sentence: which key, what was wrong, what would be right.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tailsieve_verl.config.errors import PREFIX, TailSieveConfigError


@dataclass(frozen=True)
class Target:
    """A class by its dotted path, and keyword arguments for it."""

    path: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def parse_target(key: str, value: Any) -> Target:
    """The target that a setting names; nothing is imported yet.

    Raises:
        TailSieveConfigError: not a mapping with ``_target_`` and keyword arguments.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("_target_"), str) or "." not in value["_target_"]:
        raise TailSieveConfigError(
            f"{PREFIX}.{key}={_short(value)} must name a class, for example {{_target_: my_package.MyClass}}."
        )
    arguments = {str(name): argument for name, argument in value.items() if name != "_target_"}
    for name in arguments:
        if not name.isidentifier() or name.startswith("_"):
            raise TailSieveConfigError(
                f"{PREFIX}.{key} has {name}: beside _target_ only keyword arguments of the class may stand."
            )
    return Target(value["_target_"], arguments)


def load_class(key: str, target: Target, base: type, *, methods: tuple[str, ...] = ()) -> type[Any]:
    """Import the class.

    Args:
        base: what it must be a subclass of; with ``methods`` it is enough to have those.

    Raises:
        TailSieveConfigError: it cannot be imported, is no class, or not of that kind.
    """
    where = f"{PREFIX}.{key}: {target.path}"
    module_name, _, name = target.path.rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # importing a user's module runs a user's code, a script's too
        raise TailSieveConfigError(
            f"{where} cannot be imported ({_told(error)}); is its module on PYTHONPATH?"
        ) from error
    found = getattr(module, name, None)
    if found is None:
        near = difflib.get_close_matches(name, dir(module), n=1)
        hint = f"did you mean {near[0]}?" if near else "name a class of it."
        raise TailSieveConfigError(f"{where} does not exist, the module {module_name} has no {name}; {hint}")
    if not inspect.isclass(found):
        raise TailSieveConfigError(f"{where} is a {type(found).__name__}, not a class; name a class.")
    if not issubclass(found, base) and not (methods and all(callable(getattr(found, m, None)) for m in methods)):
        kind = f"{base.__module__}.{base.__name__}"
        raise TailSieveConfigError(f"{where} is not a subclass of {kind}; derive it from that.")
    return found


def build_target(key: str, target: Target, base: type, *given: Any, methods: tuple[str, ...] = ()) -> Any:
    """Import the class and make an instance of it; ``given`` are its leading positional arguments.

    Raises:
        TailSieveConfigError: as :func:`load_class`, or the arguments do not fit.
    """
    found = load_class(key, target, base, methods=methods)
    where = f"{PREFIX}.{key}: {target.path}"
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # a class written in C
        signature = None
    if signature is not None:
        try:
            signature.bind(*given, **target.arguments)
        except TypeError as error:
            takes = ", ".join(str(p) for p in list(signature.parameters.values())[len(given) :])
            raise TailSieveConfigError(f"{where}: {error}; it takes ({takes}).") from None
    try:
        return found(*given, **target.arguments)
    except (Exception, SystemExit) as error:
        raise TailSieveConfigError(f"{where} refuses its arguments: {_told(error)}") from error


def _told(error: BaseException) -> str:
    """An error of a user's code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
