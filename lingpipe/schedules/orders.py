"""Named schedules of K devices, M micro-batches and V stages per device. Waiting times ignore transfers."""

from collections.abc import Iterable, Sequence
from typing import Any

from lingpipe.schedules.schedule_type import Schedule, named
from lingpipe.schedules.timeline import BACKWARD, FORWARD, WEIGHT, Action


@named('gpipe')
def gpipe(num_devices: int, num_micro_batches: int) -> Schedule:
    """Run all forward passes, then all backward passes in reverse order (GPipe).

    See GPipe, arXiv 1811.06965, Figure 2c. Every device keeps the activations of all M micro-batches. Here three
    devices run four micro-batches, and B takes twice as long as F::

        device 0  F0F1F2F3............B3--B2--B1--B0--
        device 1  ..F0F1F2F3......B3--B2--B1--B0--....
        device 2  ....F0F1F2F3B3--B2--B1--B0--........
    """
    micro_batches = range(num_micro_batches)
    return _one_stage_a_device('gpipe', num_micro_batches, [
        _actions(FORWARD, stage, micro_batches) + _actions(BACKWARD, stage, micro_batches[::-1])
        for stage in range(num_devices)])


@named('1f1b')
def one_forward_one_backward(num_devices: int, num_micro_batches: int) -> Schedule:
    """Run backward passes as early as possible, in turn with forward passes (1F1B).

    See Megatron, arXiv 2104.04473, Figure 4. Devices wait as long as with GPipe. Device i keeps the activations of at
    most min(K - i, M) micro-batches::

        device 0  F0F1F2........B0--F3B1--..B2--..B3--
        device 1  ..F0F1....B0--F2B1--F3B2--..B3--....
        device 2  ....F0B0--F1B1--F2B2--F3B3--........
    """
    return _one_stage_a_device(
        '1f1b', num_micro_batches,
        [_one_forward_one_backward_on(stage, num_devices, num_micro_batches) for stage in range(num_devices)])


@named('interleaved_1f1b', num_virtual_stages=None)
def interleaved_1f1b(num_devices: int, num_micro_batches: int, num_virtual_stages: int) -> Schedule:
    """Run 1F1B with V smaller stages on each device. Stage s is on device s % K.

    See Megatron, arXiv 2104.04473, section 2.2. Devices wait 1 / V as long as with 1F1B, and boundary tensors are sent
    V times as often. Device i keeps the activations of min(2 (K - 1 - i) + (V - 1) K + 1, V M) forward passes. Here
    two devices with two stages each run four micro-batches. '2F0' is the F of micro-batch 0 in stage 2::

        device 0  0F0-0F1-2F0-2F1-0F2-....2B0-----0F3-2B1-----2F2-0B0-----2F3-0B1-----....2B2-----....2B3-----0B2-----0B3-----
        device 1  ....1F0-1F1-3F0-3B0-----3F1-3B1-----1F2-1B0-----1F3-1B1-----3F2-3B2-----3F3-3B3-----1B2-----1B3-----........

    Raises:
        ValueError: M is not a multiple of K, or V is 1.
    """  # noqa: E501
    _check_has_virtual_stages('interleaved_1f1b', num_virtual_stages, '1f1b')
    if num_micro_batches % num_devices:
        fewer = num_micro_batches // num_devices * num_devices
        nearest = ' or '.join(str(number) for number in (fewer, fewer + num_devices) if number)
        raise ValueError(
            f"num_micro_batches={num_micro_batches} is not possible with schedule='interleaved_1f1b' over "
            f'{num_devices} devices: it must be a multiple of {num_devices}. Set num_micro_batches to {nearest}.')
    chunks = range(num_virtual_stages)
    devices = []
    for device in range(num_devices):
        forward = _in_rounds(FORWARD, device, num_devices, num_micro_batches, chunks)
        backward = _in_rounds(BACKWARD, device, num_devices, num_micro_batches, chunks[::-1])
        num_warm_up = 2 * (num_devices - 1 - device) + (num_virtual_stages - 1) * num_devices
        devices.append(_in_turn(forward, backward, num_warm_up))
    return Schedule('interleaved_1f1b', num_devices * num_virtual_stages, num_micro_batches, tuple(devices))


