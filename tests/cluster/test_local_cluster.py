"""Whole clusters of tiny programs: each knows its place, and none outlives the cluster, whatever part of it dies."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from lingpipe.cluster import local_cluster

ROOT = pathlib.Path(__file__).parents[2]
linux_only = pytest.mark.skipif(sys.platform != 'linux', reason='only Linux kills children with their parent')
# Says its place, then does what the argument of its name tells: a number of seconds to live, and an exit code.
PART = '''
import json, os, signal, socket, sys, time
config = json.loads(os.environ['TF_CONFIG'])
kind, index = config['task']['type'], config['task']['index']
signal.signal(signal.SIGTERM, lambda *unused: (time.sleep(.5), print('saved'), sys.exit(0)) if kind == 'chief' else sys.exit(9))
print('up', json.dumps(config), [name for _, name in socket.if_nameindex()])
settings = dict(word.split('=', 1) for word in sys.argv[1:] if '=' in word)
life, _, code = settings.get(f'--{kind}{index}', '100').partition(':')
time.sleep(float(life))
print('ends', file=sys.stderr)
sys.exit(int(code or 0))
'''


def _allows_a_network():
    unshare = shutil.which('unshare')
    return unshare and subprocess.run([unshare, '--net', '--map-root-user', 'true'], check=False).returncode == 0


class Cluster:
    """A launcher that runs."""

    def __init__(self, folder, options, arguments):
        (folder / 'part.py').write_text(PART)
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'lingpipe', 'local_cluster', *options, '--', str(folder / 'part.py'),
             *arguments],
            env={**os.environ, 'PYTHONPATH': str(ROOT)}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.out = ''

    def await_lines(self, pattern, count=1):
        """Read until so many lines match; return the matches of all so far."""
        while len(re.findall(pattern, self.out, re.MULTILINE)) < count:
            line = self.process.stdout.readline()
            assert line, self.out
            self.out += line
        return re.findall(pattern, self.out, re.MULTILINE)

    def end(self):
        """Return exit code and all output; what was started is gone by then."""
        rest, _ = self.process.communicate(timeout=30)
        self.out += rest
        for number in re.findall(r'is process (\d+)', self.out):
            await_end(int(number))
        return self.process.returncode, self.out

    def pids(self):
        """Return {name: newest process}."""
        return {name: int(number) for name, number in re.findall(
            r'^\[launcher\] (.+) is process (\d+)', self.out, re.MULTILINE)}


def await_end(pid):
    for _ in range(100):
        if not os.path.exists(f'/proc/{pid}'):
            return
        time.sleep(.1)
    pytest.fail(f'Process {pid} still runs.')


@pytest.fixture(name='start')
def start_fixture(tmp_path):
    clusters = []

    def start(*options, arguments=()):
        clusters.append(Cluster(tmp_path, options, arguments))
        return clusters[-1]
    yield start
    for cluster in clusters:
        cluster.process.kill()
        if not cluster.process.stdout.closed:
            cluster.process.communicate()


def test_each_process_knows_its_place_and_the_cluster_ends_with_the_chief(start):
    code, out = start('--workers=2', '--ps=1', arguments=['--chief0=1']).end()
    assert code == 0
    places = {name: json.loads(text) for name, text in re.findall(r'^\[(.+)\] up (.+) \[', out, re.MULTILINE)}
    assert {name: place['task'] for name, place in places.items()} == {
        'chief': {'type': 'chief', 'index': 0}, 'worker 0': {'type': 'worker', 'index': 0},
        'worker 1': {'type': 'worker', 'index': 1}, 'ps 0': {'type': 'ps', 'index': 0}}
    addresses = [address for job in places['chief']['cluster'].values() for address in job]
    assert len(set(addresses)) == 4 and all(address.startswith('127.0.0.1:') for address in addresses)
    assert all(place['cluster'] == places['chief']['cluster'] for place in places.values())
    assert '[chief] ends\n[launcher] chief ended with exit code 0\n' in out


def test_workers_without_a_chief_end_the_cluster_when_all_have_ended(start):
    code, out = start('--workers=2', arguments=['--cluster=multi_worker', '--worker0=.2', '--worker1=1']).end()
    assert code == 0 and '[chief]' not in out
    assert '[worker 0] ends' in out and '[worker 1] ends' in out


def test_a_part_that_fails_by_itself_stops_the_cluster_with_its_code(start):
    code, out = start('--workers=2', arguments=['--worker1=.5:3']).end()
    assert code == 3 and '[launcher] A process has failed: the cluster stops.' in out


def test_a_signal_goes_to_the_chief_and_the_others_serve_it_until_it_ends(start):
    cluster = start('--workers=1')
    cluster.await_lines(r'^\[(?:chief|worker 0)\] up', 2)
    cluster.process.send_signal(signal.SIGTERM)
    code, out = cluster.end()
    assert code == 0
    ends = re.findall(r'^\[.+\] (saved|.+ ended with exit code \d)', out, re.MULTILINE)
    assert ends == ['saved', 'chief ended with exit code 0', 'worker 0 ended with exit code 9']


def test_a_cluster_outlives_the_reader_of_its_output(start):
    cluster = start('--workers=1', '--no-isolated', arguments=['--chief0=2'])
    cluster.await_lines(r'^\[chief\] up')
    cluster.process.stdout.close()
    assert cluster.process.wait(30) == 0


def test_an_ignored_signal_stays_ignored_in_a_cluster(start):
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does, for the launcher too
    try:
        cluster = start('--workers=1', arguments=['--chief0=3'])
    finally:
        signal.signal(signal.SIGHUP, previous)
    cluster.await_lines(r'^\[chief\] up')
    cluster.process.send_signal(signal.SIGHUP)
    code, out = cluster.end()
    assert code == 0 and '[chief] ends' in out


def test_a_chief_that_hangs_is_killed_by_the_third_signal(start):
    cluster = start('--workers=1')
    cluster.await_lines(r'^\[chief\] up')
    os.kill(cluster.pids()['chief'], signal.SIGSTOP)
    signals_sent = 0
    while signals_sent < 100 and cluster.process.poll() is None:  # two of a kind that are pending are one
        cluster.process.send_signal(signal.SIGTERM)
        signals_sent += 1
        time.sleep(.2)
    assert signals_sent >= 3
    assert cluster.end()[0] == 128 + signal.SIGKILL


@linux_only
@pytest.mark.parametrize('number', [signal.SIGKILL, signal.SIGSEGV])
def test_no_process_outlives_a_launcher_that_dies(start, number):
    cluster = start('--workers=2', '--ps=1')
    cluster.await_lines(r'^\[(?:chief|worker \d|ps 0)\] up', 4)
    os.kill(cluster.pids()['worker 0'], signal.SIGSTOP)
    cluster.process.send_signal(number)
    assert cluster.end()[0] == -number


@pytest.mark.skipif(not _allows_a_network(), reason='this system allows no network of its own')
def test_the_cluster_has_a_network_of_its_own_unless_it_needs_another(start):
    def networks(options=(), arguments=()):
        shown, = start('--workers=1', *options, arguments=['--chief0=0', *arguments]).await_lines(r'^\[chief\] up .+} '
                                                                                                  r'\[(.+)\]$')
        return set(re.findall(r"'(\S+)'", shown))
    ours = {name for _, name in socket.if_nameindex()}
    assert networks() == {'lo'}
    assert networks(options=['--no-isolated']) == networks(arguments=['--logdir=gs://bucket/run']) == ours


def test_jobs_unknown_to_a_mode_are_refused_before_startup():
    with pytest.raises(ValueError, match='lists .*ps.*, but --cluster=pipeline needs'):
        local_cluster.main(['--ps=1', '--no-isolated', '--', 'run.py', '--cluster=pipeline'])


def test_a_training_without_its_kind_of_cluster_is_refused(capsys):
    with pytest.raises(SystemExit):
        local_cluster.main(['--', 'lingpipe', 'train', '--model=params.resnet'])
    assert "all of 'lingpipe train' by itself. Add --cluster=pipeline" in capsys.readouterr().err


def test_the_launcher_does_without_tensorflow():
    program = 'import sys; from lingpipe.cluster import local_cluster; sys.exit("tensorflow" in sys.modules)'
    subprocess.run([sys.executable, '-c', program], env={**os.environ, 'PYTHONPATH': str(ROOT)}, check=True)
