"""What a form's answers may become in a batch script."""

from html.parser import HTMLParser

import pytest
from slurm_form import form, partitions_of, read_request

SITE = {"slurm": {"partitions": {"cpu": {"hours": 4}, "gpu": {"cores": 8, "gpus": 2, "hours": 12, "gres": "gpu:a100"}}}}
PARTITIONS = partitions_of(SITE)


def ask(**answers):
    return read_request(answers, PARTITIONS)


def test_without_answers_the_first_partition_for_an_hour():
    request = ask()
    assert (request.partition.name, request.gres, request.runtime) == ("cpu", "", "1:00:00")


def test_a_form_and_the_api_say_the_same():
    of_form = ask(partition=["gpu"], gpus=["2"], hours=["12"])
    of_api = ask(partition="gpu", gpus=2, hours=12)
    assert of_form == of_api
    assert (of_form.gres, of_form.runtime, of_form.partition.cores) == ("gpu:a100:2", "12:00:00", 8)


REFUSED = [
    *({"partition": name} for name in (["gpu\n#SBATCH --exclusive"], ["gpu --nodelist=login"], ["{{ 7 * 7 }}"],
                                       ["cpu", "gpu"], [], {"name": "gpu"}, None)),
    {"partition": ["cpu"], "gpus": ["1"]},  # that partition has none
    {"partition": ["gpu"], "gpus": ["3"]},
    # int() reads an Arabic digit, signs, underscores and blanks
    *({"gpus": number} for number in (["-1"], ["+0"], ["1_0"], ["0\n"], ["٠"], ["0x0"], [""], [[0]], 0.0, False)),
    *({"hours": number} for number in (["0"], ["5"], ["1:00:00\ntouch /tmp/x"], ["99999999999999999999"], True)),
    {"cmd": "touch /tmp/x"},  # batchspawner would put it in the place of its command
    {"prologue": ["curl"]},
    {"partition": ["cpu"], "reservation": "staff"},
]  # fmt: skip


@pytest.mark.parametrize("answers", REFUSED)
def test_everything_else_is_refused(answers):
    with pytest.raises(ValueError):
        read_request(answers, PARTITIONS)


@pytest.mark.parametrize("answers", [["partition", "cpu"], "cpu", 3, None])
def test_no_fields_at_all_are_refused(answers):
    with pytest.raises(ValueError, match="fields"):
        read_request(answers, PARTITIONS)


def test_a_refusal_does_not_repeat_at_length_what_was_typed():
    with pytest.raises(ValueError) as refused:
        read_request({"x" * 5000: 1}, PARTITIONS)
    assert len(str(refused.value)) < 120


class Fields(HTMLParser):
    def __init__(self):
        super().__init__()
        self.names, self.options, self.tags = [], [], []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        if tag in ("select", "input"):
            self.names.append(given["name"])
        if tag == "option":
            self.options.append(given["value"])


def test_the_form_offers_what_is_read():
    fields = Fields()
    fields.feed(form(PARTITIONS))
    assert fields.names == ["partition", "gpus", "hours"]
    assert fields.options == ["cpu", "gpu"]
    assert all(read_request({"partition": [one]}, PARTITIONS) for one in fields.options)


def test_the_form_shows_a_label_as_text():
    fields = Fields()
    fields.feed(form(partitions_of({"slurm": {"partitions": {"cpu": {"label": "<script>alert(1)</script>"}}}})))
    assert "script" not in fields.tags


@pytest.mark.parametrize("values", [{"gpu": 2}, {"gpus": "2"}, {"hours": -1}, {"cores": True}])
def test_a_partition_that_is_misspelt_is_refused(values):
    with pytest.raises(ValueError, match=r"slurm\.partitions\.cpu"):
        partitions_of({"slurm": {"partitions": {"cpu": values}}})
