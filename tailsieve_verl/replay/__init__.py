"""Real vLLM engines with given lengths: their decode curve (`calibrate`) and how long a placement takes (`run`)."""
