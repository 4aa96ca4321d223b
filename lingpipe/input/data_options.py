"""How much of an input pipeline runs at the same time; the order of the examples never depends on it."""

import tensorflow as tf


def parallel_calls(num_parallel_calls):
    """Returns what tf.data's transformations take for a field `num_parallel_calls`.

    Args:
        num_parallel_calls: None: tuned by tf.data; 1: one call after another.
    """
    if num_parallel_calls is None:
        return tf.data.AUTOTUNE
    return None if num_parallel_calls == 1 else num_parallel_calls


def parallel_map(dataset, function, num_parallel_calls):
    """Returns `dataset.map(function)`, several calls at a time, with the results in the order of the dataset."""
    calls = parallel_calls(num_parallel_calls)
    return dataset.map(function, num_parallel_calls=calls, deterministic=None if calls is None else True)


def thread_options(num_threads, num_parallel_calls):
    """Returns the `tf.data.Options` under which a pipeline uses the threads that its fields say, and no more.

    Args:
        num_threads: threads of the pipeline's own; None: those of TensorFlow.
        num_parallel_calls: as for `parallel_calls`.
    """
    options = tf.data.Options()
    if num_threads:
        options.threading.private_threadpool_size = num_threads
    if num_parallel_calls == 1:
        options.experimental_optimization.map_parallelization = False  # tf.data would make calls parallel by itself
    return options
