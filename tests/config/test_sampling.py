import pytest
from omegaconf import OmegaConf

from tailsieve_verl.config.sampling import SamplingConfig, parse_sampling
from tailsieve_verl.config.schema import TailSieveConfigError, parse

from .compose import compose

TABLE_A1 = {"presence_penalty": 1.5, "stop": ["<END>"]}


def test_nothing_is_added_unless_asked_for():
    for raw in (None, {}, {"presence_penalty": None, "stop": []}):
        settings = parse_sampling(raw)
        assert settings == SamplingConfig() == parse({}).sampling
        assert settings.parameters(validate=False) == settings.parameters(validate=True) == {}


def test_table_a1():
    settings = parse({"sampling": TABLE_A1}).sampling
    text = {"stop": ["<END>"], "detokenize": True, "include_stop_str_in_output": True}
    assert settings.parameters(validate=False) == {"presence_penalty": 1.5, **text}
    assert settings.parameters(validate=True) == text  # validation has a penalty of its own
    assert parse_sampling({**TABLE_A1, "val_presence_penalty": -1}).parameters(validate=True)["presence_penalty"] == -1


def test_from_the_command_line():
    config = compose(
        "+tailsieve=default",
        "trainer.v1.tailsieve.sampling.presence_penalty=1.5",
        "trainer.v1.tailsieve.sampling.stop=['<END>']",
    )
    wanted = SamplingConfig(presence_penalty=1.5, stop=("<END>",))
    assert parse_sampling(config.trainer.v1.tailsieve.sampling) == wanted  # as the workers read it
    assert parse(OmegaConf.to_container(config.trainer.v1.tailsieve)).sampling == wanted


def test_one_string_and_repeats():
    assert parse_sampling({"stop": "<END>"}).stop == ("<END>",)
    assert parse_sampling({"stop": ["a", "b", "a"]}).stop == ("a", "b")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"presence_penalty": 2.5}, r"sampling.presence_penalty=2.5 must be a number from -2 to 2; 0 is none"),
        ({"presence_penalty": float("nan")}, "presence_penalty=nan must be a number"),
        ({"presence_penalty": True}, "presence_penalty=True must be a number"),
        ({"val_presence_penalty": "much"}, "val_presence_penalty=much must be a number"),
        ({"stop": [""]}, r"sampling.stop=\[''\] must be a list of strings that are not empty, for example \['<END>'\]"),
        ({"stop": [3]}, r"stop=\[3\] must be a list of strings"),
        ({"stop": {"a": 1}}, r"stop=\{'a': 1\} must be a list of strings"),
        ({"stop": 3}, r"stop=3 must be a list of strings"),
        ({"presence_penality": 1}, r"sampling.presence_penality is not a setting; did you mean presence_penalty\?"),
        ({"zzz": 1}, r"zzz is not a setting; known keys are presence_penalty, val_presence_penalty, stop"),
        ("<END>", r"sampling=<END> must be a mapping"),
    ],
)
def test_bad_settings_are_one_sentence_each(settings, said):
    with pytest.raises(TailSieveConfigError, match=said) as error:
        parse({"sampling": settings})
    assert "\n" not in str(error.value)
