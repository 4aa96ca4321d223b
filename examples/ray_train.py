r"""Trains a model on the workers of a Ray cluster: Ray places the processes, and starts them again after a fault.

    pip install 'ray[train]'
    python examples/ray_train.py --workers=2 -- --model=params.transformer_lm --logdir=/shared/logs/lm

Ray Train gives each worker its place in TF_CONFIG, which `lingpipe train --cluster=multi_worker` reads. All nodes must
see the log directory, because Ray may move a worker after a fault.
"""

import argparse
import sys

import ray.train
from ray.train import tensorflow

from lingpipe.cluster import waits


def train(config):
    """Run the command in a process of its own, which ends with the worker.

    Args:
        config: {'words': arguments of `lingpipe train`}.

    Raises:
        RuntimeError: the command failed; Ray then starts all workers again, and training resumes.
    """
    process = waits.start([
        sys.executable, '-m', 'lingpipe', 'train', '--cluster=multi_worker', '--trusted_network', *config['words']])
    if code := process.wait():
        raise RuntimeError(f'lingpipe ended with exit code {code}; its output says why.')


def main(arguments):
    """Train, and print where Ray keeps its record of the run."""
    parser = argparse.ArgumentParser(usage='%(prog)s [options] -- --model=... --logdir=...', description=__doc__)
    parser.add_argument('--workers', type=int, default=2, help='number of workers')
    parser.add_argument('--gpus', type=float, default=0, help='GPUs of each worker')
    parser.add_argument('--cpus', type=float, default=1, help='CPU cores of each worker')
    parser.add_argument('--max_failures', type=int, default=10, help='how often Ray starts all workers again')
    end = arguments.index('--') if '--' in arguments else len(arguments)
    given, words = parser.parse_args(arguments[:end]), arguments[end + 1:]
    resources = {'CPU': given.cpus} | ({'GPU': given.gpus} if given.gpus else {})
    trainer = tensorflow.TensorflowTrainer(
        train, train_loop_config={'words': words},
        scaling_config=ray.train.ScalingConfig(
            num_workers=given.workers, use_gpu=bool(given.gpus), resources_per_worker=resources),
        run_config=ray.train.RunConfig(failure_config=ray.train.FailureConfig(max_failures=given.max_failures)))
    print(trainer.fit().path)


if __name__ == '__main__':
    main(sys.argv[1:])
