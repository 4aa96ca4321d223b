r"""Start a cluster on this machine, for trials and tests.

    lingpipe local_cluster --workers=2 -- lingpipe train --model=params.transformer_lm \
        --logdir=logs/x --cluster=pipeline

Every process runs the same command with its own TF_CONFIG, on a free port of loopback::

    launcher ─┬─> chief        ends the cluster when it ends
              ├─> worker 0     (--cluster=multi_worker has no chief: the cluster ends when all workers have ended)
              ├─> worker 1
              └─> ps 0
"""

import argparse
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from lingpipe.cluster import cluster_config, waits

_lock = threading.Lock()
_POLL_SECONDS, _SECONDS_TO_STOP = .05, 10
_OWN_NETWORK = ['unshare', '--net', '--map-root-user']  # of util-linux
_SET_FLAGS, _UP = 0x8914, 0x1  # SIOCSIFFLAGS and IFF_UP of netdevice(7)
_ENVIRONMENT = {  # each process gets only a share of this machine
    'PYTHONUNBUFFERED': '1', 'OMP_NUM_THREADS': '1', 'TF_NUM_INTRAOP_THREADS': '1', 'TF_FORCE_GPU_ALLOW_GROWTH': 'true'}


def say(text: str, name: str = 'launcher') -> None:
    """Print a line that begins with `name`, the name of a process."""
    with _lock:
        sys.stdout.write(f'[{name}] {text}\n')
        sys.stdout.flush()


