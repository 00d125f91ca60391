"""Property tests have no deadline, so that they do not fail on a busy machine."""

from hypothesis import settings

settings.register_profile("headwater", deadline=None, database=None)
settings.load_profile("headwater")
