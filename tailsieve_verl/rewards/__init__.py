"""Rewards that can be verified: mathematical answers and code under test, safe against whatever a model writes.

verl reads them as ``reward.custom_reward_function.path=pkg://tailsieve_verl.rewards.score``. Nothing here imports verl,
Ray or torch.
"""
