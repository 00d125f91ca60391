"""Runs over HTTP: the contract of `headwater.runs` under `/v1/runs`."""
