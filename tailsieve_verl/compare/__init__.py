"""Runs side by side: Fig. 7, paired speed-ups with their intervals, length bias, and what no placement could beat."""
