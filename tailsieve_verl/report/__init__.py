"""One page of a run from its record: pictures, the timeline of every step, and a verdict in words."""
