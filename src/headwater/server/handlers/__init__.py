"""Handlers: one module for each kind of request on streams."""
