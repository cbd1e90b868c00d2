"""Drafts on a dump's workload: worth it or not, how deep, and never by shorter answers."""

from dataclasses import replace

import pytest

from tailsieve_verl.advise.advice import decide
from tailsieve_verl.advise.run import Question, study_dump
from tailsieve_verl.advise.speculation import draft_override, draft_rows, draft_sentences, draft_ticks, study_drafts
from tailsieve_verl.core.speculation import Acceptance
from tailsieve_verl.simulate.costs import DENSE
from tailsieve_verl.simulate.drafting import Speculation
from tailsieve_verl.simulate.engine import EngineCosts
from tailsieve_verl.simulate.study import Interval
from tailsieve_verl.traces.synthetic import LengthModel

from .dumps import drawn_fit

ASK = Question(4, EngineCosts(DENSE), steps=12, seeds=2, halves=2)


@pytest.fixture(scope="module")
def asked():
    fit = drawn_fit(LengthModel(prompt_share=0.65), steps=2, n_groups=24, n=4)
    study = study_dump(fit, ASK)
    return fit, study, decide(study.findings)


def found(asked, rate, **costs):
    known = Speculation(Acceptance((rate,)), DENSE, **costs)
    ticks = []
    result = study_drafts(asked[0], ASK, asked[1], known, lambda: ticks.append(1))
    assert len(ticks) == draft_ticks(known)
    return result


def test_good_drafts_pay_and_live_depth_more(asked):
    drafts = found(asked, 0.8)
    assert drafts.pays
    assert drafts.now_live.mean > drafts.now_fixed.mean > 1.1
    assert drafts.tailsieve_live.mean > drafts.tailsieve.mean
    assert [b.base for b in drafts.budgets] == [1, 2, 3]
    for budget in drafts.budgets:
        assert budget.bulk + budget.tail == 2 * budget.base
        assert budget.routes.mean >= budget.same.mean
    words = " ".join(draft_sentences(drafts, asked[2], "verl_default"))
    assert "Drafts pay" in words
    assert drafts.table in words
    assert "speculation.depth.tail=auto" in words


def test_bad_drafts_do_not_and_nothing_is_recommended(asked):
    drafts = found(asked, 0.05)
    assert not drafts.pays
    assert drafts.table == "0"
    (sentence,) = draft_sentences(drafts, asked[2], "verl_default")
    assert sentence.startswith("Drafts do not pay")


def test_tailsieve_is_recommended_only_where_it_pays_and_is_not_advised_against(asked):
    advice = replace(asked[2], override="+tailsieve=default")
    drafts = replace(found(asked, 0.8), now_live=Interval(1.4, 1.3, 1.5), tailsieve_live=Interval(1.6, 1.5, 1.7))
    assert "policy=" not in draft_override(drafts, advice, "verl_default")
    less = replace(drafts, tailsieve_live=Interval(1.41, 1.3, 1.5))
    assert "policy=fixed trainer.v1.tailsieve.q=0" in draft_override(less, advice, "verl_default")
    assert "policy=uniform_group" in draft_override(drafts, replace(advice, override=None), "uniform_group")
    assert "no more worth having" in " ".join(draft_sentences(less, advice, "verl_default"))


def test_figures_for_tables(asked):
    rows = draft_rows(found(asked, 0.8, pass_share=0.1, draft_share=0.0, deepest=2), "verl_default")
    names = [name for name, _, _ in rows]
    assert len(names) == len(set(names)) == 5 + 3 * 3
    assert all(isinstance(value, Interval) for _, value, _ in rows[1:])
