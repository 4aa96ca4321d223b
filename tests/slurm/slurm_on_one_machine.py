"""A Slurm of three nodes on this machine, with Debian's programs."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[2]
_PROGRAMS = ('slurmctld', 'slurmd', 'munged', 'srun')
_CONFIGURATION = """
ClusterName=tests
SlurmctldHost=localhost
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=30
FirstJobId={first}
SlurmdParameters=config_overrides
NodeName=127.0.0.[1-3] NodeHostname=localhost Port=[{first}-{last}] CPUs=4 RealMemory=4000
PartitionName=tests Nodes=127.0.0.[1-3] Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """Submits jobs, and looks at their processes; the folder has the configuration, and the jobs' output."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {
            **os.environ, 'SLURM_CONF': str(folder / 'slurm.conf'), 'OMP_NUM_THREADS': '1',
            'PATH': f'{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}',
            'PYTHONPATH': f'{ROOT}{os.pathsep}{ROOT / "tests/programs"}', 'CUDA_VISIBLE_DEVICES': ''}
        for name in ('TF_CONFIG', 'TF_CPP_MIN_LOG_LEVEL'):
            self.environment.pop(name, None)

    def command(self, *words):
        """Run a program of Slurm; return what it prints."""
        return subprocess.run(words, env=self.environment, cwd=self.folder, check=True, capture_output=True,
                              text=True).stdout.strip()

    def submit(self, script, *words, options=(), **variables):
        """Submit a script of deploy/slurm; return the number of the job."""
        self.environment.update(variables)
        printed = self.command(
            'sbatch', '--parsable', '--output=%j.log', *options, str(ROOT / 'deploy/slurm' / script), *words)
        return printed.partition(';')[0]

    def output(self, job):
        """Return what a job has printed so far."""
        path = self.folder / f'{job}.log'
        return path.read_text(errors='replace') if path.exists() else ''

    def state(self, job):
        """Return the state of a job, such as 'RUNNING'."""
        return self.command('squeue', '--noheader', '--states=all', f'--job={job}', '--format=%T')

    def wait_for(self, job, what, seconds=150):
        """Wait until a function of a job's output returns something true, and return it."""
        end = time.monotonic() + seconds
        while not (found := what(self.output(job))):
            assert time.monotonic() < end, self.output(job)
            time.sleep(.1)
        return found

    def wait_for_state(self, job, state):
        """Wait until a job has a state, and not another one at its end."""
        found = self.wait_for(job, lambda output: self.state(job) in {state, 'COMPLETED', 'FAILED', 'TIMEOUT'} and self.state(job))
        assert found == state, self.output(job)

    def end(self, job):
        """Wait until a job is complete; return its output."""
        self.wait_for_state(job, 'COMPLETED')
        return self.output(job)

    def cancel_all(self):
        """End what still runs or waits, and use nodes again that were down."""
        end = time.monotonic() + 60
        while self.command('squeue', '--noheader') and time.monotonic() < end:
            self.command('scancel', '--full', '--signal=KILL', f'--user={os.getuid()}')
            self.command('scancel', f'--user={os.getuid()}')
            time.sleep(1)
        with contextlib.suppress(subprocess.CalledProcessError):  # Slurm uses them already
            self.command('scontrol', 'update', 'NodeName=127.0.0.[1-3]', 'State=RESUME')

    def process_of(self, job, rank):
        """Return the number of the process of a task."""
        wanted = {f'SLURM_JOB_ID={job}', f'SLURM_PROCID={rank}'}
        found = [int(folder.name) for folder in pathlib.Path('/proc').iterdir() if folder.name.isdigit()
                 and wanted <= set(_words(folder / 'environ')) and b'lingpipe' in _bytes(folder / 'cmdline')
                 and b'srun' not in _bytes(folder / 'cmdline') and 'SLURM_STEP_ID' in str(_words(folder / 'environ'))]
        return max(found)


def _words(path):
    return [word.decode(errors='replace') for word in _bytes(path).split(b'\0')]


def _bytes(path):
    try:
        return path.read_bytes()
    except OSError:  # it has ended
        return b''


def _free_ports(count):
    """Return the first of some ports that follow each other and are free."""
    for first in range(32000, 32700, count):  # above the ports of jobs (`launchers`), below the ports of clients
        try:
            for port in range(first, first + count):
                socket.create_server(('127.0.0.1', port)).close()
            return first
        except OSError:
            continue
    raise RuntimeError('No ports are free.')


def missing() -> list[str]:
    """Return what is missing to start a Slurm here: programs, or the rights of root."""
    return [name for name in _PROGRAMS if not shutil.which(name)] + ['root'] * bool(os.getuid())


@contextlib.contextmanager
def running(folder: pathlib.Path) -> Iterator[Slurm]:
    """Yield a `Slurm` that runs within this scope."""
    (folder / 'state').mkdir()
    (folder / 'munge.key').write_bytes(os.urandom(128))
    (folder / 'munge.key').chmod(0o600)
    first = _free_ports(4)
    (folder / 'slurm.conf').write_text(_CONFIGURATION.format(
        folder=folder, controller=first, first=first + 1, last=first + 3))
    commands = [['munged', '--foreground', '--force', f'--key-file={folder}/munge.key',
                 f'--socket={folder}/munge.socket', f'--pid-file={folder}/munged.pid', f'--log-file={folder}/munged.log',
                 f'--seed-file={folder}/munge.seed'],
                ['slurmctld', '-D', '-f', f'{folder}/slurm.conf'],
                *[['slurmd', '-D', '-N', f'127.0.0.{node}', '-f', f'{folder}/slurm.conf'] for node in (1, 2, 3)]]
    daemons = [subprocess.Popen(command, stdout=(folder / f'{number}.out').open('w'), stderr=subprocess.STDOUT)
               for number, command in enumerate(commands)]
    found = Slurm(folder)
    try:
        _await_nodes(found)
        yield found
    finally:
        found.cancel_all()
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def _await_nodes(slurm):
    end = time.monotonic() + 60
    while True:
        try:
            if slurm.command('sinfo', '--noheader', '--format=%D %t') == '3 idle':
                return
        except subprocess.CalledProcessError:
            pass
        if time.monotonic() > end:
            told = [path.read_text(errors='replace')[-2000:] for path in sorted(slurm.folder.glob('*.out'))]
            raise RuntimeError('\n'.join(['Slurm did not start.', *told]))
        time.sleep(.2)
