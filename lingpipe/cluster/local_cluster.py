r"""Starts a whole cluster on this machine, to try and test it.

    python -m lingpipe.cluster.local_cluster --workers=2 -- lingpipe train --model=params.transformer_lm \
        --logdir=logs/x --cluster=pipeline

Every process runs the same command with its own TF_CONFIG, on a free port of loopback::

    launcher ─┬─> chief        ends the cluster when it ends
              ├─> worker 0     (with --cluster=multi_worker there is no chief: the cluster ends when all workers have)
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
from collections.abc import Mapping, Sequence
from typing import Any

from lingpipe.cluster import child_process, cluster_config

_PROGRAM = 'lingpipe.cluster.local_cluster'
_lock = threading.Lock()
_POLL_SECONDS = .05
_SECONDS_TO_STOP = 10
_OWN_NETWORK = ['unshare', '--net', '--map-root-user']  # of util-linux
_SET_FLAGS, _UP = 0x8914, 0x1  # SIOCSIFFLAGS and IFF_UP of netdevice(7)
_ENVIRONMENT = {  # each process gets a share of this machine only
    'PYTHONUNBUFFERED': '1', 'OMP_NUM_THREADS': '1', 'TF_NUM_INTRAOP_THREADS': '1', 'TF_FORCE_GPU_ALLOW_GROWTH': 'true'}


def say(text: str, name: str = 'launcher') -> None:
    """Prints a line, after the name of the process that it comes from."""
    with _lock:
        sys.stdout.write(f'[{name}] {text}\n')
        sys.stdout.flush()


class Part:
    """A process of the cluster.

    Args:
        config: its `ClusterConfig`.
        command: list of words.
        environment: dict of its environment, without TF_CONFIG.
        log_dir: folder for a file of its output, or None.

    Attributes:
        name: such as 'worker 1'; 'chief'.
        code: its return code, as `subprocess` gives it; None: it runs.
    """

    def __init__(self, config: cluster_config.ClusterConfig, command: Sequence[str], environment: Mapping[str, str],
                 log_dir: str | None = None) -> None:
        self.name = config.task_type if config.task_type == 'chief' else config.task.replace(':', ' ')
        self.code: int | None = None
        self._command = command
        self._environment = {**environment, 'TF_CONFIG': config.to_json()}
        path = os.path.join(log_dir, self.name.replace(' ', '_') + '.log') if log_dir else None
        self._log = open(path, 'a', encoding='utf-8') if path else None
        self._process: Any = None
        self._reader: Any = None

    def start(self) -> None:
        """Starts it; call this from the main thread."""
        self._process = child_process.start(
            self._command, env=self._environment, text=True, errors='replace', stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        say(f'{self.name} is process {self._process.pid}')

    def poll(self) -> bool:
        """Returns whether it has just ended."""
        if self.code is not None or self._process.poll() is None:
            return False
        self.code = self._process.returncode
        self._reader.join(1)
        say(f'{self.name} {child_process.ending(self.code)}')
        return True

    def is_running(self) -> bool:
        """Returns whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def is_lost(self) -> bool:
        """Returns whether it was killed, or ended because another process was lost."""
        return self.code is not None and (self.code < 0 or self.code == child_process.TRY_AGAIN)

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it runs."""
        if self.is_running():
            self._process.send_signal(number)

    def stop(self, seconds: float) -> None:
        """Waits for its end, and kills it after some seconds."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.poll()
        if self._log:
            self._log.close()

    def _read(self, lines):
        for line in lines:
            say(line.rstrip('\n'), self.name)
            if self._log and not self._log.closed:
                self._log.write(line)
                self._log.flush()


class LocalCluster:
    """Processes of this machine that make up a cluster.

    Args:
        parts: list of `Part`s.
        leaders: the parts with whose end the cluster ends.
    """

    def __init__(self, parts: Sequence[Part], leaders: Sequence[Part]) -> None:
        self._parts = parts
        self._leaders = leaders
        self._num_signals = 0

    def run(self) -> int:
        """Starts all parts and waits for the leaders; then stops the others.

        Returns:
            The exit code: that of the first leader that did not end well, or of a part that failed.
        """
        for number in child_process.STOP_SIGNALS:
            signal.signal(number, self._pass_on)
        try:
            for part in self._parts:
                part.start()
            code = self._wait()
        finally:
            self._stop()
        return child_process.exit_code(code)

    def _wait(self):
        while any(part.code is None for part in self._leaders):
            time.sleep(_POLL_SECONDS)
            for part in [part for part in self._parts if part.poll()]:
                if part.code and not part.is_lost():
                    say(f'{part.name} failed: the cluster stops.')
                    return part.code
        return next((part.code for part in self._leaders if part.code), 0)

    def _pass_on(self, number, unused_frame):
        """Passes signals only to the leaders, which need the others until they end; the third one kills the leaders."""
        self._num_signals += 1
        for part in self._leaders:
            part.send_signal(number if self._num_signals < 3 else signal.SIGKILL)

    def _stop(self):
        for number in child_process.STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        running = [part for part in self._parts if part.is_running()]
        for part in running:
            part.send_signal(signal.SIGTERM)
            part.send_signal(signal.SIGCONT)  # one that was stopped hears nothing else
        deadline = time.monotonic() + _SECONDS_TO_STOP
        for part in running:
            part.stop(max(0, deadline - time.monotonic()))


