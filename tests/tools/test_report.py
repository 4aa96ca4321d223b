"""The page of a run, read as a browser reads it, against what the run has written and printed."""

import base64
import io
import re
import shlex
import shutil
from html import parser

import pytest
from PIL import Image

from lingpipe import text_tables
from lingpipe.planner import picture
from lingpipe.tools.report import report
from lingpipe.tools.trace import trace
from lingpipe.training import errors, evaluation, inspection, logdir, planning, progress

VOID = {'meta', 'img'}


class Page(parser.HTMLParser):
    """Reads a page, and asserts that every element is closed by its own end tag.

    Attributes:
        tags: list of all (name, attributes).
        sections: {heading: texts below it}.
        images: list of the sources of pictures, by section.
    """

    def __init__(self, text):
        super().__init__()
        self.tags, self._open, self._texts = [], [], []
        self.sections = {'': self._texts}  # what stands above the first heading
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == 'h2':
            self.sections[data] = self._texts = []
        elif data.strip() and self._open[-1] != 'style':
            self._texts.append(data)

    def has(self, section, *texts):
        """Returns whether all of some texts stand, whole, in a section."""
        return set(texts) <= set(self.sections[section])


def page_of(folder, params):
    return Page(report.Report(params, report.Command('lingpipe', 'tiny_digits', str(folder))).text())


def with_test(tiny, **overrides):
    params = tiny.params(**overrides)
    params.Define('test', tiny.evaluation_inputs()['Test'], 'The input of Test.')
    return params


@pytest.fixture(scope='module')
def resumed(tiny, tmp_path_factory):
    """A run of 8 steps that went on to 12."""
    folder = tmp_path_factory.mktemp('resumed') / 'logs'
    for max_steps in (8, 12):
        run = tiny.train(folder, train__max_steps=max_steps, eval__interval_steps=4)
    text = with_test(tiny, train__max_steps=12, eval__interval_steps=4).ToText()
    (folder / 'control/params.txt').write_text(text)  # as the command has it, which knows the input of Test
    return run


def test_commands_of_the_page_can_be_pasted():
    command = report.Command('lingpipe', 'my_model', "my run's")
    words = ['lingpipe', 'plan', '--model=my_model', "--logdir=my run's", '--accelerator=v5e']
    assert shlex.split(command.of('plan', '--accelerator=v5e')) == words


@pytest.fixture(scope='module')
def page(resumed, tiny):
    return page_of(resumed.logdir, with_test(tiny))


def test_a_page_needs_no_other_file_and_no_script(page):
    assert not [tag for tag, _ in page.tags if tag in ('script', 'link', 'iframe', 'object')]
    addresses = [attributes[name] for _, attributes in page.tags for name in ('href', 'src') if name in attributes]
    assert addresses and all(address.startswith(('#', 'data:image/png;base64,')) for address in addresses)
    ids = {attributes.get('id') for _, attributes in page.tags}
    assert {address[1:] for address in addresses if address.startswith('#')} <= ids


def test_curves_of_a_resumed_run_have_all_its_points(page, resumed):
    found = [re.fullmatch(r'(\w+), step (\d+): (\S+)', text) for text in page.sections['Curves']]
    points = [(match[1], int(match[2])) for match in found if match]
    names = ['loss', 'accuracy', 'learning_rate', 'gradient_norm', 'images_per_second', 'bad_records']
    assert [text for text in page.sections['Curves'] if text in names] == names
    assert points.count(('training', 4)) == points.count(('training', 8)) == points.count(('training', 12)) == len(names)
    results = resumed.results['Test']
    assert page.has('Curves', *(f'test, step 12: {value:.4g}' for value in results.values()))
    assert points.count(('test', 4)) == len(results)


def test_partitions_are_those_of_the_analysis(page, resumed):
    layers, partitions, sentence = (resumed.logdir / 'control/model_analysis.txt').read_text().strip().split('\n\n')
    for table in (layers, partitions):
        header, rows = text_tables.read(table)
        assert page.has('Partitions', *header, *(cell for row in rows for cell in row))
    assert page.has('Partitions', sentence, '5 layers')


