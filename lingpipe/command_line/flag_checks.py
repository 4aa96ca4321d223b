"""Flags that do not go together are refused before anything is imported or written."""

import os

from absl import app, logging

_FLAGS_OF_ONE_MODE = {
    'plan': ('accelerator', 'device_memory', 'num_devices', 'compile', 'tpu_topology'),
    'generate': ('prompt', 'num_tokens', 'temperature', 'top_k', 'seed')}
_MODES_OF_CLUSTERS = {'pipeline': ('train', 'trace'), 'multi_worker': ('train',), 'parameter_server': ('train',)}
_FLAGS_OF_CLUSTERS = ('cluster_spec', 'task', 'step_timeout_seconds')


def check(given):
    """Refuses flags that are missing, or that do not go with the others.

    Args:
        given: the parsed `flags.FLAGS`.

    Raises:
        UsageError: the first mistake, and what to do about it.
    """
    _check_mode(given)
    _check_devices(given)
    _check_cluster(given)
    if given['max_restarts'].present and given.mode != 'train':
        raise app.UsageError('--max_restarts is for --mode=train only.')


def _check_mode(given):
    if not given.model:
        raise app.UsageError('--model is missing: give, for instance, --model=params.amoebanet, or see --mode=list.')
    if given.follow and given.mode != 'eval' or given.checkpoint and given.mode not in ('eval', 'export', 'generate'):
        raise app.UsageError(
            f'{"--checkpoint is for --mode=eval, export and generate" if given.checkpoint else "--follow is for --mode=eval"} only. To train from the weights of a '
            "checkpoint, set train.init_from_checkpoint, as in --model_params_override='train.init_from_checkpoint=PATH'.")
    if given.checkpoint and given.follow:
        raise app.UsageError('--checkpoint and --follow were both given. Give one of them.')
    for mode, names in _FLAGS_OF_ONE_MODE.items():
        for name in names:
            if given[name].present and given.mode != mode:
                raise app.UsageError(f'--{name} is for --mode={mode} only.')
    if given['steps'].present and given.mode != 'trace':
        raise app.UsageError('--steps is for --mode=trace only. To train for some steps, set train.max_steps, as in '
                             "--model_params_override='train.max_steps=100'.")
    if given.mode in ('train', 'eval', 'trace', 'export', 'generate') and not given.logdir:
        raise app.UsageError(f'--logdir is missing: --mode={given.mode} needs a folder, such as --logdir=logs/my_run.')


def _check_devices(given):
    if given['tpu_topology'].present and not given.compile:
        raise app.UsageError('--tpu_topology is for --compile only. Give --compile too.')
    if given.tpu and given.device != 'tpu':
        raise app.UsageError(f'--tpu={given.tpu} is for --device=tpu only. Add --device=tpu.')


def _check_cluster(given):
    if given.cluster == 'none':
        for name in _FLAGS_OF_CLUSTERS:
            if given[name].present:
                raise app.UsageError(f'--{name} is for --cluster=pipeline, multi_worker and parameter_server only. Add --cluster.')
        if os.environ.get('TF_CONFIG') and given.mode == 'train':
            logging.warning('TF_CONFIG names a cluster, but --cluster=none trains on this machine only. Give --cluster too, or unset it.')
    elif given.mode not in _MODES_OF_CLUSTERS[given.cluster]:
        modes = ' and '.join(_MODES_OF_CLUSTERS[given.cluster])
        raise app.UsageError(f'--cluster={given.cluster} is for --mode={modes} only. For --mode={given.mode} leave it out.')
    elif given.device == 'tpu':
        raise app.UsageError('--cluster is for CPUs and GPUs only: --device=tpu reaches all hosts of a TPU by itself. Give one of them.')
    if given['update'].present and given.cluster != 'parameter_server':
        raise app.UsageError('--update is for --cluster=parameter_server only. Add --cluster=parameter_server.')
    if given['max_staleness'].present and (given.cluster, given.update) != ('parameter_server', 'async'):
        raise app.UsageError('--max_staleness is for --cluster=parameter_server --update=async only: elsewhere no gradient is stale.')
