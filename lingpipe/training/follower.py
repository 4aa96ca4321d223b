"""What the workers of a cluster do that are not its chief: the same steps, and nothing else."""

import tensorflow as tf

from lingpipe.training import errors, experiment, interruption, planning, train_program, validation, worker_program


class Follower:
    """Trains as the chief's `Trainer` does, and leaves checkpoints, curves and evaluation to it.

    It begins with what the chief has read, so that it needs no part in the log directory.

    Args:
        params: the experiment's Params with `task`, `train`, `eval` and `input`, as those of the chief.
        workers: the `Workers`.

    Raises:
        ValueError: a field of `train` or `eval` cannot work.
    """

    def __init__(self, params, workers):
        validation.validate_training_params(params.train, params.eval)
        self._params = params = planning.resolved(params)
        self._workers = workers
        self._input = experiment.build_input(params.input, params.train.random_seed)
        task = experiment.build_task(params, self._input.input_spec, workers.devices)
        self._program = worker_program.WorkerTrainProgram(task, params.train, workers)
        self._step = 0

    def run(self):
        """Trains up to `train.max_steps`, or until a signal asks any worker to stop.

        Raises:
            TrainingError: when a loss is not finite.
        """
        self._program.to_cores()
        self._step = int(self._program.global_step)
        iterator = self._program.iterate(self._input.training_dataset(self._step * self._input.params.batch_size))
        with interruption.catch_signals(lambda: self._program.stopping.assign(True)) as interrupted:
            self._train(iterator, interrupted)
        by = f' by {interrupted.reason}' if interrupted else ''
        print(f'worker:{self._workers.index} stopped{by} after step {self._step}, and with it all workers.', flush=True)

    def _train(self, iterator, interrupted):
        p = self._params.train
        while self._step < p.max_steps and not self._program.has_to_stop(interrupted):
            try:
                self._step += self._program.run(iterator, min(p.steps_per_loop, p.max_steps - self._step)).num_steps
            except tf.errors.InvalidArgumentError as error:
                if train_program.NON_FINITE not in str(error):
                    raise
                raise errors.TrainingError(
                    f'The loss or a gradient of step {int(self._program.global_step) + 1} is not finite; the chief, worker:0, '
                    'says what to do.') from None