def test_memory_is_that_of_the_plan(page, tiny):
    planned = planning.plan(tiny.params())
    header, rows = text_tables.read(inspection.partition_table(planned.plan))
    assert page.has('Memory', *header, *(cell for row in rows for cell in row))
    assert page.has('Memory', *(f'device {device}: {picture.to_text(num_bytes)}'
                                for device, num_bytes in enumerate(planned.plan.device_bytes)))
    assert re.fullmatch('lingpipe plan --model=tiny_digits --logdir=.* --accelerator=v5e', page.sections['Memory'][-1])


def test_without_a_trace_the_step_is_simulated(page, tiny):
    milliseconds = 1000 * planning.plan(tiny.params()).plan.timeline.step_time
    title = f'A simulated step, from the operations and bytes of layers: {milliseconds:.4g} ms'
    assert page.has('Timeline of a step', title, 'device 0', 'device 1', 'forward', 'backward')
    assert any(text.startswith('lingpipe trace ') for text in page.sections['Timeline of a step'])


def test_wrong_images_are_as_many_as_the_accuracy_says(page, resumed):
    told, = (text for text in page.sections['Samples'] if ' images of Test ' in text)
    num_wrong, num_images = map(int, re.findall(r'\d+', told)[:2])
    assert 1 - num_wrong / num_images == pytest.approx(resumed.results['Test']['accuracy'])
    captions = [text for text in page.sections['Samples'] if ', classified as ' in text]
    pictures = [attributes['src'] for tag, attributes in page.tags if tag == 'img']
    assert len(captions) == len(pictures) == min(num_wrong, 16) > 0
    assert all(len(set(caption.split(', classified as '))) == 2 for caption in captions)
    assert Image.open(io.BytesIO(base64.b64decode(pictures[0].partition(',')[2]))).size == (8, 8)


def test_configuration_and_versions_are_those_of_the_run(page, resumed):
    text = (resumed.logdir / 'control/params.txt').read_text()
    assert page.has('Configuration', text, f'{len(text.splitlines())} params of this run')
    versions = dict(line.split() for line in (resumed.logdir / 'control/versions.txt').read_text().splitlines())
    assert {'python', 'keras', 'numpy'} <= set(versions)
    assert page.has('Versions', *versions, *versions.values())


def test_a_traced_step_is_drawn_on_its_devices(tiny, tmp_path):
    steps = trace.Trace(tiny.params(), tmp_path).run(3)
    median = sorted(steps, key=lambda step: step.seconds)[1]
    found = page_of(tmp_path, tiny.params())
    title, *texts = found.sections['Timeline of a step']
    milliseconds = float(re.fullmatch(r'A measured step: (\S+) ms', title)[1].replace(',', ''))
    assert milliseconds == pytest.approx(1000 * (median.end - median.asked), rel=1e-3)
    assert texts[:3] == ['CPU:0, partition 0', 'CPU:1, partition 1', 'input']


@pytest.mark.parametrize('content', ['', '{', '[]', '{"traceEvents": []}', '{"traceEvents": [{"name": "thread_name"}]}'])
def test_a_damaged_trace_is_told_and_the_step_is_simulated(content, tiny, tmp_path):
    (tmp_path / 'trace').mkdir()
    (tmp_path / 'trace/trace.json').write_text(content)
    texts = page_of(tmp_path, tiny.params()).sections['Timeline of a step']
    assert texts[0].startswith('A simulated step') and any('This is no trace of --mode=trace' in text for text in texts)


def test_an_empty_folder_says_which_commands_fill_it(tiny, tmp_path):
    found = page_of(tmp_path, tiny.params())
    for section, mode in {'Curves': 'train', 'Partitions': 'train', 'Memory': 'plan', 'Timeline of a step': 'trace',
                          'Samples': 'train', 'Configuration': 'train'}.items():
        assert any(text.startswith(f'lingpipe {mode} --model=tiny_digits --logdir={tmp_path}')
                   for text in found.sections[section]), section
    assert found.has('Configuration', tiny.params().ToText())


