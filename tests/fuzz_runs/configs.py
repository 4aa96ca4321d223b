"""What a run is started with, and what of it may change when it resumes."""

from typing import NamedTuple

MOST_STEPS = 10
_FIELDS = {
    'num_partitions': 'task.body.num_partitions', 'num_micro_batches': 'task.body.num_micro_batches',
    'schedule': 'task.body.schedule', 'recompute': 'task.body.recompute', 'batch_size': 'input.batch_size',
    'interval_steps': 'eval.interval_steps'}
_EXACT = ('num_partitions', 'schedule', 'recompute')  # the same numbers, but for the order of sums


class Config(NamedTuple):
    """The name of a model of `experiment`, and the fields of its params."""

    model: str = 'Tiny'
    num_partitions: int = 1
    num_micro_batches: int = 1
    schedule: str = 'gpipe'
    recompute: str = 'stage'
    batch_size: int = 4
    learning_rate: float = 0.05
    ema_decay: float = 0.0
    max_steps: int = 6
    steps_per_loop: int = 2
    save_interval_seconds: float = 0.0
    save_async: bool = True
    save_max_to_keep: int = 3
    interval_steps: int = 0

    @property
    def numbers(self):
        """The fields that weights depend on."""
        return self[:8]

    @property
    def structure(self):
        """What a checkpoint can be restored into."""
        return self.model, self.ema_decay > 0

    def is_close_to(self, other):
        """Whether all numbers are those of another configuration, but for rounding."""
        exact = _EXACT if self.model == 'Noisy' else (*_EXACT, 'num_micro_batches')
        plain = dict.fromkeys(exact)
        return self._replace(**plain).numbers == other._replace(**plain).numbers

    def words(self):
        """Return the words of the command."""
        fields = self._asdict()
        del fields['model']
        changes = '; '.join(f'{_FIELDS.get(name, "train." + name)}={value!r}' for name, value in fields.items())
        return [f'--model=tests.fuzz_runs.experiment.{self.model}', f'--model_params_override={changes}']


NUMBERS = {
    'model': ('Tiny', 'Momentum', 'Adam', 'Wide', 'Dotted', 'Noisy'), 'num_partitions': (1, 2, 3),
    'num_micro_batches': (1, 2, 4), 'schedule': ('gpipe', '1f1b', 'zb_h1'), 'recompute': ('none', 'stage'),
    'batch_size': (4, 6), 'learning_rate': (0.05, 0.2), 'ema_decay': (0.0, 0.5)}
HABITS = {
    'steps_per_loop': (1, 2, 20), 'save_interval_seconds': (0.0, 600.0), 'save_async': (True, False),
    'save_max_to_keep': (1, 2, 5), 'interval_steps': (0, 2, 3)}
STEPS = (3, 6, 8, MOST_STEPS)
