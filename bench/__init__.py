"""Side-by-side benchmark of headwater and the public Node server; run it with `python -m bench`."""
