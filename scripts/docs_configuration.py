"""docs/configuration.md from the settings' schema and the presets: keys, types, defaults, and their comments.

    python scripts/docs_configuration.py            # print the page
    python scripts/docs_configuration.py --write    # write it

The words are the comments of ``base.yaml``; the types are the schema's. A test fails when the page is stale.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

import tailsieve_verl.config
from tailsieve_verl.config.schema import PREFIX, TailSieveConfig

PRESETS = Path(tailsieve_verl.config.__file__).parent / "tailsieve"
PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
#: Order of the presets on the page; others follow by name.
FIRST = ("default", "paper", "fixed", "uniform_group")
_KEY = re.compile(r"^(\s*)([A-Za-z_0-9]+):\s*(.*)$")


def comments(text: str) -> Iterator[tuple[str, str]]:
    """(dotted key, the comment above it) of a YAML text in verl's style: one comment above each field."""
    path: list[tuple[int, str]] = []
    pending: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            pending.append(line.strip().lstrip("#").strip())
        elif found := _KEY.match(line):
            indent, key = len(found[1]), found[2]
            path = [(depth, name) for depth, name in path if depth < indent] + [(indent, key)]
            yield ".".join(name for _, name in path), " ".join(pending)
            pending = []
        elif not line.strip() and pending and not path:
            pending = []  # the file's own words, above its first key


def value_of(settings: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        settings = settings[part]
    return settings


def type_of(key: str) -> str:
    """The schema's type of a setting, in words; empty where a nested mapping has none of its own."""
    owner: Any = TailSieveConfig
    for part in key.split("."):
        if not dataclasses.is_dataclass(owner):
            return ""
        found = next((f for f in dataclasses.fields(owner) if f.name == part), None)
        if found is None:
            return ""
        default = found.default_factory() if found.default_factory is not dataclasses.MISSING else found.default
        owner, text = default, str(found.type)
        if dataclasses.is_dataclass(default):
            owner = type(default)
    words = {"int": "whole number", "float": "number", "str": "text", "bool": "true or false", "None": "null"}
    simple = text.split("[")[0].strip()
    if any(mark in text for mark in ("DepthTable", "Literal")):
        return ""
    if simple in ("dict", "tuple", "list") or not all(part.strip() in words for part in text.split("|")):
        return {"dict": "mapping", "tuple": "list", "list": "list"}.get(simple, "")
    return " or ".join(words[part.strip()] for part in text.split("|"))


def shown(value: Any) -> str:
    if value is None:
        return "`null`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`"


def setting_rows() -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, meaning) of every setting."""
    text = (PRESETS / "base.yaml").read_text()
    tree = yaml.safe_load(text)
    prefix = f"{PREFIX}."
    for dotted, comment in comments(text):
        if not dotted.startswith(prefix):
            continue
        key, value = dotted.removeprefix(prefix), value_of(tree, dotted)
        if isinstance(value, dict) and value:
            continue  # a heading: its keys follow
        yield key, type_of(key), shown(value), comment


def preset_rows() -> Iterator[tuple[str, str, str]]:
    """(name, first words, overrides in its file) of every preset but the base."""
    files = {path.stem: path for path in PRESETS.glob("*.yaml")}
    names = [*FIRST, *sorted(set(files) - {*FIRST, "base"})]
    for name in names:
        text = files[name].read_text()
        words = []
        for line in text.splitlines()[1:]:
            if line.startswith("#"):
                words.append(line.lstrip("# ").strip())
            elif words:
                break
        tree = yaml.safe_load(text) or {}
        own = value_of(tree, PREFIX) if "trainer" in tree else {}
        changes = "<br>".join(f"`{key}={value}`" for key, value in _flat(own)) or "-"
        yield name, " ".join(words), changes


def _flat(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else value


def cell(text: str) -> str:
    """Text as a table's cell: what Markdown would read as its own is escaped, outside of code."""
    parts = text.replace("|", "\\|").split("`")
    parts[::2] = [re.sub(r"([_*])", r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts).replace("&lt;br>", "<br>")


def render() -> str:
    """The whole page."""
    lines = [
        "# Configuration",
        "",
        "*Written by `scripts/docs_configuration.py` from the schema and the presets; change those.*",
        "",
        f"Every setting is a Hydra override under `{PREFIX}`, for example `{PREFIX}.q=4`. A preset is",
        "`+tailsieve=<name>`; your own overrides win over it, wherever they stand in the command. A wrong one ends",
        "the program with one sentence before Ray starts; `tailsieve doctor -- <your command>` says so without",
        "starting anything.",
        "",
        "## Presets",
        "",
        "| `+tailsieve=` | what it is | what it sets |",
        "|---|---|---|",
    ]
    lines += [f"| `{name}` | {cell(words)} | {cell(changes)} |" for name, words, changes in preset_rows()]
    lines += [
        "",
        "## Settings",
        "",
        f"| `{PREFIX}.` | | default | |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{key}` | {cell(kind)} | {cell(default)} | {cell(words)} |" for key, kind, default, words in setting_rows()
    ]
    lines += [
        "",
        "A preset also sets `trainer.v1.trainer_mode=tailsieve`, our agent loop manager under",
        "`actor_rollout_ref.rollout.agent.agent_loop_manager_class`, and a Hydra callback that checks the",
        "configuration. It touches nothing else of yours. What the controller's settings do:",
        "[The controller](controller.md#settings); drafts: [Speculative decoding](speculation.md).",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        PAGE.write_text(render())
    else:
        print(render(), end="")
