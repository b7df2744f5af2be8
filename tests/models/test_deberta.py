"""The fused attention of DeBERTa, compared with transformers."""

import warnings

import pytest
import torch
from transformers import BertConfig, BertModel, DebertaV2Config

from tamis.models import deberta

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its code uses parts of torch that are deprecated
    from transformers.models.deberta_v2.modeling_deberta_v2 import DebertaV2Model, build_relative_position

GPU = torch.cuda.is_available()


def network(*, shared: bool, heads: int = 2) -> DebertaV2Model:
    torch.manual_seed(1)
    config = DebertaV2Config(
        vocab_size=100,
        hidden_size=32 * heads,
        num_hidden_layers=2,
        num_attention_heads=heads,
        intermediate_size=64,
        relative_attention=True,
        position_buckets=16,
        max_relative_positions=-1,
        norm_rel_ebd="layer_norm",
        share_att_key=shared,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        type_vocab_size=0,
        initializer_range=0.3,
    )
    return DebertaV2Model(config).eval()


@pytest.mark.gpu
@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("length", [1, 17, 64, 130])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_fused_attention_gives_what_transformers_gives(shared, length, dtype):
    plain = network(shared=shared).cuda()
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(0, 100, (5, length), generator=generator).cuda()
    lengths = torch.randint(1, length + 1, (5, 1), generator=generator)
    mask = (torch.arange(length) < lengths).long().cuda()
    with torch.inference_mode():
        exact = plain(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
        network_here = plain.to(getattr(torch, dtype))
        expected = network_here(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
        assert deberta.fuse(network_here) == 2
        found = network_here(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    error, usual = ((each.float() - exact).norm() / exact.norm() for each in (found, expected))
    assert torch.isfinite(found).all()
    assert error < 1.5 * usual + 1e-4  # rounding in this type costs transformers as much
    least, least_usual = (
        torch.nn.functional.cosine_similarity(each.float(), exact, dim=-1).min() for each in (found, expected)
    )
    assert least > least_usual - 0.02


def test_the_buckets_depend_on_the_distance_alone():
    tokens = torch.zeros(1, 40, 8)
    pairs = build_relative_position(tokens, tokens, bucket_size=16, max_position=512)
    table = deberta.bucket_table(pairs, 16)
    at = torch.arange(40)
    assert torch.equal(table[at[:, None] - at[None, :] + 39].long(), (pairs[0] + 16).clamp(0, 31))


def test_other_networks_are_left_alone():
    config = BertConfig(vocab_size=10, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    assert deberta.fuse(BertModel(config)) == 0
