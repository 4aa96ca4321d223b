"""One model under a cap on the memory of its process: the plain layers die, the pipeline trains.

    python -m benchmarks.memory.fits_in_memory
"""

import resource

from absl import app, flags

from benchmarks.support import common, models
from lingpipe.devices import device_kinds

flags.FLAGS.set_default('model', 'decoder')
_CAP_MIB = flags.DEFINE_integer(
    'cap_mib', 600, 'Memory that the process may take beyond what it has before the first step.')
_NUM_STEPS = flags.DEFINE_integer('num_steps', 5, 'Training steps.')


def train(num_partitions, recompute, is_capped):
    """Yield a dictionary of the losses of the steps and of the peak in MiB; `num_partitions` 0: the plain layers."""
    device_kinds.use_virtual_devices(max(num_partitions, 1))
    problem = models.problem()
    pipe = models.build_pipe(problem, num_partitions=max(num_partitions, 1), recompute=recompute)
    step = models.pipeline_step(problem, pipe) if num_partitions else models.plain_step(problem, pipe, 1)
    if is_capped:
        _cap_memory(_CAP_MIB.value)
    losses = []
    peak = common.peak_mib(
        lambda: losses.extend(float(step(problem.x, problem.y_true)) for _ in range(_NUM_STEPS.value)))
    yield {'losses': losses, 'peak': peak}


def _cap_memory(mib):
    """Limit the data of this process to what it has now and `mib` more; an allocation beyond it fails."""
    with open('/proc/self/status', encoding='utf-8') as status:
        now = next(int(line.split()[1]) / 1024 for line in status if line.startswith('VmData'))
    limit = round((now + mib) * 2**20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _row(title, num_partitions, recompute, is_capped):
    cap = f'{_CAP_MIB.value} MiB' if is_capped else 'none'
    try:
        found = common.measured(train, num_partitions, recompute, is_capped, environment=common.COUNTING_MEMORY)
    except common.ProcessDied as death:
        return [title, cap, f'died ({str(death)[:60]})', '']
    return [title, cap, f'trains: loss {found["losses"][0]:.3f} to {found["losses"][-1]:.3f}',
            common.mib_text(found['peak'])]


def main(unused_argv):
    pipeline = f'2 partitions, {models.problem().num_micro_batches} micro-batches'
    rows = [
        _row('plain layers', 0, 'none', False),
        _row('plain layers', 0, 'none', True),
        _row(f"{pipeline}, recompute='none'", 2, 'none', True),
        _row(f"{pipeline}, recompute='stage'", 2, 'stage', True),
    ]
    common.report(
        common.Table(['configuration', 'cap', 'outcome', 'allocator peak MiB'], rows), common.MEMORY_NOTE)


if __name__ == '__main__':
    app.run(main)
