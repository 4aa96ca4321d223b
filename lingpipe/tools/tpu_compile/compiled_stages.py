"""The memory of every device of a pipeline by the TPU compiler's own figures.

Each function that the executor would call is compiled for one device. What else a device holds while one of them works follows
from the order of its calls: a tensor is there from the call that makes it, or the first that reads it, to the last that does::

    device 0   F0   F1   R1   B1   R0   B0        R: recompute
    inputs 0   ├────────────────────────┤
    inputs 1        ├─────────┤
    sums       ├────────────────────────┤         zeros first; beside the new ones while a B works
"""

import itertools
import math
from typing import NamedTuple

import tensorflow as tf

from lingpipe.tools.tpu_compile import tpu_compiler, tpu_hlo


class CompiledDevice(NamedTuple):
    """A device at the fullest moment of its step; sizes in bytes, padded as a TPU stores tensors.

    Attributes:
        weights: weights, and other variables.
        slots: what the optimizer keeps beside the weights.
        gradients: sums of weight gradients.
        waiting: what is kept for calls to come.
        at_work: arguments and outputs of the call under way, but for weights and sums.
        temporaries: what its program needs besides.
        limit: what the compiler lets programs use.
        moment: the call, such as '0B3 backward'.
        refused: whether the compiler found that some program alone does not fit.
        programs: for each function, the pair of the name of its first call, such as '0F0 forward', and its `CompiledProgram`, or
            `OutOfTpuMemory`.
    """

    weights: int
    slots: int
    gradients: int
    waiting: int
    at_work: int
    temporaries: int
    limit: int
    moment: str
    refused: bool
    programs: list

    @property
    def total(self):
        """Bytes of all kinds."""
        return self.weights + self.slots + self.gradients + self.waiting + self.at_work + self.temporaries

    @property
    def fits(self):
        """Whether the device has room for it."""
        return self.total <= self.limit and not self.refused


def compile_stages(step, num_slots, compiler, topology, fast=False):
    """Compiles every function of a step; equal ones once.

    Args:
        step: `stage_calls.StepCalls`.
        num_slots: tensors that the optimizer keeps for each weight.
        compiler: `tpu_compiler.TpuCompiler`.
        topology: see `TpuCompiler.compile`, as for `fast`.
        fast: see there.

    Returns:
        List of `CompiledDevice`, one a device.

    Raises:
        TpuCompileError: the compiler refused a program for another reason than memory.
    """
    programs = _programs(step.calls, compiler, topology, fast)
    sizes = _sizes(step.calls, programs)
    return [_device(step, device, num_slots, programs, sizes, tpu_compiler.topology_memory(topology))
            for device in range(step.schedule.num_devices)]


def _programs(calls, compiler, topology, fast):
    """Returns a dictionary from the name of a function to its `CompiledProgram`, or to `OutOfTpuMemory`."""
    programs, by_text = {}, {}
    for call in calls:
        name = _function_name(call)
        if name not in programs:
            text = _lower(call.operation)
            if text not in by_text:
                by_text[text] = _compile(text, compiler, topology, fast)
            programs[name] = by_text[text]
    return programs


def _compile(text, compiler, topology, fast):
    try:
        return compiler.compile(text, topology, fast=fast)
    except tpu_compiler.OutOfTpuMemory as error:
        return error


def _lower(operation):
    function = operation.graph._get_function(operation.get_attr('f').name)  # else its whole library would be copied
    return tpu_hlo.lower(
        lambda *arguments: function(*arguments), *[tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in operation.inputs])


def _sizes(calls, programs):
    """Returns a dictionary from `tensor.ref()` to its bytes on the device."""
    sizes = {}
    for call in calls:
        operation, program = call.operation, programs[_function_name(call)]
        tensors = [*operation.inputs, *operation.outputs]
        if isinstance(program, tpu_compiler.OutOfTpuMemory):
            padded = [_plain_size(tensor) for tensor in tensors]
        else:
            padded = itertools.chain(*tpu_hlo.entry_sizes(program.hlo))
        for tensor, size in zip(tensors, padded, strict=True):
            sizes[tensor.ref()] = max(size, sizes.get(tensor.ref(), 0))
    return sizes


def _device(step, device, num_slots, programs, sizes, limit):
    calls = [call for call in step.calls if step.schedule.device_of(call.action.stage) == device]
    own = [values for stage, values in enumerate(step.values) if step.schedule.device_of(stage) == device]
    trainable, state = ({tensor.ref() for values in own for tensor in part(values)}
                        for part in (lambda values: values.weights, lambda values: values.state))
    weights = _total(trainable, sizes)
    lifetimes = _lifetimes(calls, trainable | state)
    functions = {_function_name(call): call for call in reversed(calls)}
    found = [(_name(call), programs[function]) for function, call in reversed(functions.items())]
    temporaries = [_temporaries(call, programs[_function_name(call)], sizes) for call in calls]
    fullest = max(range(len(calls)), key=_held(lifetimes, sizes, temporaries).__getitem__)
    call = calls[fullest]
    alive = {ref for ref, (first, last) in lifetimes.items() if first <= fullest <= last}
    made = {tensor.ref() for tensor in call.operation.outputs}
    sums = {tensor.ref() for other in calls for tensor in other.sums} & alive - made
    at_work = {tensor.ref() for tensor in [*call.operation.inputs, *call.operation.outputs]} & alive - sums
    return CompiledDevice(
        weights=weights + _total(state, sizes), slots=num_slots * weights, gradients=_total(sums, sizes),
        waiting=_total(alive - sums - at_work, sizes), at_work=_total(at_work, sizes), temporaries=temporaries[fullest],
        limit=limit, moment=_name(call), programs=found,
        refused=any(isinstance(program, tpu_compiler.OutOfTpuMemory) for _, program in found))


def _lifetimes(calls, lasting):
    """Returns a dictionary from `tensor.ref()` to the indices of the first and the last call during which it is there.

    The zeros that sums begin with wait for nothing: they are there from the start.
    """
    lifetimes = {tensor.ref(): (0, 0) for call in calls for tensor in call.sums}
    for index, call in enumerate(calls):
        for tensor in call.operation.outputs:
            lifetimes[tensor.ref()] = index, index
        for tensor in call.operation.inputs:
            if tensor.ref() not in lasting:
                first, _ = lifetimes.get(tensor.ref(), (index, index))
                lifetimes[tensor.ref()] = first, index
    return lifetimes


def _held(lifetimes, sizes, temporaries):
    """Returns the bytes at each call, but for what lasts."""
    changes = [0] * (len(temporaries) + 1)
    for ref, (first, last) in lifetimes.items():
        changes[first] += sizes[ref]
        changes[last + 1] -= sizes[ref]
    return [held + extra for held, extra in zip(itertools.accumulate(changes), temporaries)]


def _temporaries(call, program, sizes):
    if not isinstance(program, tpu_compiler.OutOfTpuMemory):
        return program.temporaries
    return max(0, program.needed - _total(
        {tensor.ref() for tensor in [*call.operation.inputs, *call.operation.outputs]}, sizes))


def _total(refs, sizes):
    """A weight that no call reads has its plain size."""
    return sum(sizes.get(ref) or _plain_size(ref.deref()) for ref in refs)


def _plain_size(tensor):
    return math.prod(tensor.shape) * tensor.dtype.size


def _name(call):
    return f'{call.action} {call.name}'


def _function_name(call):
    return call.operation.get_attr('f').name
