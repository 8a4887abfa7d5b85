"""The reasons that Triton's log gives for a config.pbtxt that it cannot read. The lines are those of Triton 2.51."""

import pytest

from triton_sam.local_server.probe import NOT_LOADED, explain, unread_configs

PARSER = "[libprotobuf ERROR /tmp/text_format.cc:337] Error parsing text-format inference.ModelConfig: "
POLL = "E1123 23:57:23.729339 7829 model_repository_manager.cc:1460] \"Poll failed for model directory 'decoder': "
UNREADABLE = POLL + 'failed to read text proto from /tmp/run/models/decoder/config.pbtxt"'
ANOTHER = PARSER.replace("ModelConfig", "Another")


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "decoder").mkdir()
    (tmp_path / "decoder" / "config.pbtxt").write_text('name: "decoder"\n  max_batch_size: zero\n')
    return tmp_path


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("2:19: Expected integer, got: zero", "line 2: Expected integer, got: zero in `max_batch_size: zero`"),
        ("3:1: Expected identifier, got: ", "line 3: Expected identifier, got:"),  # at the end of the file
    ],
)
def test_the_file_the_line_and_the_reason_are_named(repository, error, reason):
    log = "\n".join([PARSER + error, UNREADABLE, "I1123 grpc_server.cc:2558] started"])
    assert unread_configs(log, repository) == {"decoder": f"{repository / 'decoder' / 'config.pbtxt'}, {reason}"}


def test_a_reason_belongs_to_the_model_in_the_next_line_alone(repository):
    refused = POLL.replace("decoder", "other") + 'Invalid model name: Could not determine backend"'
    log = "\n".join([PARSER + "2:19: Expected integer, got: zero", UNREADABLE, refused])
    found = unread_configs(log, repository)
    assert list(found) == ["decoder", "other"]
    assert found["other"] == f"{repository / 'other' / 'config.pbtxt'}: Invalid model name: Could not determine backend"


def test_a_file_that_is_gone_is_named_without_a_quote(tmp_path):
    log = f"{PARSER}2:19: Expected integer, got: zero\n{UNREADABLE}"
    assert unread_configs(log, tmp_path) == {
        "decoder": f"{tmp_path / 'decoder' / 'config.pbtxt'}, line 2: Expected integer, got: zero"
    }


def test_a_log_without_such_a_failure_gives_nothing(repository):
    assert unread_configs("", repository) == {}
    assert unread_configs(f"{ANOTHER}1:1: Expected identifier\n{PARSER}1:1: Expected identifier", repository) == {}


ERROR = "E1128 09:20:12.272700 12576 model_repository_manager.cc:703] "
SHAPES = "in ensemble sam2_encoder_jpeg, ensemble tensor image: inconsistent shape"


def test_an_ensemble_that_does_not_fit_its_models_says_why(tmp_path):
    other = f'{ERROR}"Invalid argument: in ensemble sam2_encoder_jpeg_2, other"'
    log = "\n".join([f'{ERROR}"Invalid argument: {SHAPES}"', other, f'{ERROR}"Internal: failed to load all models"'])
    failures = {"sam2_encoder_jpeg": NOT_LOADED, "sam2": NOT_LOADED, "sam2_decoder": "another reason"}
    assert explain(failures, log, tmp_path) == {**failures, "sam2_encoder_jpeg": SHAPES}


def test_a_process_that_ended_has_the_last_words(tmp_path):
    log = f"{ERROR}other\nterminate called after throwing an instance of 'x'\n  what():  no luck\n"
    reason = "Stub process 'sam2_0_0' is not healthy."
    (text,) = explain({"sam2": reason}, log, tmp_path).values()
    assert text == f"{reason[:-1]}: terminate called after throwing an instance of 'x' /   what():  no luck"
