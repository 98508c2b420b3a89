"""Length of a response: given by its item, or counted with a real tokenizer file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from tasks.errors import CannotJudge, InvalidRequest
from tasks.scoring import lengths
from tasks.scoring.lengths import Tokenizers, length_of
from tasks.scoring.messages import Message
from tests.conftest import ROOT


def make_tokenizer(folder: Path, *words: str) -> None:
    """Build a tokenizer of words, with single characters for unknown text. It enables every feature that would falsify
    a count: special tokens around a text, truncation and padding."""
    marks = ["<s>", "</s>", "<pad>"]
    letters = [f"{start}{chr(code)}" for code in range(33, 127) for start in ("", "##")]
    vocabulary = {piece: at for at, piece in enumerate([*marks, "<unk>", *letters, *words])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=4, pad_token="<pad>", pad_id=2)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture
def tokenizers(tmp_path: Path) -> Tokenizers:
    make_tokenizer(tmp_path / "inside/small-1.5", "the", "cat", "sat")
    make_tokenizer(tmp_path / "inside/other")
    make_tokenizer(tmp_path / "outside")
    return Tokenizers(tmp_path / "inside")


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("the cat", 2), ("the cat sat.", 4), ("the rat", 4), ("cat " * 50, 50)],  # r ##a ##t
)
def test_tokens_are_counted_to_the_end_without_special_tokens(tokenizers: Tokenizers, text: str, tokens: int) -> None:
    assert tokenizers.count("small-1.5", text) == tokens
    assert length_of(text, None, "small-1.5", tokenizers) == tokens


def test_another_tokenizer_gives_another_count(tokenizers: Tokenizers) -> None:
    assert tokenizers.count("other", "the cat") == 6


def test_the_items_own_count_takes_precedence_even_if_it_is_0() -> None:
    assert length_of("the cat", 17, "", Tokenizers()) == 17
    assert length_of("the cat", 17, "not there", Tokenizers()) == 17
    assert length_of("the cat", 0, "not there", Tokenizers()) == 0


def test_the_assistants_turns_of_a_chat_are_counted(tokenizers: Tokenizers) -> None:
    call = {"function": {"name": "sat", "arguments": None}}
    chat = [
        Message(role="user", content="cat cat cat cat cat"),
        Message.model_validate({"role": "assistant", "content": "the cat", "tool_calls": [call]}),
        Message(role="tool", content="the the the the"),
        Message(role="assistant", content="sat"),
    ]
    written = 'the cat\n\n<tool_call>{"name": "sat", "arguments": null}</tool_call>\n\nsat'
    assert length_of(chat, None, "small-1.5", tokenizers) == tokenizers.count("small-1.5", written)
    del chat[1]
    assert length_of(chat, None, "small-1.5", tokenizers) == 1


def test_a_missing_length_names_the_remedy(tokenizers: Tokenizers) -> None:
    with pytest.raises(CannotJudge, match="give the item `response_tokens`, or the spec a `tokenizer`") as caught:
        length_of("the cat", None, "", tokenizers)
    assert caught.value.reason == "length_missing"


def test_an_unknown_tokenizer_lists_the_known_tokenizers(tokenizers: Tokenizers) -> None:
    tokenizers.check("small-1.5")
    with pytest.raises(InvalidRequest, match=r"unknown tokenizer 'smal': use other, small-1.5") as caught:
        tokenizers.check("smal")
    assert caught.value.field == "spec.tokenizer"


def test_without_a_folder_there_are_no_tokenizers(tmp_path: Path) -> None:
    for none in (Tokenizers(), Tokenizers(tmp_path), Tokenizers(tmp_path / "missing")):
        with pytest.raises(InvalidRequest, match="into the folder of ASSAY_TOKENIZERS_DIR"):
            none.check("small")


@pytest.mark.parametrize("name", ["../outside", "..", ".", "", "other/", "./other", "other/../../outside", "other\n"])
def test_a_name_is_never_a_path(tokenizers: Tokenizers, name: str) -> None:
    with pytest.raises(InvalidRequest):
        tokenizers.check(name)
    with pytest.raises(CannotJudge):
        tokenizers.count(name, "the cat")


def test_an_absolute_path_is_no_tokenizer_name(tokenizers: Tokenizers, tmp_path: Path) -> None:
    assert (tmp_path / "outside/tokenizer.json").is_file()
    with pytest.raises(InvalidRequest):
        tokenizers.check(str(tmp_path / "outside"))


def test_a_worker_without_the_tokenizer_fails_the_item(tmp_path: Path) -> None:
    with pytest.raises(CannotJudge, match="This worker has no tokenizer 'small'") as caught:
        length_of("the cat", None, "small", Tokenizers(tmp_path))
    assert caught.value.reason == "tokenizer_unusable"


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": {"type": "Unheard"}}'])
def test_an_invalid_tokenizer_file_fails_the_item(tmp_path: Path, content: str) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/tokenizer.json").write_text(content)
    with pytest.raises(CannotJudge, match="'broken' cannot be loaded: ") as caught:
        length_of("the cat", None, "broken", Tokenizers(tmp_path))
    assert caught.value.reason == "tokenizer_unusable"


def test_a_tokenizer_is_cached_until_its_file_changes(tokenizers: Tokenizers, tmp_path: Path) -> None:
    lengths._load.cache_clear()
    counts = [tokenizers.count("other", "the cat") for _ in range(3)]
    assert (counts, lengths._load.cache_info().misses) == ([6, 6, 6], 1)
    file = tmp_path / "inside/other/tokenizer.json"
    make_tokenizer(file.parent, "the")
    os.utime(file, ns=(0, 0))
    assert tokenizers.count("other", "the cat") == 4


def test_a_name_is_checked_without_the_tokenizers_library(tokenizers: Tokenizers, tmp_path: Path) -> None:
    tokenizers.check("other")
    code = f"""
import sys
from pathlib import Path
sys.modules["tokenizers"] = None  # an import of it fails
from tasks.errors import CannotJudge
from tasks.scoring.lengths import Tokenizers
there = Tokenizers(Path({str(tmp_path / "inside")!r}))
there.check("other")
try:
    there.count("other", "the cat")
except CannotJudge as error:
    print(error.reason)
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert ran.stdout == "tokenizer_unusable\n"
