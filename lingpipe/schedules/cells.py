"""What a cell of a table of actions says, in LingPipe's spelling and in that of torch.distributed.pipelining.

::

    F1  0F1                              forward pass of micro-batch 1, through the stage of the row or stage 0
    B1                                   its backward pass; only the gradients of inputs, if there is also a W1
    I1                                   only the gradients of inputs; there must be a W1
    W1                                   only the gradients of weights
    BW1                                  both, as PyTorch wrote it before I, when every B had its W
    (0F1;1B2)OVERLAP_F_B                 two actions, which run one after the other here
    0SEND_F1  1RECV_F1  1SEND_B1  0RECV_B1     what crosses between devices
    0UNSHARD  0RESHARD  0REDUCE_GRAD           shards of weights, and sums of gradients over replicas
"""

import re
from typing import NamedTuple

from lingpipe.schedules.actions import BACKWARD, FORWARD, WEIGHT

INPUTS, _WHOLE = 'I', 'BW'
_ACTION = re.compile(f'([0-9]{{1,9}})?({FORWARD}|{BACKWARD}|{INPUTS}|{WEIGHT}|{_WHOLE})([0-9]{{1,9}})')
_TRANSFER = re.compile('([0-9]{1,9})((?:SEND|RECV)_[FB])([0-9]{1,9})')
_SHARDS = re.compile('([0-9]{1,9})(UNSHARD|RESHARD|REDUCE_GRAD)()')
_OVERLAP = re.compile(r'\(([^()]*)\)OVERLAP_F_B')


class Cell(NamedTuple):
    """One action, or what accompanies actions.

    Attributes:
        kind: 'F', 'B', 'I', 'W', or another word such as 'SEND_F'.
        stage: index of the stage.
        micro_batch: index of the micro-batch; None if the word has none.
    """

    kind: str
    stage: int
    micro_batch: int | None

    def __str__(self) -> str:
        return f'{self.stage}{self.kind}{"" if self.micro_batch is None else self.micro_batch}'

    @property
    def is_action(self) -> bool:
        """Whether a device computes something."""
        return self.kind in (FORWARD, BACKWARD, INPUTS, WEIGHT)


def parse(text: str, device: int) -> list[Cell]:
    """Reads a cell.

    Args:
        text: its text.
        device: number of its row, which is the stage if the action names none.

    Returns:
        List of one `Cell`, or of those that overlap; empty if the text means nothing.
    """
    overlap = _OVERLAP.fullmatch(text.strip())
    matches = [_match(part.strip()) for part in (overlap[1].split(';') if overlap else [text])]
    if not all(matches):
        return []
    return [Cell(BACKWARD if kind == _WHOLE else kind, int(stage or device), int(micro_batch) if micro_batch else None)
            for stage, kind, micro_batch in (match.groups() for match in matches)]


def _match(text):
    return _ACTION.fullmatch(text) or _TRANSFER.fullmatch(text) or _SHARDS.fullmatch(text)
