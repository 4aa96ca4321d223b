"""A separate process for the TPU compiler. If the compiler aborts or hangs, the caller can continue.

Private names of jaxlib are used only here. The process needs no TPU::

    caller ── request ──> worker: StableHLO ─> libtpu's compile-only client of a topology ─> sizes, operations, HLO text
           <── answer ──

`tpu_compiler.TpuCompiler` starts the process: `python -m lingpipe.tools.tpu_compiler_process FILE_DESCRIPTOR`.
"""

import functools
import os
import sys
import time
from multiprocessing import connection

# Without these, libtpu asks the network which machine it is on, allows only one process, and writes log files.
_ENVIRONMENT = {
    'TPU_SKIP_MDS_QUERY': '1', 'TPU_WORKER_HOSTNAMES': 'localhost', 'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
    'ALLOW_MULTIPLE_LIBTPU_LOAD': '1', 'TPU_LOG_DIR': 'disabled'}
_OPTIMIZATION_LEVEL_O1 = 19


def main() -> None:
    """Answer requests until the caller closes the connection."""
    os.environ.update(_ENVIRONMENT)
    channel = connection.Connection(int(sys.argv[1]))
    while True:
        try:
            request = channel.recv()
        except EOFError:
            return
        try:
            answer = _compile(**request)
        except Exception as error:
            answer = {'error': str(error)}
        channel.send(answer)


def _compile(program, topology, num_devices, spmd, fast, num_replicas):
    """Compile a program, and return the fields of its `CompiledProgram`."""
    from jaxlib import _jax
    from jaxlib.mlir import ir
    devices = _devices(topology)[:num_devices * num_replicas]
    with _context():
        module = ir.Module.parse(program)
        _erase_copies(module, ir)
        begin = time.perf_counter()
        executable = devices[0].client.compile(
            module, executable_devices=_jax.DeviceList(tuple(devices)),
            compile_options=_options(module, devices, spmd, fast, num_replicas))
        seconds = time.perf_counter() - begin
    sizes = executable.get_compiled_memory_stats()
    return {
        'arguments': sizes.argument_size_in_bytes, 'outputs': sizes.output_size_in_bytes,
        'temporaries': sizes.temp_size_in_bytes, 'seconds': seconds, 'hlo': executable.hlo_modules()[0].to_string(),
        'coordinates': [[*device.coords, device.core_on_chip] for device in devices]}


@functools.cache
def _devices(topology):
    import libtpu
    from jaxlib import xla_client
    if not xla_client.pjrt_plugin_loaded('tpu'):
        xla_client.load_pjrt_plugin_dynamically('tpu', libtpu.get_library_path())
        xla_client.initialize_pjrt_plugin('tpu')
    return xla_client.make_tfrt_tpu_c_api_device_topology(topology)._make_compile_only_devices()


@functools.cache
def _context():
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext, _mlirHlo
    from jaxlib.mlir.dialects import chlo, stablehlo
    context, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for register in (_mlirHlo.register_mhlo_dialect, stablehlo.register_dialect, chlo.register_dialect):
        register(context)
    return context


def _erase_copies(module, ir):
    """Erase TensorFlow's copies of donated tensors."""
    copies = []

    def visit(operation):
        if operation.name == 'mhlo.copy':  # StableHLO neither has nor needs such operations
            copies.append(operation)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for copy in copies:
        copy.results[0].replace_all_uses_with(copy.operands[0])
        copy.erase()


def _options(module, devices, spmd, fast, num_replicas):
    import numpy as np
    from jaxlib import xla_client
    options = xla_client.CompileOptions()
    identities = np.array([device.id for device in devices]).reshape(num_replicas, -1)
    options.num_replicas, options.num_partitions = identities.shape
    options.device_assignment = xla_client.DeviceAssignment.create(identities)
    build = options.executable_build_options
    if fast:
        build.optimization_level = _OPTIMIZATION_LEVEL_O1
    if spmd:  # the compiler chooses the sharding of inputs and outputs
        build.use_spmd_partitioning = True
        main_function = next(
            function for function in module.body.operations if function.attributes['sym_name'].value == 'main')
        build.allow_spmd_sharding_propagation_to_parameters = [True] * len(main_function.type.inputs)
        build.allow_spmd_sharding_propagation_to_output = [True] * len(main_function.type.results)
    return options


if __name__ == '__main__':
    main()
