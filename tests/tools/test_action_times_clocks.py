import time

import pytest

from lingpipe.tools.trace import action_times

WORKER = '/job:worker/replica:0/task:1/device:'


def test_the_fastest_answer_gives_the_offset():
    asked = []

    def ask(host):
        """Half a minute ahead; only one answer is fast."""
        asked.append(host)
        seconds = 0.0 if len(asked) == 7 else 0.2
        time.sleep(seconds)
        return time.time() + 30

    offset = action_times.Clocks(ask).offset(f'{WORKER}GPU:3')
    assert offset == pytest.approx(30, abs=0.05)  # half of what a slow answer is off, on a busy machine too
    assert set(asked) == {f'{WORKER}CPU:0'}


@pytest.mark.parametrize(
    'device', ['CPU:1', '/job:localhost/replica:0/task:0/device:GPU:0', '/job:chief/replica:0/task:0/device:CPU:0'])
def test_devices_of_this_machine_are_not_asked(device):
    assert action_times.Clocks(ask=None).offset(device) == 0


def test_a_machine_is_measured_once():
    asked = []
    here = action_times.Clocks(lambda host: asked.append(host) or time.time())
    for device in ('CPU:0', 'CPU:1'):
        here.offset(WORKER + device)
    assert len(asked) == 20


def test_the_time_of_a_device_of_tensorflow_is_this_machines():
    host = '/job:localhost/replica:0/task:0/device:CPU:0'
    assert action_times._time_of(host) == pytest.approx(time.time(), abs=1)
