"""Why a schedule never ends, and which action to move."""

from lingpipe.pipeline.action import BACKWARD, FORWARD


def describe(schedule, positions):
    """Returns a sentence about devices that wait for each other in a circle.

    ::

        device 0  0F0  0B0* 0F1         0B0 waits for 1B0,
        device 1  1F0  1F1* 1B0 1B1     which comes after 1F1, which waits for 0F1, which comes after 0B0

    Args:
        schedule: `Schedule`.
        positions: for each device, the number of actions that it can run before it waits for ever.
    """
    places = {action: (device, position) for device, actions in enumerate(schedule.device_actions)
              for position, action in enumerate(actions)}
    circle = _circle(schedule, positions, places)
    waits = '; '.join(_describe_wait(schedule, positions, places, device, missing) for device, missing in circle)
    return f'Schedule {schedule.name!r} never ends: {waits}. {_advice(schedule, positions, places, circle)}'


def _circle(schedule, positions, places):
    """List of (device, action that it waits for): each action is still to come on the next device of the list."""
    device = next(device for device, actions in enumerate(schedule.device_actions) if positions[device] < len(actions))
    seen = {}
    while device not in seen:
        seen[device] = _missing(schedule, positions, places, device)
        if seen[device] not in places:
            return [(device, seen[device])]
        device = places[seen[device]][0]
    links = list(seen.items())
    return links[list(seen).index(device):]


def _missing(schedule, positions, places, device):
    waiting = schedule.device_actions[device][positions[device]]
    return next(action for action in schedule.dependencies(waiting) if not _is_done(action, positions, places))


def _is_done(action, positions, places):
    if action not in places:
        return False
    device, position = places[action]
    return position < positions[device]


def _describe_wait(schedule, positions, places, device, missing):
    position = positions[device]
    where = 'no device runs'
    if missing in places:
        where = 'device {} runs at position {}'.format(*places[missing])
    return f'device {device} waits at position {position}, {schedule.device_actions[device][position]}, for {missing}, which {where}'


def _advice(schedule, positions, places, circle):
    _, first = circle[0]
    if first not in places:
        return f'Add {first} to the device of its stage.'
    # Data dependencies alone never run in a circle: at least one of these actions is free to move ahead.
    missing, waiting, device = next(
        link for link in (_link(schedule, positions, places, missing) for _, missing in circle) if not _follows(*link[:2]))
    return f'Move {missing} ahead of {waiting} on device {device}, for instance.'


def _link(schedule, positions, places, missing):
    """An action that is waited for, what its device waits at instead, and that device."""
    device = places[missing][0]
    return missing, schedule.device_actions[device][positions[device]], device


def _follows(later, earlier):
    """Whether data make `later` come after `earlier`, or they are the same."""
    if later.micro_batch != earlier.micro_batch or earlier.kind not in (FORWARD, BACKWARD):
        return False
    if later.kind == earlier.kind:
        return later.stage >= earlier.stage if later.kind == FORWARD else later.stage <= earlier.stage
    return earlier.kind == FORWARD
