"""The site builds strictly, notices what is broken, and asks nothing of other servers."""

from __future__ import annotations

import re
import shutil
import sys
from html.parser import HTMLParser

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from .pages import ROOT, all_pages

sys.path.insert(0, str(ROOT / "scripts"))
import docs_hooks


def built(root, out):
    config = load_config(str(root / "mkdocs.yml"), strict=True, site_dir=str(out))
    config.plugins.run_event("startup", command="build", dirty=False)
    try:
        build(config)
    finally:
        config.plugins.run_event("shutdown")
    return out


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return built(ROOT, tmp_path_factory.mktemp("site"))


class Requests(HTMLParser):
    """What a browser would fetch for a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.found.append(values.get("src"))
        if tag == "link" and values.get("rel") in ("stylesheet", "preload", "icon", "preconnect", "modulepreload"):
            self.found.append(values.get("href"))


def test_reading_it_asks_nothing_of_other_servers(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        requests = Requests()
        requests.feed(page.read_text(encoding="utf-8"))
        outside = [url for url in requests.found if url and url.startswith(("http:", "https:", "//"))]
        assert outside == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_pages_and_pictures_of_the_repository_are_there(site):
    for name in ("index.html", "quickstart.html", "recipes/paper/offline/index.html", "CONTRIBUTING.html"):
        assert (site / name).is_file(), name
    for name in ("assets/step.svg", "assets/lifecycle.svg", "recipes/paper/offline/results/regimes.png"):
        assert (site / name).is_file(), name
    assert "recipes/paper/offline/results/regimes.png" in (site / "when-it-helps.html").read_text()


@pytest.mark.parametrize(
    ("text", "page"),
    [
        ("[a link](nowhere.md)", "index.md"),
        ("[an anchor](quickstart.md#not-there)", "index.md"),
        ("[out of docs](../recipes/none/README.md)", "index.md"),
        ("# A page that the navigation does not name", "lost.md"),
    ],
)
def test_what_is_broken_fails_the_build(tmp_path, text, page):
    root = tmp_path / "copy"
    root.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in ("docs", "mkdocs.yml", ".git", ".venv", ".cache"):
            (root / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "docs", root / "docs")
    shutil.copy(ROOT / "mkdocs.yml", root)
    built(root, tmp_path / "site")  # sound before
    with (root / "docs" / page).open("a") as file:
        file.write(f"\n\n{text}\n")
    with pytest.raises(Abort):
        built(root, tmp_path / "site")


def test_links_of_pages_that_the_site_may_not_show_lead_somewhere():
    """README, CONTRIBUTING and the READMEs of recipes and examples, as they are read in the repository."""
    broken = [
        f"{page}: {target}"
        for page in all_pages()
        for _, target in docs_hooks.repository_links((ROOT / page).read_text(encoding="utf-8"), page)
        if not (ROOT / target).exists()
    ]
    assert broken == []
