"""What TensorFlow's own compiler for TPUs makes of a variable that is cut over cores, by those of its passes that run
anywhere."""

import re

import pytest
import tensorflow as tf

from lingpipe.spmd import spmd_variables
from tests import needs, virtual_tpu

pytestmark = needs.tensorflow('2.20', 'passes of the compiler for TPUs do not read this program')

# A program for two replicas of two cores as the pass between the two below leaves it, which no CPU build of TensorFlow
# has.
CLUSTERED = '''
module attributes {tf.versions = {producer = 1857 : i32}} {
func.func @main(%a: !slice, %b: !slice, %c: !slice, %d: !slice) {
  tf_device.replicate([%a, %c] as %core0: !slice, [%b, %d] as %core1: !slice) {n = 2 : i32} {
    %whole = "tf.TPUPartitionedInputV2"(%core0, %core1) {ATTRIBUTES} : (!slice, !slice) -> !whole
    "tf_device.cluster"() ({
      %value = "tf.ReadVariableOp"(%whole) : (!whole) -> tensor<2x3xf32>
      %new = "tf.AddV2"(%value, %value) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
      "tf.AssignVariableOp"(%whole, %new) {validate_shape = false} : (!whole, tensor<2x3xf32>) -> ()
      tf_device.return
    }) {use_spmd_for_xla_partitioning = true, num_cores_per_replica = 2 : i64} : () -> ()
    tf_device.return
  }
  func.return
}
}
'''.replace('!slice', 'tensor<!tf_type.resource<tensor<1x3xf32>>>').replace('!whole', 'tensor<!tf_type.resource<tensor<2x3xf32>>>')


def passes(program, *names):
    for name in names:
        program = tf.mlir.experimental.run_pass_pipeline(program, name)
    return program


@pytest.fixture(scope='module')
def program():
    """A program that doubles a variable of which two replicas of two cores have a row each, as MLIR."""
    cores = virtual_tpu.make_spmd_cores(2, (2, 2, 1, 1))
    variable = spmd_variables.SlicedVariable(tf.Variable(tf.zeros([2, 3])), 0, cores)

    @tf.function(autograph=False)
    def double():
        handle = variable.joined()
        cores.run(lambda: cores.assign(handle, 2.0 * cores.read(handle, tf.float32)), ())

    return tf.mlir.experimental.convert_function(double.get_concrete_function(), pass_pipeline='')


def test_the_same_slice_of_all_replicas_comes_together(program):
    reordered = passes(program, *(f'func.func({name})' for name in (
        'tf-executor-island-coarsening', 'tf-executor-to-functional-conversion',
        'tf-tpu-reorder-replicate-partitioned-inputs')))
    replicated = dict(re.findall(r'(%\w+) = "tf.TPUReplicatedInput"\((%arg\d, %arg\d)\)', reordered))
    joined, = re.findall(r'"tf.TPUPartitionedInputV2"\((.*?)\)', reordered)
    assert [replicated[core] for core in joined.split(', ')] == ['%arg0, %arg2', '%arg1, %arg3']


def test_every_core_reads_and_assigns_its_slice(program):
    attributes = re.search(
        r'"tf.TPUPartitionedInputV2"\(.*?\) <?\{(_XlaSharding = ".*?").*?(partition_dims = \[.*?\])', program)
    compiled = passes(CLUSTERED.replace('ATTRIBUTES', 'is_packed = false, ' + ', '.join(attributes.groups())),
                      'tf-resource-op-lifting', 'tf-device-cluster-outlining', 'func.func(tf-tpu-resource-partition)')
    assert re.search(r'partition_dims = \[2, 1\]', attributes[2])
    assert len(re.findall(r'"tf.ReadVariableOp"\(.*-> tensor<1x3xf32>', compiled)) == 2
    assert re.search(r'"tf.TPUPartitionedInputV2".*: \(tensor<1x3xf32>, tensor<1x3xf32>\) -> tensor<2x3xf32>', compiled)
    assert re.search(
        r'"tf.TPUPartitionedOutputV2".*: \(tensor<2x3xf32>\) -> \(tensor<1x3xf32>, tensor<1x3xf32>\)', compiled)
    assert len(re.findall(r'"tf.AssignVariableOp".*tensor<1x3xf32>\) -> \(\)', compiled)) == 2
