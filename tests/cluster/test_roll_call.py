"""Workers that are called: threads stand in for their processes, and no TensorFlow server is started."""

import concurrent.futures
import contextlib
import itertools
import math
import os
import socket
import threading
import time

import pytest

from lingpipe.cluster import cluster_config, roll_call, watchdog


@pytest.fixture(name='workers')
def workers_fixture():
    """Returns the `ClusterConfig` of worker 0 of three, and a function that has another one answer."""
    jobs = {'worker': cluster_config.free_addresses(3)}
    with concurrent.futures.ThreadPoolExecutor() as threads:
        def start(index):
            return threads.submit(roll_call.answer, cluster_config.ClusterConfig(jobs, 'worker', index))

        yield cluster_config.ClusterConfig(jobs, 'worker', 0), start


def test_all_workers_start_together_once_all_are_there(workers):
    config, start = workers
    answers = [start(index) for index in (2, 1)]
    assert roll_call.Caller(config, lambda count: True).call(math.inf) == config
    assert [answer.result(60) for answer in answers] == [
        config._replace(task_index=2), config._replace(task_index=1)]


def test_a_worker_that_does_not_come_is_left_out_and_taken_in_again(workers):
    """The others get other numbers, as TensorFlow counts them without a gap."""
    config, start = workers
    addresses = config.jobs['worker']
    caller, answer = roll_call.Caller(config, lambda count: True), start(2)
    while not caller._answers(2):
        pass
    members = caller.call(patience=0)
    assert members == cluster_config.ClusterConfig({'worker': [addresses[0], addresses[2]]}, 'worker', 0)
    assert answer.result(60) == members._replace(task_index=1)
    assert caller.absent() == caller.silent == [f'worker:1 ({addresses[1]})']
    answers = [start(1), start(2)]
    caller.watch()
    assert caller._is_back.wait(60) and caller.is_worker_back()
    assert roll_call.Caller(config, lambda count: True).call(math.inf) == config
    for answer in answers:
        answer.result(60)


def test_those_who_cannot_share_a_batch_wait_until_more_can(workers):
    config, start = workers
    answers = {index: start(index) for index in (1, 2)}
    caller = roll_call.Caller(config, lambda count: 64 % count == 0)
    assert caller.call(math.inf).jobs == {'worker': config.jobs['worker'][:2]}
    assert answers[1].result(60).task_index == 1
    assert caller.silent == [] and caller.absent() == [f'worker:2 ({config.jobs["worker"][2]})']
    assert not answers[2].done()
    assert caller._largest({0, 1, 2}) == [0, 1]  # so that nothing ends for the one that waits
    answers[1] = start(1)
    assert roll_call.Caller(config, lambda count: True).call(math.inf) == config
    assert [answer.result(60).task_index for answer in answers.values()] == [1, 2]


def test_callers_that_say_nothing_or_nonsense_change_nothing(workers):
    config, start = workers
    answer = start(1)
    host, _, port = config.jobs['worker'][1].rpartition(':')
    with contextlib.ExitStack() as stack:
        for line in (b'', b'GET / HTTP/1.1\r\n', b'{"members": [0, 1, 7]}\n', b'{"members": "01"}\n', b'[' * 70000):
            for _ in itertools.count():
                with contextlib.suppress(ConnectionRefusedError):
                    connection = stack.enter_context(socket.create_connection((host, int(port))))
                    break
            assert connection.makefile('rb').readline() == b'lingpipe worker:1\n'
            with contextlib.suppress(OSError):
                connection.sendall(line)
        start(2)
        assert roll_call.Caller(config, lambda count: True).call(math.inf) == config
        assert answer.result(60).task_index == 1


def test_workers_that_never_come_are_named(workers, monkeypatch):
    config, _ = workers
    monkeypatch.setattr(watchdog, 'SECONDS_TO_CONNECT', 0)
    with pytest.raises(ConnectionError, match=r'^After 0 s there is no answer from worker:1 .*, worker:2 .*, of 3 workers'):
        roll_call.Caller(config, lambda count: True).call(math.inf)


def test_a_worker_that_waits_keeps_no_connection_open(workers):
    """Worker 0 looks each second whether it is back, perhaps for days."""
    config, start = workers
    before, answer = len(os.listdir('/proc/self/fd')), start(1)
    caller = roll_call.Caller(config, lambda count: True)
    assert any(caller._answers(1) for _ in itertools.count())
    assert all(caller._answers(1) for _ in range(100))
    assert len(os.listdir('/proc/self/fd')) < before + 50
    start(2)
    assert caller.call(math.inf) == config
    assert answer.result(60).task_index == 1


def test_a_line_that_trickles_in_is_not_waited_for():
    near, far = socket.socketpair()
    with near, far, contextlib.suppress(BrokenPipeError):
        begin = time.monotonic()
        reader = threading.Thread(target=roll_call._line, args=(far,), daemon=True)
        reader.start()
        while reader.is_alive() and time.monotonic() - begin < 60:
            near.send(b'a')
            time.sleep(.1)
        assert not reader.is_alive()
