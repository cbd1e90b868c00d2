"""MkDocs hooks: pages may link to anything in the repository, as they do where the repository is read on the web.

    on_files           what pages link to outside docs/ (recipes, the changelog, pictures, code) joins the site
    on_page_markdown   such links are rewritten to where it is there
    on_config          pages that the navigation names and that do not exist yet are left out of it

A link to something that does not exist is left alone, so that a strict build fails on it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^(```.*?^```[^\S\n]*$)", re.DOTALL | re.MULTILINE)
#: Pages of the site under another name than their file's.
RENAMED = {"README.md": "index.md"}


def on_config(config: Any) -> Any:
    config.nav = _existing(config.nav or [])
    return config


def on_files(files: Files, config: Any) -> Files:
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()]
    seen = set(waiting)
    waiting += [uri for uri in _uris(config.nav) if not (ROOT / "docs" / uri).exists()]
    while waiting:
        page = waiting.pop()
        if not page.startswith("docs/") and files.get_file_from_path(site_path(page)) is None:
            file = File.generated(config, site_path(page), abs_src_path=str(ROOT / page))
            file.inclusion = InclusionLevel.NOT_IN_NAV  # the page that links to it is the way to it
            files.append(file)
        if not page.endswith(".md"):
            continue
        for _, target in repository_links((ROOT / page).read_text(encoding="utf-8"), page):
            if target not in seen and not target.startswith("docs/") and (ROOT / target).is_file():
                seen.add(target)
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    del config, files
    uri = page.file.src_uri
    own = f"docs/{uri}" if (ROOT / "docs" / uri).exists() else uri
    folder = posixpath.dirname(uri)

    def rewrite(found: re.Match[str]) -> str:
        target, _, anchor = found["target"].partition("#")
        inside = repository_path(own, target)
        if inside is None:
            return found[0]
        path = ROOT / inside
        if path.is_dir() and (path / "README.md").exists():
            inside = posixpath.join(inside, "README.md")
        elif path.is_dir():
            return found["text"]  # a folder has no page
        elif not path.exists():
            return found[0]
        there = posixpath.relpath(site_path(inside), folder or ".")
        return f"{found['image']}[{found['text']}]({there}{'#' + anchor if anchor else ''})"

    # Code is left as it is.
    parts = FENCE.split(markdown)
    return "".join(part if part.startswith("```") else LINK.sub(rewrite, part) for part in parts)


def repository_links(markdown: str, page: str) -> list[tuple[str, str]]:
    """(text, path in the repository) of every link of a page to a file or folder; folders stand for their README."""
    found = []
    for part in FENCE.split(markdown):
        if part.startswith("```"):
            continue
        for link in LINK.finditer(part):
            inside = repository_path(page, link["target"].partition("#")[0])
            if inside is not None:
                readme = posixpath.join(inside, "README.md")
                found.append((link["text"], readme if (ROOT / readme).is_file() else inside))
    return found


def repository_path(page: str, target: str) -> str | None:
    """Where a link of a page leads in the repository; ``None`` for the web, and for places in the same page."""
    if not target or re.match(r"[a-z]+:|/", target):
        return None
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return None if inside.startswith("..") else inside


def site_path(inside: str) -> str:
    """Where a file of the repository is in the site."""
    return inside.removeprefix("docs/") if inside.startswith("docs/") else RENAMED.get(inside, inside)


def _existing(nav: list[Any]) -> list[Any]:
    """The navigation without pages that do not exist (yet), and without sections that are empty then."""
    kept: list[Any] = []
    for entry in nav:
        if isinstance(entry, dict):
            ((title, value),) = entry.items()
            value = _existing(value) if isinstance(value, list) else value
            if value if isinstance(value, list) else _exists(value):
                kept.append({title: value})
        elif _exists(entry):
            kept.append(entry)
    return kept


def _exists(uri: str) -> bool:
    return (ROOT / "docs" / uri).exists() or (ROOT / uri).exists()


def _uris(nav: list[Any] | None) -> list[str]:
    uris: list[str] = []
    for entry in nav or []:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        uris += _uris(value) if isinstance(value, list) else [value]
    return uris
