import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tailsieve_verl.errors import UserError
from tailsieve_verl.records.lines import FILE
from tailsieve_verl.report.page import PAGE_REQUESTS, render
from tailsieve_verl.report.view import read_view

from .views import cut_off, view_of, write


class Page(HTMLParser):
    """What a browser would fetch, and the words."""

    def __init__(self, html):
        super().__init__()
        self.fetched, self.words, self.ids = [], [], set()
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.add(given.get("id"))
        self.fetched += [value for name, value in attributes if name in ("src", "srcset", "data", "poster")]
        if tag in ("link", "iframe", "object") or (tag == "a" and not given["href"].startswith("#")):
            self.fetched.append(str(given))

    def handle_data(self, data):
        self.words.append(data)


def data_of(html):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)[1])


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    metrics = {"spec_accept_rate/tail": 0.6, "spec_accept_rate/bulk": 0.5, "spec_accept_length/tail": 3.0}
    return render(view_of(tmp_path_factory.mktemp("page") / "my <run>", metrics=metrics))


def test_the_page_asks_nothing_of_others(report):
    page = Page(report.html)
    assert page.fetched
    assert all(source.startswith("data:image/") for source in page.fetched)
    assert "default-src 'none'" in report.html
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttpRequest", report.html)


def test_pictures_of_everything(report):
    names = {"generation", "split", "pools", "idle", "bias", "lengths", "length-steps", "acceptance"}
    assert names <= Page(report.html).ids
    assert set(report.pngs) == {f"{name}.png" for name in (*names, "timeline")}
    assert all(png.startswith(b"\x89PNG") for png in report.pngs.values())


def test_the_verdict_and_every_move_are_in_words(report):
    words = " ".join(Page(report.html).words)
    for sentence in (report.verdict.headline, report.verdict.bias, *report.verdict.grounds, "reason 3"):
        assert sentence.replace("->", "→") in words


def test_names_are_escaped(report):
    assert "my &lt;run&gt;" in report.html
    assert "my <run>" not in report.html


def test_every_step_can_be_chosen(report):
    data = data_of(report.html)
    assert [step["s"] for step in data["steps"]] == list(range(1, 9))
    assert data["steps"][data["shown"]]["s"] == 8  # the last one that was cut
    assert data["steps"][2]["next"] == "q=1, m=1"
    assert data["steps"][2]["why"] == "reason 3"


def test_a_reason_cannot_end_the_script(tmp_path):
    view = view_of(tmp_path, (0, 1))
    spoilt = replace(view.steps[0], decision=replace(view.steps[0].decision, reason="</script><b>\u2028"))
    html = render(replace(view, steps=(spoilt, view.steps[1])), pictures=()).html
    assert data_of(html)["steps"][0]["why"] == "</script><b>\u2028"


def test_a_run_of_one_uniform_step(tmp_path):
    report = render(view_of(tmp_path, (0,), start={"policy": "uniform_group"}, uniform_s=None, bound=None))
    assert report.verdict.worth == "no"  # it is at its bound
    assert "acceptance.png" not in report.pngs


def test_what_is_to_be_held_against_it_is_said(tmp_path):
    write(tmp_path, (0, 1, 1))
    words = " ".join(Page(render(read_view(cut_off(write(tmp_path, (1, 1), first=3), 20)), pictures=()).html).words)
    assert "was resumed 1 time;" in words
    assert "1 line of the record" in words
    assert "The update of step 4 is not over" in words


def test_many_steps_share_the_page(tmp_path, monkeypatch):
    """With a budget of half of the requests every step is thinned, and none is left out."""
    monkeypatch.setattr("tailsieve_verl.report.page.PAGE_REQUESTS", 8 * 5)
    monkeypatch.setattr("tailsieve_verl.report.page.LEAST_REQUESTS", 1)
    data = data_of(render(view_of(tmp_path), pictures=()).html)
    assert len(data["steps"]) == 8
    assert all(step["shown"] <= 5 < step["total"] for step in data["steps"])
    assert PAGE_REQUESTS > 1000


@pytest.mark.parametrize(("good", "bad"), [('"cut_s": 8.0', '"cut_s": "x"'), ('"failed": 0', '"failed": "x"')])
def test_values_that_no_run_writes_are_one_sentence(tmp_path, good, bad):
    path = write(tmp_path, [0, 1, 1]) / FILE
    text = path.read_text()
    assert good in text
    path.write_text(text.replace(good, bad))
    with pytest.raises(UserError, match="holds lines that are no step of a run"):
        render(read_view(tmp_path), pictures=())
