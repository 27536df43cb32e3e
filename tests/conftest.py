"""Examples of property tests have no time limit of their own: on a busy machine it would fail tests that are right."""

from hypothesis import settings

settings.register_profile("glossd", deadline=None)
settings.load_profile("glossd")
