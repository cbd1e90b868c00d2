"""TailSieve for verl: adaptive two-pool routing of long-tailed rollouts."""
