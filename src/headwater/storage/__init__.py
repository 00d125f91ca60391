"""Where streams are kept: one interface, one file or folder per backend."""
