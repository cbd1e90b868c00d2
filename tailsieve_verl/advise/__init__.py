"""What TailSieve would do for a run, told from the responses that the run has already left."""
