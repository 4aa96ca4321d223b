"""What a process of a cluster does, by --cluster and by its task.

                        chief            worker         ps
    pipeline            trains           serves
    parameter_server    trains           serves         serves
    multi_worker                         trains
"""

import math

from lingpipe.distribute import cluster_config, exposure, server


def run(params, datasets, given, started):
    """Trains in a cluster, or serves one that trains.

    Args:
        params: the experiment's Params.
        datasets: {name: Params} of the evaluation inputs.
        given: the parsed `flags.FLAGS`.
        started: time at which the program started, as `time.time()` gives it.
    """
    config = cluster_config.read(given.cluster_spec, task=given.task, mode=given.cluster)
    exposure.warn_about_addresses(config)
    if given.cluster == cluster_config.MULTI_WORKER:
        _train_as_worker(params, datasets, given, config, started)
    elif not config.is_chief:
        server.serve(config, _num_cpu_devices(params.task.body, config, given.cluster), given.device != 'cpu')
    else:
        train = {cluster_config.PIPELINE: _train_pipeline, cluster_config.PARAMETER_SERVER: _train_with_parameter_servers}
        train[given.cluster](params, datasets, given, config, started)
        server.announce_end(config)


def _num_cpu_devices(body, config, mode):
    """Returns into how many devices a server splits its CPU: one for each stage that comes to it."""
    if config.task_type == 'ps' or 'auto' in (body.num_partitions, body.num_replicas):
        return 1
    num_stages = body.num_partitions * body.num_replicas
    return math.ceil(num_stages / config.num_workers) if mode == cluster_config.PIPELINE else num_stages


def _train_pipeline(params, datasets, given, config, started):
    raise NotImplementedError('--cluster=pipeline cannot train yet. Leave --cluster out to train on this machine.')


def _train_as_worker(params, datasets, given, config, started):
    from lingpipe.distribute import watchdog
    from lingpipe.training import worker_training
    with worker_training.losses_in_words(), watchdog.Watchdog(given.step_timeout_seconds, config) as dog:
        kind = None if given.device == 'auto' else given.device.upper()
        params, workers = worker_training.join(params, config, kind, dog)
        worker_training.train(params, datasets, given.logdir, workers, started)


def _train_with_parameter_servers(params, datasets, given, config, started):
    raise NotImplementedError('--cluster=parameter_server cannot train yet. Leave --cluster out to train on this machine.')
