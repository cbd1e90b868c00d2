"""The prompt stream on a real StatefulDataLoader, saved and resumed at every position, across epoch boundaries."""

import copy
import itertools

import numpy as np
import pytest
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

from tailsieve_verl.errors import UserError
from tailsieve_verl.integration.prompts import EmptyStreamError, PromptStream, merge, prompt_key, sessions_of


def loader(size=11, shuffle=True):
    generator = torch.Generator()
    generator.manual_seed(3)
    data = list(range(size))
    sampler = RandomSampler(data, generator=generator) if shuffle else None
    return StatefulDataLoader(data, batch_size=1, sampler=sampler, drop_last=True, collate_fn=lambda x: {"index": x})


def take(stream, count):
    return [stream.rows[s]["index"][0] for s in stream.draw(count)]


def test_it_is_the_stream_of_verl_with_its_remainder_dropped():
    """verl: 2 batches of 4 of each epoch of 11 prompts, the other 3 dropped."""
    epochs = []
    reference = loader()
    for _ in range(3):
        epochs += [row["index"][0] for row in reference][:8]
    assert take(PromptStream(loader(), 4), 24) == epochs


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("position", range(1, 23))
def test_a_resume_anywhere_goes_on_with_the_same_prompts(position, shuffle):
    whole = take(PromptStream(loader(shuffle=shuffle), 4), 24)
    dataloader = loader(shuffle=shuffle)
    stream = PromptStream(dataloader, 4)
    first = take(stream, position)
    stream.release([position - 1])
    saved = copy.deepcopy((dataloader.state_dict(), stream.state_dict(), stream.rows))

    again = loader(shuffle=shuffle)
    again.load_state_dict(saved[0])
    resumed = PromptStream(again, 4)
    resumed.load_state_dict(saved[1], saved[2])
    assert resumed.rows[position - 1]["index"] == [first[-1]]
    assert first + take(resumed, 24 - position) == whole


def test_a_sampler_of_its_own_length_is_followed_to_its_end():
    class Endless:
        def __iter__(self):
            return ({"index": [i]} for i in itertools.count())

    assert take(PromptStream(Endless(), 4), 50) == list(range(50))
    twice = [{"index": [i]} for i in (*range(5), *range(5))]  # 10 rows: 8 used, 2 skipped
    assert take(PromptStream(twice, 4), 16) == [0, 1, 2, 3, 4, 0, 1, 2] * 2


def test_an_empty_dataloader_is_named():
    with pytest.raises(EmptyStreamError, match="yields no prompts"):
        PromptStream([], 4).draw(1)


def row(index=None, content="hello"):
    info = {"split": "train"} | ({} if index is None else {"index": index})
    return {
        "data_source": np.array(["math"], dtype=object),
        "extra_info": np.array([info], dtype=object),
        "raw_prompt": np.array([[{"role": "user", "content": content}]], dtype=object),
        "uid": np.array(["changes every time"], dtype=object),
    }


def test_identity_is_the_dataset_index_or_else_the_content():
    assert prompt_key(row(index=7)) == "math/train/7" == prompt_key(row(index=7, content="other"))
    assert prompt_key(row()) == prompt_key(row())
    assert prompt_key(row()) != prompt_key(row(content="other"))
    assert prompt_key(row()).startswith("math#")


def test_prompts_that_differ_in_an_image_file_alone_are_told_apart():
    same, other = (row(content=[{"type": "image", "image": {"bytes": file}}]) for file in (b"one", b"two"))
    assert prompt_key(same) != prompt_key(other)
    assert prompt_key(same) == prompt_key(row(content=[{"type": "image", "image": {"bytes": bytearray(b"one")}}]))


def test_group_size_may_be_the_prompt_s_own():
    assert sessions_of(row(), 4) == 4
    assert sessions_of({**row(), "__rollout_n__": [6]}, 4) == 6


def test_rows_become_one_batch_and_no_column_is_lost():
    both = merge([{**row(1), "mask": torch.ones(1, 3)}, {**row(2), "mask": torch.zeros(1, 3)}])
    assert both["mask"].tolist() == [[1.0] * 3, [0.0] * 3]
    assert [info["index"] for info in both["extra_info"]] == [1, 2]
    tools = {**row(2), "tools": np.array([["search"]], dtype=object)}
    for rows in ([row(1), tools], [tools, row(1)]):
        with pytest.raises(UserError, match="gives the column tools to some prompts only"):
            merge(rows)
