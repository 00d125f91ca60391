"""What tests of several packages share: real server processes, and a proxy that breaks things."""
