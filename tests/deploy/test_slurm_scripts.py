"""The batch scripts of deploy/slurm: when they start a step again, with a stand-in for srun."""

import os
import pathlib
import subprocess

import pytest

_FOLDER = pathlib.Path(__file__).parents[2] / 'deploy/slurm'
_SCRIPTS = sorted(_FOLDER.glob('*.sbatch'))


def _run(script, folder, codes):
    """Run a script; return its exit code, and the words of each srun, which ends with the next of the codes."""
    (folder / 'codes').write_text('\n'.join(map(str, codes)) + '\n')
    program = folder / 'srun'
    program.write_text(f'''#!/bin/bash
echo "$@" >> {folder}/calls
code=$(head -1 {folder}/codes); sed -i 1d {folder}/codes
exit $code
''')
    program.chmod(0o755)
    ended = subprocess.run(['bash', str(script), '--model=m'], check=False, env={
        **os.environ, 'PATH': f'{folder}{os.pathsep}{os.environ["PATH"]}', 'SLURM_JOB_ID': '7'})
    return ended.returncode, (folder / 'calls').read_text().splitlines()


@pytest.mark.parametrize('script', _SCRIPTS, ids=lambda path: path.stem)
@pytest.mark.parametrize('codes, wanted', [
    ([0], 0), ([75, 137, 0], 0), ([75, 1], 1), ([75] * 9, 75)], ids=['complete', 'resumed', 'error', 'quick tries'])
def test_a_step_starts_again_where_that_can_help(script, codes, wanted, tmp_path):
    code, calls = _run(script, tmp_path, codes)
    assert (code, len(calls)) == (wanted, min(len(codes), 5))
    assert all(words.endswith('--trusted_network --model=m') for words in calls)
