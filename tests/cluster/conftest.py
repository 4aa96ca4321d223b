"""What a wait says that ends its process."""

import threading

import pytest

from lingpipe.cluster import waits


class Told(list):
    """What a wait said when it ended the process, and an event that is set then."""

    def __init__(self):
        super().__init__()
        self.event = threading.Event()

    def __call__(self, sentence):
        self.append(sentence)
        self.event.set()


@pytest.fixture
def told(monkeypatch):
    said = Told()
    monkeypatch.setattr(waits, 'end_process', said)
    return said
