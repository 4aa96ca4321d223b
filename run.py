"""The command line of LingPipe in a clone, the same as the command `lingpipe` of an installation.

    python run.py --model=params.amoebanet --mode=train --logdir=logs/amoebanet
"""

import os
import pathlib

from lingpipe import __main__

if __name__ == '__main__':
    folders = [str(pathlib.Path(__file__).resolve().parent), os.environ.get('PYTHONPATH')]
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, folders))  # for the processes that a command starts
    __main__.run()
