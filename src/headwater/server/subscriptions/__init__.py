"""Subscriptions: workers are woken when streams change (PROTOCOL 6, 7)."""
