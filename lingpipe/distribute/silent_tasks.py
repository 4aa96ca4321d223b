"""Which tasks of a cluster do not answer. A process that is stopped still accepts connections, so each must compute something."""

import threading

import tensorflow as tf

_SECONDS = 5


def find(config, seconds=_SECONDS):
    """Asks all other tasks at once.

    Args:
        config: `ClusterConfig` of this process.
        seconds: how long to wait.

    Returns:
        List of those that do not answer, such as 'worker:1'.
    """
    others = [task for task in config.tasks('chief', 'worker', 'ps') if task != (config.task_type, config.task_index)]
    answers = {}
    threads = [threading.Thread(target=_ask, args=(config, *task, seconds, answers), daemon=True) for task in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 1)
    return [f'{job}:{index}' for job, index in others if not answers.get((job, index))]


def _ask(config, job, index, seconds, answers):
    device = f'/job:{job}/task:{index}'
    settings = tf.compat.v1.ConfigProto(device_filters=[device], operation_timeout_in_ms=int(1000 * seconds))
    target = f'grpc://{config.jobs[job][index]}'
    try:
        with tf.Graph().as_default(), tf.device(f'{device}/device:CPU:0'):
            one = tf.random.uniform([])  # a constant would be computed here
            with tf.compat.v1.Session(target, config=settings) as session:
                session.run(one)
                answers[job, index] = True
    except tf.errors.OpError:
        answers[job, index] = False
