"""The command `lingpipe`, struck by a fault that `strikes` reads from the environment."""

from lingpipe.command_line import command
from tests.fuzz_runs import strikes

if __name__ == '__main__':
    strikes.prepare()
    command.run()
