"""Tests of the load generator; they need no server but the ones they start themselves."""
