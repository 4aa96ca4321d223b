import re

import pytest
import tensorflow as tf

from lingpipe.planner import stage_calls
from lingpipe.tools import plan_compilation, stable_hlo, tpu_compiler
from tests import needs
from tests.planner import stacks

pytestmark = [needs.xla_on_cpus, needs.stablehlo]

needs_compiler = needs.tpu_compiler
PRODUCT = re.compile(r' (?:convolution|dot)\(')  # the TPU compiler writes most matrix products as convolutions


class CountingCompiler:
    """Knows of every program only that it needs nothing besides its arguments and outputs."""

    def __init__(self):
        self.num_programs = 0

    def compile(self, program, topology, fast):
        self.num_programs += 1
        arguments, outputs = program[program.index('@main('):].split('\n', 1)[0].split('->')
        hlo = f'HloModule m, entry_computation_layout={{({tensors(arguments)})->({tensors(outputs)})}}'
        return tpu_compiler.CompiledProgram(0, 0, 0, 0.0, hlo, [])


def tensors(text):
    """Return the tensors of StableHLO, such as tensor<4x8xf32>, as HLO writes them: f32[4,8]{0,1}."""
    parts = [tensor.split('x') for tensor in re.findall('tensor<([^>]*)>', text)]
    return ', '.join(f'{kind}[{",".join(sizes)}]{{{",".join(map(str, range(len(sizes))))}}}' for *sizes, kind in parts)


@pytest.fixture(scope='module')
def compiler(tmp_path_factory):
    with tpu_compiler.TpuCompiler(tmp_path_factory.mktemp('compiled')) as compiler:
        yield compiler


def loss(targets, outputs):
    return {'loss': (tf.reduce_mean(tf.square(outputs - targets[0])), tf.cast(tf.shape(outputs)[0], tf.float32))}


def calls(num_layers=8, **fields):
    pipe = stage_calls.unallocated_pipeline(stacks.body(num_layers, **fields), stacks.specs())
    return stage_calls.step_calls(pipe, stacks.specs(), (stacks.specs(),), loss)


def devices(compiler=None, **fields):
    return plan_compilation.compile_stages(calls(**fields), 2, compiler or CountingCompiler(), 'v5e:2x2')


def test_weights_slots_and_sums_are_counted_by_device():
    for device in devices(num_partitions=2, num_micro_batches=4):
        assert (device.weights, device.slots, device.gradients) == tuple(
            4 * stacks.WEIGHTS * times for times in (1, 2, 1))


@pytest.mark.parametrize('recompute, schedule, waiting', [
    ('none', 'gpipe', (3 * 4, 3 * 4)), ('none', '1f1b', (4, 0)), ('stage', 'gpipe', (3, 3)), ('stage', '1f1b', (1, 0))])
def test_what_waits_is_what_the_schedule_keeps_of_other_micro_batches(recompute, schedule, waiting):
    """Each layer of four keeps its input; targets wait on the last device with GPipe, one more row a micro-batch."""
    row = stacks.BATCH // 4 * stacks.ROW
    found = devices(num_partitions=2, num_micro_batches=4, recompute=recompute, schedule=schedule)
    rows = [device.waiting // row for device in found]
    assert rows[0] == waiting[0]
    assert rows[1] in (waiting[1], waiting[1] + 3)


def test_equal_stages_are_compiled_once():
    counting, twice = CountingCompiler(), CountingCompiler()
    devices(counting, num_layers=3, num_partitions=3, num_micro_batches=2)
    devices(twice, num_layers=5, num_partitions=5, num_micro_batches=2)
    assert counting.num_programs == twice.num_programs


@needs_compiler
def test_the_compiler_pads_weights_and_finds_temporaries(compiler):
    device, _ = devices(compiler, num_layers=2, num_partitions=2, num_micro_batches=2)
    assert device.weights == 4 * (64 * 128 + 128)
    assert device.fits and device.moment == '0B1 backward'
    assert all(program.arguments + program.temporaries <= device.total for program in device.programs)


@needs_compiler
def test_recomputation_survives_the_compiler_where_a_step_is_one_program(compiler):
    """Without the barrier before it, the compiler would notice that it has computed the same before, and keep that."""
    specs, found = tf.TensorSpec([2 * 2**11, stacks.WIDTH]), {}
    for recompute in ('none', 'stage'):
        pipe = stage_calls.unallocated_pipeline(stacks.body(
            6, num_partitions=2, num_micro_batches=2, schedule='1f1b', recompute=recompute, partition_by=[3, 6]), specs)
        found[recompute] = compiler.compile(stable_hlo.lower(
            stage_calls.step_function(pipe, loss), specs, (specs,), stage_calls.value_specs(pipe)))
    inputs_of_layers = 2 * 1 * 2  # of 2 micro-batches in the first stage; the last stage recomputes nothing
    products = {recompute: len(PRODUCT.findall(program.hlo)) for recompute, program in found.items()}
    assert products['stage'] == products['none'] + inputs_of_layers
    assert found['stage'].temporaries < found['none'].temporaries
