"""Eight virtual CPU devices for every test; oneDNN is on or off as TensorFlow sets it for users."""

import gc
import importlib.util
import os
import signal

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('XLA_FLAGS',
                      '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true')  # compiles sooner
# The build for TPUs has no XLA for CPUs, but plain Keras compiles with XLA wherever it sees more than CPUs. The first
# process that loads libtpu sees a TPU system, with or without TPUs. The TPU compiler, which comes with jaxlib, needs it.
if importlib.util.find_spec('jaxlib') is None:
    os.environ.setdefault('TPU_LOAD_LIBRARY', '0')

from lingpipe.devices import device_kinds

device_kinds.use_virtual_devices(8)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script that starts tests in the background ignores it,
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup this one

import pytest
import tensorflow as tf
from tensorflow.python.util import tf_stack

from tests import closeness

# Operations need not remember where they were made: below pytest stacks are deep, and to walk them is a tenth of all
# the work.
_STACK = tf_stack.extract_stack()
tf_stack.extract_stack = lambda stacklevel=1: _STACK

tf.config.list_logical_devices()  # from now on they stay eight, whatever a page or a program under test asks for


# Folders and modules whose graphs TensorFlow optimizes as it does for users. Elsewhere that is a fifth of all the work,
# and what the optimizers may undo (recomputation, the order of actions) is not what is asked.
_OPTIMIZED = {'fuzz', 'test_gpipe_layer_schedules', 'test_layer_memory', 'test_stage_map'}

# Modules that cost little and see most of what an edit can break: `pytest -m quick` runs them.
_QUICK = {
    'cluster': ['cluster_config'],
    'devices': ['device_kinds', 'collectives'],
    'layers': ['amoebanet_operations', 'attention', 'base_layer', 'batch_normalization'],
    'models': ['base_task', 'compiled_loss', 'language_model', 'sampling'],
    'optimizers': ['learning_rate_schedules', 'moving_average'],
    'keras_graph': ['subclassed_model'],
    'partition': ['balancing_table', 'exact_cut', 'layer_memory', 'memory_model'],
    'pipeline': ['gpipe_layer_schedules', 'gradient_flow', 'validation'],
    'schedules': ['files', 'schedule', 'simulation'],
    'rows': ['dependence'],
    'stages': ['graph_pieces', 'losses', 'micro_batches', 'stage_scope'],
    'tests': ['hyperparams', 'model_registry', 'private_names', 'test_names'],
    'training': ['checkpoint_contents_names', 'errors', 'logdir', 'progress']}

# Folders and modules that start clusters, compile for TPUs, install packages, measure, or try many random models:
# `pytest -m slow` runs them, and no other selection does. Rare cases of other tests have the mark themselves.
_SLOW = {
    'slurm', 'fuzz', 'examples', 'faults', 'peers', 'tpu', 'test_local_cluster', 'test_pipeline_hosts',
    'test_hub_models_on_hosts', 'test_multi_worker_training', 'test_own_script', 'test_parameter_servers', 'test_slices', 'test_keras_hub',
    'test_tpu_compiler', 'test_plan_compilation', 'test_plan_compilation_stages', 'test_spmd_on_virtual_cores',
    'test_spmd_replicas', 'test_spmd_step_state', 'test_spmd_cores_training',
    'test_docs', 'test_readme', 'test_schedule_docs', 'test_images', 'test_keras_hub_images', 'test_instruction_training',
    'test_planted_bugs', 'test_fuzz', 'test_benchmarks', 'test_gpu_checklist', 'test_planned_times', 'test_large_batch',
    'test_training_runs', 'test_auto_choice', 'test_generation', 'test_gradient_summation', 'test_first_step'}


def pytest_collection_modifyitems(items):
    """Mark the tests of quick and of slow modules."""
    for item in items:
        if item.path.stem.removeprefix('test_') in _QUICK.get(item.path.parent.name, []):
            item.add_marker(pytest.mark.quick)
        if {item.path.parent.name, item.path.stem} & _SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Optimize graphs where that is asked: before any fixture, since those of a session train models too."""
    plain = _OPTIMIZED.isdisjoint([item.path.parent.name, item.path.stem])
    if tf.config.optimizer.get_experimental_options().get('disable_meta_optimizer') != plain:
        tf.config.optimizer.set_experimental_options({'disable_meta_optimizer': plain})


def pytest_xdist_auto_num_workers():
    """One process more than there are cores: some tests wait for other processes for most of their time."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.fixture(name='assert_close')
def assert_close_fixture():
    return closeness.assert_close


@pytest.fixture(name='assert_gradients_close')
def assert_gradients_close_fixture():
    return closeness.assert_gradients_close


@pytest.fixture(scope='session')
def hub():
    """KerasHub, which not every supported environment has."""
    import keras_hub
    return keras_hub


@pytest.fixture(scope='module', autouse=True)
def garbage_is_looked_for_among_objects_of_this_module_only():
    """Else every collection also walks through all of TensorFlow, and through all graphs that tests before have
    left."""
    gc.collect()
    gc.freeze()
