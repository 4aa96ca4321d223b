"""Training runs of a tiny model."""

from tests.tiny_runs import assert_same_checkpoint, copied, finished, images_are_loaded_once, stored, tiny  # noqa: F401  fixtures