HOSTILE = '</pre><script>alert(1)</script><img src=x onerror="y">&amp;\' \x00\x1b[31m \ud800'


def test_hostile_texts_are_shown_as_they_are(resumed, tiny, tmp_path):
    folder = shutil.copytree(resumed.logdir, tmp_path / '<b>&"')
    params = with_test(tiny)
    params.task.name = HOSTILE
    clean = HOSTILE.replace('\x00', '\ufffd').replace('\x1b', '\ufffd').replace('\ud800', '\ufffd')
    (folder / 'control/params.txt').unlink()
    with (folder / 'control/versions.txt').open('a') as file:
        file.write('package<i> <b>1</b>\n')
    found = page_of(folder, params)
    assert not {'script', 'b', 'i'} & {tag for tag, _ in found.tags}
    assert found.has('Versions', 'package<i>', '<b>1</b>')
    assert all('onerror' not in attributes for _, attributes in found.tags)
    assert found.has('', f'{clean} · LingPipe')
    assert any('</pre><script>alert(1)</script><img src=x' in text for text in found.sections['Configuration'])
    assert any(str(folder) in text for text in found.sections['Memory'])


def test_a_model_that_has_changed_since_is_told(resumed, tiny, tmp_path):
    folder = shutil.copytree(resumed.logdir, tmp_path / 'logs')
    (folder / 'control/params.txt').write_text('task.no_such_field : 1\n')
    texts = page_of(folder, with_test(tiny)).sections['Configuration']
    assert texts[0].startswith('The model has changed since: ') and 'no_such_field' in texts[0]
    assert 'task.no_such_field : 1\n' in texts


@pytest.mark.parametrize('field', ['num_partitions', 'num_micro_batches'])
def test_a_step_that_is_too_large_to_simulate_is_told(field, tiny, tmp_path):
    (tmp_path / 'control').mkdir()
    (tmp_path / 'control/params.txt').write_text(f'task.body.{field} : 1000000000\n')
    found = page_of(tmp_path, tiny.params())
    for section in ('Memory', 'Timeline of a step'):
        assert re.search('a step has [24]e.09 calls of partitions, more than the 150,000 ', found.sections[section][0])


def test_evaluations_after_training_are_on_the_page(resumed, tiny, tmp_path):
    folder = shutil.copytree(resumed.logdir, tmp_path / 'logs')
    evaluation.CheckpointEvaluation(tiny.params(), tiny.evaluation_inputs(), str(folder)).once()
    assert page_of(folder, with_test(tiny)).sections['Curves'].count(
        f'test, step 12: {resumed.results["Test"]["accuracy"]:.4g}') == 1


def test_the_page_is_written_into_the_log_directory(tiny, tmp_path, capsys):
    path = report.Report(tiny.params(), report.Command('lingpipe', 'tiny_digits', str(tmp_path))).write()
    assert path == f'{tmp_path}/report.html' == capsys.readouterr().out.strip()
    assert (tmp_path / 'report.html').read_text('utf-8').startswith('<!DOCTYPE html>\n<html lang="en">')


def test_a_folder_that_is_not_there_is_refused(tiny, tmp_path):
    with pytest.raises(errors.TrainingError, match='There is no folder --logdir='):
        report.Report(tiny.params(), report.Command('lingpipe', 'tiny_digits', str(tmp_path / 'typo')))


def test_texts_that_a_model_wrote_are_shown_newest_first(tiny, tmp_path):
    writer = progress.SummaryWriter(logdir.LogDir(tmp_path).train)
    for step in range(1, 8):
        writer.text('sample', f'text of {step}\n  <i>{HOSTILE[:40]}', step)
    writer.flush()
    texts = page_of(tmp_path, tiny.params()).sections['Samples']
    assert [text for text in texts if text.startswith('Step')] == [f'Step {step}' for step in (7, 6, 5, 4, 3)]
    assert f'text of 7\n  <i>{HOSTILE[:40]}' in texts