def main(arguments: list[str]) -> int:
    """Runs a cluster; returns its exit code."""
    given, command = _parse(arguments)
    mode = _mode(command)
    if given.in_own_network:
        _set_up_loopback()
    elif _is_isolated(given.isolated, command):
        os.execvp(_OWN_NETWORK[0], [*_OWN_NETWORK, sys.executable, '-m', _PROGRAM, '--in_own_network', *arguments])
    configs = _configs(_jobs(given.workers, given.ps, mode), mode)
    if given.log_dir:
        os.makedirs(given.log_dir, exist_ok=True)
    environment = _ENVIRONMENT | dict(os.environ)
    parts = [Part(config, command, environment, given.log_dir) for config in configs]
    leaders = parts if mode == cluster_config.MULTI_WORKER else parts[:1]
    return LocalCluster(parts, leaders).run()


def _parse(arguments):
    """Returns the launcher's own settings, and the command that each process runs."""
    parser = argparse.ArgumentParser(
        prog=f'python -m {_PROGRAM}', usage='%(prog)s [options] -- lingpipe train ...',
        description=__doc__.split('\n')[0])
    parser.add_argument('--workers', type=int, default=2, help='number of workers')
    parser.add_argument('--ps', type=int, default=0, help='number of parameter servers')
    parser.add_argument('--log_dir', help='folder for a file of the output of each process')
    parser.add_argument('--isolated', action=argparse.BooleanOptionalAction, default=None, help=(
        'give the cluster a network of its own, which nothing else can reach and which reaches nothing else; '
        'by default where unshare of util-linux can, and the command names no gs:// or other remote place; '
        '--no-isolated also gives each process --trusted_network'))
    parser.add_argument('--in_own_network', action='store_true', help=argparse.SUPPRESS)
    end = arguments.index('--') if '--' in arguments else len(arguments)
    given, command = parser.parse_args(arguments[:end]), arguments[end + 1:]
    if not command:
        parser.error('the command is missing: end with -- and what each process runs, such as -- '
                     'lingpipe train --model=...')
    if given.workers < 1 or given.ps < 0:
        parser.error(f'--workers={given.workers} --ps={given.ps}: give at least one worker and no negative number.')
    is_trusted = _mode(command) and (given.in_own_network or given.isolated is False)
    return given, _by_this_python(command) + ['--trusted_network'] * bool(is_trusted)


def _by_this_python(command):
    if command[0] == 'lingpipe':  # whether or not it is on the search path
        return [sys.executable, '-m', *command]
    return [sys.executable, *command] if command[0].endswith('.py') else command


def _mode(command):
    """Returns what the command says --cluster is, or None."""
    words = ' '.join(command).replace('--cluster ', '--cluster=').split()
    return next((word.partition('=')[2] for word in words if word.startswith('--cluster=')), None)


def _jobs(num_workers, num_parameter_servers, mode):
    num_chiefs = 0 if mode == cluster_config.MULTI_WORKER else 1
    numbers = {'chief': num_chiefs, 'worker': num_workers, 'ps': num_parameter_servers}
    addresses = iter(cluster_config.free_addresses(sum(numbers.values())))
    return {job: [next(addresses) for _ in range(number)] for job, number in numbers.items() if number}


def _configs(jobs, mode):
    configs = [cluster_config.ClusterConfig(jobs, job, index) for job in jobs for index in range(len(jobs[job]))]
    if mode in cluster_config.MODES:
        cluster_config.read(environment={'TF_CONFIG': configs[0].to_json()}, mode=mode)
    return configs


def _is_isolated(is_wanted, command):
    """Returns whether the cluster gets a network of its own: if that is wanted, or possible and harmless; says so."""
    if is_wanted is False or is_wanted is None and any('://' in word for word in command):
        return False
    is_possible = shutil.which(_OWN_NETWORK[0]) and not subprocess.run(
        [*_OWN_NETWORK, 'true'], stderr=subprocess.DEVNULL, check=False).returncode
    if is_wanted and not is_possible:
        raise ValueError('--isolated: this system allows no network of its own (unshare of util-linux fails). Leave it '
                         'out, and close the ports in the firewall.')
    say('The cluster has a network of its own: nobody outside reaches it, and it reaches nothing outside, such as '
        'gs:// or data to download (--no-isolated for that).' if is_possible else
        'This system allows no network of its own (unshare of util-linux fails); --no-isolated goes without it.')
    return is_possible


def _set_up_loopback():
    """Sets up the loopback interface, which is down in a new network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack('16sh14x', b'lo', _UP))


if __name__ == '__main__':
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # when the reader of the output has gone, the cluster ends too
    try:
        sys.exit(main(sys.argv[1:]))
    except (ValueError, OSError) as error:
        sys.exit(f'Error: {error}')
