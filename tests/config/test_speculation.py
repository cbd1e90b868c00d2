"""Settings of speculation: what each form of depth means, and one sentence for what is wrong."""

import pytest

from tailsieve_verl.config.schema import TailSieveConfigError, build_policy, parse
from tailsieve_verl.config.speculation import SpeculationConfig, parse_speculation
from tailsieve_verl.core.speculation import DepthTable

from .compose import compose


def test_off_by_default():
    assert parse({}).speculation == SpeculationConfig() == parse_speculation(None)
    assert not SpeculationConfig().enabled


@pytest.mark.parametrize(
    ("depth", "bulk", "tail", "deepest"),
    [
        (4, "4", "4", 4),
        ({"bulk": 2, "tail": 5}, "2", "5", 5),
        ({"bulk": 0, "tail": 3}, "0", "3", 3),
        ({"tail": 6}, "3", "6", 6),
        ({"bulk": {1: 5, 8: 2}, "tail": 5}, "1:5,8:2", "5", 5),
        ({1: 5, 16: 0}, "1:5,16:0", "1:5,16:0", 5),
        ("auto", None, None, 5),
        ({"bulk": "auto", "tail": 7}, None, "7", 7),
    ],
)
def test_depth_is_a_number_a_table_or_auto(depth, bulk, tail, deepest):
    spec = parse_speculation({"method": "mtp", "depth": depth})
    tables = [None if table is None else str(table) for table in (spec.bulk, spec.tail)]
    assert (tables, spec.deepest) == ([bulk, tail], deepest)


@pytest.mark.parametrize("preset", ["mtp", "dflash", "mtp_auto", "dflash_auto"])
def test_presets_are_the_paper_s_and_the_same_with_auto(preset):
    model = ["trainer.v1.tailsieve.speculation.model=x"] if "dflash" in preset else []
    spec = parse(compose(f"+tailsieve={preset}", *model).trainer.v1.tailsieve).speculation
    assert spec.method == preset.removesuffix("_auto")
    assert spec.tail == (None if "auto" in preset else DepthTable.constant(3))
    assert (spec.model, spec.control) == ("x" if model else None, "runtime")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"method": "suffix"}, "method=suffix is unknown; choose one of none, mtp"),
        ({"metod": "mtp"}, "metod is not a setting"),
        ({"method": "dflash"}, "method=dflash needs trainer.v1.tailsieve.speculation.model"),
        ({"method": "ngram", "model": "x"}, "model=x is not used by method ngram"),
        ({"method": "mtp", "depth": -1}, "depth.bulk=-1 must be a number of draft tokens"),
        ({"method": "mtp", "depth": {"tail": "deep"}}, "depth.tail=deep must be a number"),
        ({"method": "mtp", "depth": {"tail": {2: 3}}}, "table from batch size 1 on"),
        ({"method": "mtp", "depth": 4, "deepest": 3}, "deepest=3 must be a whole number of at least 4"),
        ({"method": "mtp", "deepest": 10**9}, "deepest=1000000000 must be a whole number of at least 3, .* at most 64"),
        ({"method": "mtp", "depth": 65}, "depth=65 must be at most 64 draft tokens"),
        ({"method": "ngram", "extra": {"num_speculative_tokens": 9}}, "would overrule .*speculation.deepest; set that"),
        ({"method": "mtp", "extra": {"method": "ngram"}}, "extra.method would overrule .*speculation.method; set that"),
        ({"method": "mtp", "extra": {"model": "x"}}, "extra.model would overrule .*speculation.model; set that"),
        ({"method": "ngram", "extra": {1: 2}}, "extra has the key 1; keys of speculative_config are words"),
        ({"extra": {"prompt_lookup_max": 4}}, "extra=.* is not used by method none; remove it"),
        ({"method": "mtp", "depth": {"tail": {1: 2.7}}}, "depth.tail={1: 2.7} must be a number"),
        ({"method": "mtp", "depth": {"tail": {1.5: 2}}}, "depth.tail={1.5: 2} must be a number"),
        ({"method": "mtp", "depth": {"tail": {1: float("inf")}}}, "depth.tail={1: inf} must be a number"),
        ({"method": "mtp", "control": "launch", "depth": "auto"}, "control=launch fixes one depth"),
        ({"method": "mtp", "on_alarm": "stop"}, "on_alarm=stop is unknown"),
        ({"method": "mtp", "extra": 3}, "extra=3 must be a mapping"),
        ("mtp", "speculation=mtp must be a mapping"),
    ],
)
def test_wrong_settings_are_named(raw, message):
    with pytest.raises(TailSieveConfigError, match=message):
        parse({"speculation": raw})


def test_a_bare_off_in_yaml_is_off():
    assert parse_speculation({"method": "ngram", "on_alarm": False}).on_alarm == "off"


def test_a_tail_pool_stays_within_the_band_that_was_launched_deep():
    banded = {"method": "mtp", "control": "launch", "depth": {"bulk": 1, "tail": 4}}
    for raw, m, band in (
        (banded, None, 4),
        (banded, 0, 4),
        (banded, 3, 3),
        ({**banded, "depth": 2}, 3, None),
        ({**banded, "control": "runtime"}, 3, None),
        ({**banded, "method": "none"}, 3, None),
    ):
        assert parse_speculation(raw).deep_band(m, 8) == band
    assert parse_speculation(banded).deep_band(None, 1) == 1
    policy = build_policy(parse({"speculation": banded}), 64, 8)
    assert policy.config.most_m == 4
