"""A few random changes of each kind of file; the attacks by hand that once succeeded are tests of what reads the file."""

from tests import needs

pytestmark = needs.keras_hub


def test_a_short_search_finds_no_fault(load_forking, capsys, table):
    load_forking('hostile.hostile_files', '--changes=2', '--noattacks').main([])
    printed = capsys.readouterr().out
    assert '\n0 faults.\n' in printed, printed
    rows = table(printed)
    assert len(rows) > 15 and {row['faults'] for row in rows} == {'0'}
    assert all(int(row['read']) + int(row['refused']) == 3 and int(row['read']) > 0 for row in rows)
