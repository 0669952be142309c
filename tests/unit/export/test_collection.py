"""`trtopt models` and the collection that it lists: no torch is needed for any of it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from trtopt.cli.models import models
from trtopt.errors import UsageError
from trtopt.export.spec import files, find, folder, read_spec

REQUIRED = {
    "resnet50",
    "bert-base",
    "bert-base-packed",
    "bert-large",
    "retinanet",
    "maskrcnn",
    "unet3d",
    "rnnt-encoder",
    "rnnt-prediction",
    "rnnt-joint",
    "dlrm",
    "dlrm-dcnv2",
    "gpt-prefill",
    "gpt-decode",
    "minigo",
    "vit-b16",
    "efficientnet-b0",
    "convnext-t",
    "diffusion-unet",
    "whisper-encoder",
    "digits",
    "digits-transformer",
    "minilm",
}


def test_the_collection_holds_what_it_promises() -> None:
    assert set(files()) >= REQUIRED


@pytest.mark.parametrize("name", sorted(files()))
def test_a_model_file_is_read_and_says_what_it_costs(name: str) -> None:
    spec = read_spec(files()[name])
    for variant in spec.variants.values():
        assert variant.parameters
        assert variant.flops
    assert "tiny" in spec.variants or spec.onnx
    for reference in filter(None, (spec.construct, spec.example, spec.metric, spec.checkpoint)):
        assert (folder() / reference.partition(":")[0]).is_file()


def test_the_list_names_every_model_with_its_cost() -> None:
    said = CliRunner().invoke(models, []).output
    row = next(line for line in said.splitlines() if line.startswith("resnet50"))
    assert row.split()[1:] == ["25.6M", "8.18G", "seeded", "image", "float32[batch,", "3,", "224,", "224]"]
    assert all(name in said for name in REQUIRED)


def test_of_one_model_its_file_is_printed() -> None:
    assert CliRunner().invoke(models, ["maskrcnn"]).output.endswith(files()["maskrcnn"].read_text("utf-8"))


@pytest.mark.parametrize(
    ("wrong", "right"), [("resnet-50", "resnet50"), ("mask-rcnn", "maskrcnn"), ("vit", "vit-b16")]
)
def test_an_unknown_name_suggests_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(UsageError) as caught:
        find(wrong)
    assert repr(right) in caught.value.remedy


def test_a_name_like_nothing_suggests_nothing() -> None:
    with pytest.raises(UsageError) as caught:
        find("qqqqqq")
    assert "did you mean" not in caught.value.remedy
