"""Accuracy of checkpoints on benchmarks: pass@k from sampled answers, and the paper's Table 3 from several of them."""