class _Part:
    """A process of the cluster."""

    def __init__(self, config, command):
        self.name = 'chief' if config.task_type == 'chief' else config.task.replace(':', ' ')
        self.code = None  # as `subprocess` gives it
        self.process = waits.start(  # needs the main thread
            command, env={**_ENVIRONMENT, **os.environ, 'TF_CONFIG': config.to_json()}, text=True, errors='replace',
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        say(f'{self.name} is process {self.process.pid}')

    def has_just_ended(self):
        """Return whether the process has ended since the last call, and report the end."""
        if self.code is not None or self.process.poll() is None:
            return False
        self.code = self.process.returncode
        self._reader.join(1)
        say(f'{self.name} ended with exit code {self.code}' if self.code >= 0 else
            f'{self.name} was ended by {signal.Signals(-self.code).name}')
        return True

    def has_failed(self):
        """Return whether the process failed by itself."""
        # A negative code is a signal. TRY_AGAIN is the loss of a peer.
        return self.code is not None and self.code > 0 and self.code != waits.TRY_AGAIN

    def _read(self):
        for line in self.process.stdout:
            say(line.rstrip('\n'), self.name)


class LocalCluster:
    """A cluster on this machine. It ends when its first `num_leaders` processes, the leaders, have ended."""

    def __init__(self, configs: Sequence[cluster_config.ClusterConfig], num_leaders: int,
                 command: Sequence[str]) -> None:
        self._configs, self._num_leaders, self._command = configs, num_leaders, command
        self._parts: list[_Part] = []
        self._num_signals = 0

    def run(self) -> int:
        """Run until all leaders have ended or a process has failed. Return the exit code."""
        for number in waits.STOP_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # such as SIGHUP under nohup
                signal.signal(number, self._pass_on)
        try:
            for config in self._configs:
                self._parts.append(_Part(config, self._command))
            code = self._wait()  # of the process that failed, else of a leader
            return code if code >= 0 else 128 - code  # as a shell reports a signal
        finally:
            self._stop()

    @property
    def _leaders(self):
        return self._parts[:self._num_leaders]

    def _wait(self):
        while any(part.code is None for part in self._leaders):
            time.sleep(_POLL_SECONDS)
            for part in [part for part in self._parts if part.has_just_ended()]:
                if part.has_failed():
                    say('A process has failed: the cluster stops.')
                    return part.code
        return next((part.code for part in self._leaders if part.code), 0)

    def _pass_on(self, number, unused_frame):
        """Pass a signal to the leaders, and kill them at the third signal."""
        self._num_signals += 1
        for part in self._leaders:  # a leader needs the others until it ends
            part.process.send_signal(number if self._num_signals < 3 else signal.SIGKILL)

    def _stop(self):
        for number in waits.STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        for part in self._parts:
            part.process.terminate()
            part.process.send_signal(signal.SIGCONT)  # a stopped process receives nothing else
        deadline = time.monotonic() + _SECONDS_TO_STOP
        for part in self._parts:
            try:
                part.process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                part.process.kill()
                part.process.wait()
            part.has_just_ended()


def main(arguments: list[str]) -> int:
    """Run a cluster, and return its exit code."""
    given, command, mode = _parse(arguments)
    if given.in_own_network:
        _set_up_loopback()
    elif given.isolated and _can_be_isolated(command):
        os.execvp(_OWN_NETWORK[0], [*_OWN_NETWORK, sys.executable, '-m', 'lingpipe', 'local_cluster',
                                      '--in_own_network', *arguments])
    configs = _configs(given, mode)
    num_leaders = len(configs) if mode == cluster_config.MULTI_WORKER else 1
    return LocalCluster(configs, num_leaders, command).run()


def _parse(arguments):
    """Return the launcher's options, the command of all processes, and the value of --cluster."""
    parser = argparse.ArgumentParser(
        prog='lingpipe local_cluster', usage='%(prog)s [options] -- lingpipe train ...',
        description=(__doc__ or '').split('\n')[0])
    parser.add_argument('--workers', type=int, default=2, help='number of workers')
    parser.add_argument('--ps', type=int, default=0, help='number of parameter servers')
    parser.add_argument('--no-isolated', dest='isolated', action='store_false', help=(
        'leave the cluster in the network of this machine, and give each process --trusted_network; else it has a '
        'network of its own, which nothing else reaches and which reaches nothing else, where unshare of util-linux '
        'can, and the command names no gs:// or other remote place'))
    parser.add_argument('--in_own_network', action='store_true', help=argparse.SUPPRESS)
    end = arguments.index('--') if '--' in arguments else len(arguments)
    given, command = parser.parse_args(arguments[:end]), arguments[end + 1:]
    if not command:
        parser.error('the command is missing: end with -- and what each process runs, such as -- '
                     'lingpipe train --model=...')
    if given.workers < 1 or given.ps < 0:
        parser.error(f'--workers={given.workers} --ps={given.ps}: give at least one worker and no negative number.')
    mode = _mode(command)
    if command[0] == 'lingpipe' and not mode:
        parser.error(f'--cluster is missing: each process would do all of {" ".join(command[:2])!r} by itself. Add '
                     f'--cluster={", ".join(cluster_config.MODES[:-1])} or {cluster_config.MODES[-1]}.')
    return given, _by_this_python(command) + ['--trusted_network'] * bool(mode and not given.isolated), mode


def _by_this_python(command):
    if command[0] == 'lingpipe':  # whether or not it is on the search path
        return [sys.executable, '-m', *command]
    return [sys.executable, *command] if command[0].endswith('.py') else command


def _mode(command):
    """Return the value of --cluster in the command, or None."""
    words = ' '.join(command).replace('--cluster ', '--cluster=').split()
    return next((word.partition('=')[2] for word in words if word.startswith('--cluster=')), None)


def _configs(given, mode):
    """Return the `ClusterConfig` of each process, on free ports."""
    numbers = {'chief': int(mode != cluster_config.MULTI_WORKER), 'worker': given.workers, 'ps': given.ps}
    addresses = iter(cluster_config.free_addresses(sum(numbers.values())))
    jobs = {job: [next(addresses) for _ in range(number)] for job, number in numbers.items() if number}
    configs = [cluster_config.ClusterConfig(jobs, job, index) for job in jobs for index in range(len(jobs[job]))]
    if mode in cluster_config.MODES:
        cluster_config.read(environment={'TF_CONFIG': configs[0].to_json()}, mode=mode)
    return configs


def _can_be_isolated(command):
    """Return whether the cluster can run in a new network namespace."""
    if any('://' in word for word in command):
        return False
    is_possible = shutil.which(_OWN_NETWORK[0]) and not subprocess.run(
        [*_OWN_NETWORK, 'true'], stderr=subprocess.DEVNULL, check=False).returncode
    say('The cluster has a network of its own: nobody outside reaches it, and it reaches nothing outside, such as '
        'gs:// or data to download (--no-isolated for that).' if is_possible else
        'This system allows no network of its own (unshare of util-linux fails); --no-isolated goes without it.')
    return is_possible


def _set_up_loopback():
    """Enable the loopback interface of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack('16sh14x', b'lo', _UP))


if __name__ == '__main__':  # as `lingpipe local_cluster`
    sys.exit(main(sys.argv[1:]))
