"""Scripts that ask a driver one question each. Their answers are under ``probes/records/``."""
