"""A program for cores of a TPU, taken off them: what is left runs on CPUs, or goes to a compiler."""

import tensorflow as tf


class OffItsCores:
    """A traced step of one replica as an ordinary function: core k becomes CPU k."""

    def __init__(self, concrete, keeps_sums=False, variables=()):
        self._handles = {id(variable._packed_var.packed_handle): variable.values[0].handle for variable in variables}
        self._concrete = concrete
        self._to_identity = {'TPUReplicatedInput', 'TPUReplicatedOutput', *([] if keeps_sums else ['CrossReplicaSum'])}
        definition = concrete.graph.as_graph_def()
        self._outputs = {node.name for node in definition.node if node.op == 'TPUReplicatedOutput'}
        kept = tf.compat.v1.GraphDef(library=definition.library, versions=definition.versions)
        for node in definition.node:
            if node.op not in ('TPUReplicateMetadata', 'TPUCompilationResult'):
                self._add(kept.node.add(), node)
        self._definition = kept

    def _add(self, copy, node):
        copy.CopyFrom(node)
        copy.device = node.device.replace('TPU_REPLICATED_CORE', 'CPU')
        copy.input[:] = [self._of_first_replica(name) for name in node.input if 'TPUReplicateMetadata' not in name]
        copy.attr.pop('_tpu_replicate', None)
        if node.op == 'Assert':  # a program ends before the host looks at its results
            copy.Clear()
            copy.name, copy.op = node.name, 'NoOp'
        if node.op == 'CrossReplicaSum':  # for TPUs only
            copy.op = 'XlaAllReduce'
            copy.attr['reduce_op'].s, copy.attr['mode'].s = b'Add', b'CrossReplica'
        if node.op in self._to_identity:
            copy.op = 'Identity'
            copy.input[:] = copy.input[:1] + [name for name in copy.input if name.startswith('^')]
            for name in set(copy.attr) - {'T'}:
                copy.attr.pop(name)

    def _of_first_replica(self, name):
        producer, _, index = name.partition(':')
        return producer if index and producer in self._outputs else name

    def __call__(self, *batch):
        concrete = self._concrete

        @tf.function(autograph=False)
        def run(batch):
            captured = [tf.compat.v1.get_default_graph().capture(self._handles.get(id(tensor), tensor))
                        for tensor in concrete.captured_inputs]
            fed = dict(zip([tensor.name for tensor in concrete.inputs], [*batch, *captured]))
            names = [tensor.name for tensor in concrete.outputs]
            last = [
                operation.name for operation in concrete.graph.get_operations() if operation.type.startswith('Assign')]
            results = tf.graph_util.import_graph_def(self._definition, fed, names + last, name='')
            with tf.control_dependencies(results[len(names):]):
                return [tf.identity(result) for result in results[:len(names)]]

        return run(batch)
