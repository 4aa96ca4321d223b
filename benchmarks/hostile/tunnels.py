"""Two tasks of a cluster on machines of their own, joined by a switch, WireGuard or SSH: who listens where, and who is
let in.

    python -m benchmarks.hostile.tunnels

Machines are network namespaces of this one: a with the chief, b with worker 0, c with a stranger, all three on one switch.
It needs root, ip and ss; WireGuard needs wireguard-go and wg, SSH ssh, ssh-keygen and sshd. What is not there is left out.
"""

import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

from absl import app, flags

from benchmarks.support import common

_TUNNELS = flags.DEFINE_list('tunnels', ['none', 'wireguard', 'ssh'], 'What joins the machines of the cluster.')
_PROGRAM = common.ROOT / 'tests/programs/private_task.py'
_FOLDER = pathlib.Path('/run/lingpipe')
_ADDRESSES = {'a': '10.9.0.1', 'b': '10.9.0.2', 'c': '10.9.0.3'}
_IN_TUNNEL = {'a': '10.8.0.1', 'b': '10.8.0.2'}
_NEEDS = {'none': ['ip', 'ss'], 'wireguard': ['wireguard-go', 'wg'], 'ssh': ['ssh', 'ssh-keygen', 'sshd']}
_SETTLED_SECONDS = 2
_ALONE = 'LINGPIPE_ALONE'


def _do(words, machine=None, **options):
    inside = ['ip', 'netns', 'exec', machine] if machine else []
    return subprocess.run([*inside, *words.split()], check=True, text=True, capture_output=True, **options).stdout


def _start(stack, words, machine, **options):
    process = subprocess.Popen(['ip', 'netns', 'exec', machine, *words], text=True, **options)
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def _machines():
    """Makes three machines on a switch."""
    for folder in ('/run/netns', '/run/wireguard', '/run/sshd', _FOLDER):
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    _do('ip link add switch type bridge')
    _do('ip link set switch up')
    for name, address in _ADDRESSES.items():
        _do(f'ip netns add {name}')
        _do(f'ip link add port_{name} type veth peer name eth0 netns {name}')
        _do(f'ip link set port_{name} master switch up')
        for words in (f'addr add {address}/24 dev eth0', 'link set eth0 up', 'link set lo up'):
            _do(f'ip -n {name} {words}')


def _wireguard():
    keys = {name: _do('wg genkey').strip() for name in _IN_TUNNEL}
    for name, other in (('a', 'b'), ('b', 'a')):
        key = _FOLDER / f'{name}.key'
        key.write_text(keys[name])
        _do(f'wireguard-go wg_{name}', name)
        _do(f'wg set wg_{name} private-key {key} listen-port 51820 peer {_do("wg pubkey", input=keys[other]).strip()} '
            f'allowed-ips {_IN_TUNNEL[other]}/32 endpoint {_ADDRESSES[other]}:51820', name)
        _do(f'ip -n {name} addr add {_IN_TUNNEL[name]}/24 dev wg_{name}')
        _do(f'ip -n {name} link set wg_{name} up')
    return [f'{_IN_TUNNEL[name]}:2220' for name in 'ab']


def _ssh(stack):
    users = _FOLDER / 'passwd'
    users.write_text(pathlib.Path('/etc/passwd').read_text() + 'sshd:x:999:65534::/run/sshd:/usr/sbin/nologin\n')
    _do(f'mount --bind {users} /etc/passwd')
    for name in ('host', 'user'):
        subprocess.run(['ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', _FOLDER / name], check=True)
    _start(stack, [shutil.which('sshd'), '-f', '/dev/null', '-D', '-h', f'{_FOLDER}/host', '-o', 'StrictModes=no', '-o',
                   f'AuthorizedKeysFile={_FOLDER}/user.pub', '-o', f'ListenAddress={_ADDRESSES["b"]}'], 'b')
    time.sleep(_SETTLED_SECONDS)
    _start(stack, ['ssh', '-i', f'{_FOLDER}/user', '-o', 'StrictHostKeyChecking=no', '-o', 'UserKnownHostsFile=/dev/null', '-N',
                   '-L', '127.0.0.1:2221:127.0.0.1:2221', '-R', '127.0.0.1:2220:127.0.0.1:2220', _ADDRESSES['b']], 'a')
    time.sleep(_SETTLED_SECONDS)
    return ['127.0.0.1:2220', '127.0.0.1:2221']


def _task(stack, machine, jobs, job):
    environment = {**os.environ, 'PYTHONPATH': common.python_path(),
                   'TF_CONFIG': json.dumps({'cluster': jobs, 'task': {'type': job, 'index': 0}})}
    process = _start(stack, [sys.executable, str(_PROGRAM)], machine, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                     env=environment)
    process.stdout.readline()
    return process


def _ask(process, words):
    process.stdin.write(f'{words}\n')
    process.stdin.flush()


def _stranger(host, port):
    """Returns what comes of a connection from c."""
    program = (f'import socket; s = socket.create_connection(({host!r}, {port}), timeout=2); s.settimeout(2); '
               'print("closed at once" if s.recv(1) == b"" else "let in")')
    tried = subprocess.run(['ip', 'netns', 'exec', 'c', sys.executable, '-c', program], text=True, capture_output=True, check=False)
    return tried.stdout.strip() or tried.stderr.strip().splitlines()[-1].rpartition('] ')[2]


def _row(tunnel):
    with contextlib.ExitStack() as stack:
        _machines()
        chief, worker = {'none': lambda: [f'{_ADDRESSES[name]}:2220' for name in 'ab'], 'wireguard': _wireguard,
                         'ssh': lambda: _ssh(stack)}[tunnel]()
        jobs = {'chief': [chief], 'worker': [worker]}
        a, b = _task(stack, 'a', jobs, 'chief'), _task(stack, 'b', jobs, 'worker')
        _ask(b, 'accept')
        _ask(a, 'ask worker 0')
        answer = a.stdout.readline().strip()
        port = int(worker.rpartition(':')[2])
        listening = _do(f'ss -Hltn sport = :{port}', 'b').split()[3::5]
        stranger = _stranger(_ADDRESSES['b'], port)
        for name in _ADDRESSES:
            for process in _do(f'ip netns pids {name}').split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), 9)
        return [tunnel, worker, ', '.join(listening), answer.removeprefix('answer '), stranger]


def _alone(tunnel):
    """Runs this program again where it sees no network and no /run but its own."""
    command = ['unshare', '--net', '--mount', 'sh', '-c', 'mount -t tmpfs none /run && exec "$0" "$@"', sys.executable, '-m',
               'benchmarks.hostile.tunnels', f'--tunnels={tunnel}']
    done = subprocess.run(command, env={**os.environ, _ALONE: '1'}, cwd=common.ROOT, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main(unused_argv):
    if os.environ.get(_ALONE):
        print(json.dumps(_row(*_TUNNELS.value)))
        return
    tunnels = [tunnel for tunnel in _TUNNELS.value if all(map(shutil.which, [*_NEEDS['none'], *_NEEDS[tunnel]]))]
    common.report(common.markdown_table(
        ['joined by', 'worker 0 in the list', 'listens at', 'bytes that reached it', 'a stranger on the switch'],
        [_alone(tunnel) for tunnel in tunnels]))


if __name__ == '__main__':
    app.run(main)
