"""The command `lingpipe`. `python -m lingpipe` does the same."""

import os
import signal

from lingpipe.command_line import startup


def run() -> None:
    """Run the command line in `sys.argv`, and exit."""
    startup.open_missing()
    startup.allow_all_characters()
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if not is_ignored and os.getpid() != 1:  # the system ignores signals to process 1 that have no handler
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends imports and calls of TensorFlow too, without a traceback
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends commands that only print
    from lingpipe.command_line import command
    command.run()


if __name__ == '__main__':
    run()