@named('circular', num_virtual_stages=None)
def circular(num_devices: int, num_micro_batches: int, num_virtual_stages: int) -> Schedule:
    """Run GPipe with V smaller stages on each device. Stage s is on device s % K.

    Praxis and MaxText use this order. On each device, all micro-batches run in one stage before the next stage begins.
    For equal stages and M >= K, devices wait (K - 1) / (V M + K - 1) of the time. All devices keep the activations of
    all M micro-batches. One program can run this order on all cores of a TPU. Here two devices with two stages each run
    three micro-batches. '2F0' is the F of micro-batch 0 in stage 2::

        device 0  0F0-0F1-0F2-2F0-2F1-2F2-............2B2-----2B1-----2B0-----0B2-----0B1-----0B0-----
        device 1  ....1F0-1F1-1F2-3F0-3F1-3F2-3B2-----3B1-----3B0-----1B2-----1B1-----1B0-----........

    Raises:
        ValueError: V is 1.
    """
    _check_has_virtual_stages('circular', num_virtual_stages, 'gpipe')
    forward = [[Action(FORWARD, chunk * num_devices + device, micro_batch)
                for chunk in range(num_virtual_stages) for micro_batch in range(num_micro_batches)]
               for device in range(num_devices)]
    return Schedule('circular', num_devices * num_virtual_stages, num_micro_batches, tuple(
        (*actions, *[action._replace(kind=BACKWARD) for action in reversed(actions)]) for actions in forward))


@named('zb_h1')
def zb_h1(num_devices: int, num_micro_batches: int) -> Schedule:
    """Run 1F1B with split backward passes, whose Ws fill the bubble (ZB-H1).

    See Zero Bubble, arXiv 2401.10241, section 2.1. On device i, each W comes i micro-batches after its B. If F,
    B and W take the times T_F, T_B and T_W in every stage, and M >= K, each device waits for a total of
    (K - 1)(T_F + T_B - min(T_F, T_B, T_W)). Devices keep as many activations as with 1F1B. In addition, device i keeps
    tensors for up to i + 1 delayed Ws::

        device 0  F0F1F2....B0W0F3B1W1B2W2B3W3
        device 1  ..F0F1..B0F2B1W0F3B2W1B3W2W3
        device 2  ....F0B0F1B1F2B2W0F3B3W1W2W3
    """
    return _one_stage_a_device('zb_h1', num_micro_batches, [
        _with_delayed_weight_gradients(_one_forward_one_backward_on(stage, num_devices, num_micro_batches), stage)
        for stage in range(num_devices)])


def _one_stage_a_device(name: str, num_micro_batches: int, devices: Any) -> Schedule:
    return Schedule(name, len(devices), num_micro_batches, tuple(map(tuple, devices)))


def _actions(kind: str, stage: int, micro_batches: Iterable[int]) -> tuple[Action, ...]:
    return tuple(Action(kind, stage, micro_batch) for micro_batch in micro_batches)


def _one_forward_one_backward_on(stage: int, num_devices: int, num_micro_batches: int) -> tuple[Action, ...]:
    micro_batches = range(num_micro_batches)
    return _in_turn(
        _actions(FORWARD, stage, micro_batches), _actions(BACKWARD, stage, micro_batches), num_devices - 1 - stage)


def _in_turn(forward: Sequence[Action], backward: Sequence[Action], num_warm_up: int) -> tuple[Action, ...]:
    """Return `num_warm_up` Fs, then F and B alternately, then the remaining Bs."""
    num_turns = max(len(forward) - num_warm_up, 0)
    turns = [action for pair in zip(forward[num_warm_up:], backward) for action in pair]
    return (*forward[:num_warm_up], *turns, *backward[num_turns:])


def _in_rounds(kind: str, device: int, num_devices: int, num_micro_batches: int, chunks: Any) -> tuple[Action, ...]:
    """Return all Fs or all Bs of a device: K micro-batches in each of its stages, then the next K."""
    return tuple(Action(kind, chunk * num_devices + device, micro_batch)
                 for first in range(0, num_micro_batches, num_devices)
                 for chunk in chunks
                 for micro_batch in range(first, first + num_devices))


def _with_delayed_weight_gradients(actions: Sequence[Action], delay: int) -> tuple[Action, ...]:
    """Insert each W `delay` micro-batches after its B."""
    weight_gradients = iter([action._replace(kind=WEIGHT) for action in actions if action.kind == BACKWARD])
    order = []
    for action in actions:
        order.append(action)
        if action.kind == BACKWARD and action.micro_batch >= delay:
            order.append(next(weight_gradients))
    return (*order, *weight_gradients)


def _check_has_virtual_stages(name: str, num_virtual_stages: int, without: str) -> None:
    if num_virtual_stages < 2:
        raise ValueError(
            f'num_virtual_stages={num_virtual_stages} leaves schedule={name!r} with one stage on each device: it must '
            f'be 2 or more. Set num_virtual_stages=2, or schedule={without!r}.')
