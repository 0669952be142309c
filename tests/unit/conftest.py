"""Property tests have no deadline: how fast an example runs is the machine's affair."""

from hypothesis import settings

settings.register_profile("trtopt", deadline=None)
settings.load_profile("trtopt")
