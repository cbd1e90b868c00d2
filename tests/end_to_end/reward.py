"""A reward that depends on the response, so that advantages are not all zero."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return sum(map(ord, solution_str)) % 97 / 97
