"""Processes that run PyTorch, and its versions: PyTorch may have its own Python, without TensorFlow."""

import contextlib
import json
import math
import os
import subprocess

from benchmarks.support import common

_LOSS_TOLERANCE = 1e-4
_INSTALL = {
    'torch': 'PyTorch is missing, so only LingPipe was measured: {install} (2.5 or later).',
    'torchgpipe': 'torchgpipe is missing, so it was not measured: {install} (0.0.7).'}


def versions(python):
    """Ask an interpreter which peers it has.

    Args:
        python: path of the interpreter.

    Returns:
        Dictionary of the versions of 'torch' and 'torchgpipe', None for what cannot be imported.

    Raises:
        ValueError: there is no such interpreter, or it fails.
    """
    try:
        finished = subprocess.run(
            [python, '-m', 'benchmarks.peers.versions'], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ValueError(f'--torch_python={python!r} does not run ({error}). Name the Python of an environment in '
                         'which PyTorch is installed, such as /path/to/venv/bin/python.') from error
    return json.loads(finished.stdout)


def what_to_install(python, found):
    """Return the sentence about what is missing, or None.

    Args:
        python: path of the interpreter.
        found: what `versions` gave.
    """
    missing = [name for name in _INSTALL if found[name] is None]
    if not missing:
        return None
    return _INSTALL[missing[0]].format(install=f'`{python} -m pip install {" ".join(missing)}`')


class Peer:
    """A configuration of a peer at work, in as many processes as it has ranks.

    Args:
        python: path of the interpreter.
        requests: list of dictionaries, one for each process: what `torch_step.py` takes.
        problem: dictionary of what `lingpipe_step.write_problem` gives.
    """

    def __init__(self, python, requests, problem):
        self._problem = problem
        with contextlib.ExitStack() as stack:
            self._processes = [stack.enter_context(_start(python, request)) for request in requests]
            self._stack = stack.pop_all()

    def next(self):
        """Let every process do its next step.

        Returns:
            The first time a dictionary with 'num_parameters' and 'loss', then seconds of a step, until the last rank
            ends.

        Raises:
            common.ProcessDied: a process gave up or was killed.
            ValueError: the peer trains another model than LingPipe.
        """
        for process in self._processes:
            process.ask()
        answers = [process.answer() for process in self._processes]
        if isinstance(answers[0], dict):
            losses = [answer['loss'] for answer in answers if answer['loss'] is not None]
            return self._same_model({**answers[0], 'loss': losses[0]})
        return max(answers)

    def _same_model(self, first):
        if (first['num_parameters'] != self._problem['num_parameters']
                or not math.isclose(first['loss'], self._problem['loss'], rel_tol=_LOSS_TOLERANCE)):
            raise ValueError(
                f'A peer has {first} where LingPipe has { {name: self._problem[name] for name in first} }. Only the '
                'same model can be compared: make torch_decoder.py do what decoder.py does.')
        return first

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self._stack.close()


def _start(python, request):
    # Threads that spin while they wait take the core from those that they wait for, where another program is at work
    # too.
    environment = {**os.environ, 'OMP_NUM_THREADS': str(request['num_threads']), 'OMP_WAIT_POLICY': 'passive'}
    return common.LineProcess([python, '-m', 'benchmarks.peers.torch_step', json.dumps(request)], environment)


def plain_requests(cores, num_micro_batches):
    """Return the request for the layers without a pipeline, with a thread per core."""
    return [{'library': 'plain', 'num_micro_batches': num_micro_batches, 'cores': cores, 'num_threads': len(cores)}]


def torchgpipe_requests(cores, ends, checkpoint):
    """Return the request for torchgpipe; see `torch_step.torchgpipe_step`."""
    return [{'library': 'torchgpipe', 'ends': ends, 'checkpoint': checkpoint, 'cores': cores, 'num_threads': 1}]


def pipelining_requests(cores, ends, schedule, recomputed, rendezvous):
    """Return a request for each rank of torch.distributed.pipelining, one core and one thread each.

    With two stages per rank they form a V::

        rank 0   stage 0           stage 3
        rank 1      stage 1     stage 2

    Args:
        cores: list of K cores.
        ends: list of indices at which stages end, K or 2 K of them.
        schedule: name of the schedule's class.
        recomputed: list of indices of stages.
        rendezvous: path of a file that does not exist yet, where the ranks meet.
    """
    num_ranks = len(cores)
    return [{'library': 'pipelining', 'ends': ends, 'schedule': schedule, 'recomputed': recomputed, 'rank': rank,
             'own': [rank, 2 * num_ranks - 1 - rank][:len(ends) // num_ranks], 'num_ranks': num_ranks,
             'rendezvous': rendezvous, 'cores': [core], 'num_threads': 1} for rank, core in enumerate(cores)]
