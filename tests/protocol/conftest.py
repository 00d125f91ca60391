"""Property tests run without a clock: a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("headwater", deadline=None, database=None)
settings.load_profile("headwater")
