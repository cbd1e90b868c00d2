"""The run's record, ``tailsieve/steps.jsonl``: its lines (:mod:`.lines`) and how tools read them (:mod:`.read`)."""
