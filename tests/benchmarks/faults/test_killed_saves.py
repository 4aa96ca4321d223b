"""Kills at chosen moments of saves, of one process and of a cluster; and what files tell of a kill."""


from lingpipe.cluster import waits
from tests import forked_programs

_RIGHT = ('At the end all values are those of an undisturbed run, bit for bit. No file is left of checkpoints that never '
          'counted.')


def test_a_run_killed_at_each_moment_of_saves_ends_the_same(load_benchmark, table, tmp_path):
    save_moments = load_benchmark('faults.save_moments')
    code, printed, errors = forked_programs.run(
        ['-m', 'benchmarks.faults.killed_saves', '--kills=7', '--at_each_moment=1', '--seconds=0.1'], tmp_path)
    assert code == 0, errors
    assert {row['killed']: row['times, chosen'] for row in table(printed)} == {
        **dict.fromkeys(save_moments.MOMENTS, '1'), save_moments.ELSE: ''}
    assert _RIGHT in printed


def test_shares_of_killed_processes_never_count(load_benchmark, table, tmp_path, monkeypatch, capsys, fork_commands):
    """A worker is killed while it writes its share, and the chief when all shares are written."""
    def start(command, *, env, **unused):
        return forked_programs.ForkedProgram(command[1:], env, tmp_path, has_one_output=True)

    monkeypatch.setattr(waits, 'start', start)
    fork_commands()
    shares = load_benchmark('faults.killed_shares', '--times=1')
    kills = [('worker 1', shares.save_moments.VALUES), ('chief', shares.save_moments.UNLISTED)]
    monkeypatch.setattr(shares, 'KILLS', kills)
    shares.main([])
    printed = capsys.readouterr().out
    assert [(row['killed'], row['moment'], row['times']) for row in table(printed)] == [(*kill, '1') for kill in kills]
    assert 'whose checkpoints have 3 shares. Every listed checkpoint was whole' in printed
    assert _RIGHT in printed
