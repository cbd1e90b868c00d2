import time

import pytest

from tailsieve_verl.integration.deadline import RolloutStalledError, within


def test_a_result_or_an_error_comes_back():
    assert within(5.0, "it", lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(5.0, "it", lambda: 1 // 0)


def test_silence_is_named():
    with pytest.raises(RolloutStalledError, match=r"the weight sync did not finish within 0.05 s"):
        within(0.05, "the weight sync", lambda: time.sleep(1))
