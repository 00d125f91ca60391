"""The demonstration: `make demo`. Streams become tables, on this machine, in a minute."""
