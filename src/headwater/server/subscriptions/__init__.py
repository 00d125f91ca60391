"""Subscriptions: workers are woken when streams move (PROTOCOL 6, 7)."""
