"""Matrix products by oneDNN: the same numbers, forward and backward, and torch's own again afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rlhf_core.models.layers import matmul
from rlhf_core.models.layers.matmul import use_matmul_backend

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@pytest.fixture(autouse=True)
def _leave_torch_alone() -> Iterator[None]:
    before = bool(matmul._installed)
    yield
    use_matmul_backend("onednn" if before else "torch")


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def into(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b, out=torch.empty(0, dtype=a.dtype))


def added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.ones(a.shape[0], b.shape[1], dtype=a.dtype).addmm_(a, b)


def in_blocks(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return added(a.repeat(matmul.BLOCK_ROWS // a.shape[0] + 1, 1), b)


def scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.addmm(torch.ones(b.shape[1], dtype=a.dtype), a, b, beta=0.5, alpha=2)


def with_bias(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(a.unflatten(0, (2, -1)), b.t(), torch.arange(b.shape[1], dtype=a.dtype))


PRODUCTS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    torch.mm,
    into,
    added,
    in_blocks,
    scaled,
    with_bias,
]
LAYOUTS = {
    "contiguous": (rand(66, 300), rand(300, 200)),
    "transposed": (rand(300, 66).t(), rand(200, 300).t()),
    "strided": (rand(132, 600)[::2, ::2], rand(300, 200)),
    "expanded": (rand(66, 1).expand(66, 300), rand(300, 200)),
    "one row": (rand(2, 8000), rand(8000, 200)),
    "small": (rand(4, 5), rand(5, 6)),
    "empty": (rand(4, 0), rand(0, 6)),
}


@pytest.mark.parametrize("kind", ["onednn", "torch"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_product_is_the_one_in_double_precision(kind: matmul.Products, layout: str) -> None:
    a, b = LAYOUTS[layout]
    want = [product(a, b) for product in PRODUCTS]
    assert use_matmul_backend(kind) == (kind == "onednn")
    for product, exact in zip(PRODUCTS, want, strict=True):
        got = product(a.float(), b.float())
        torch.testing.assert_close(got.double(), exact, atol=1e-3, rtol=1e-5, msg=product.__name__)


def test_large_products_go_to_onednn_and_small_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    product = matmul._product
    use_matmul_backend("torch")
    monkeypatch.setattr(matmul, "_product", lambda a, b, *bias: (sizes.append(len(a)), product(a, b, *bias))[1])
    monkeypatch.setattr(matmul, "_agrees", lambda: True)
    assert use_matmul_backend("onednn")
    layer, x = torch.nn.Linear(300, 200), torch.ones(64, 300, requires_grad=True)
    layer(x).sum().backward()
    assert sizes == [64, 64, 200], "forward, gradient of the input, gradient of the weight"
    layer(x[:1])
    rand(64, 300).mm(rand(300, 200))
    torch.nn.Linear(8, 8)(torch.ones(64, 8))
    assert len(sizes) == 3, "a vector, float64 and a small product are torch's"
    use_matmul_backend("torch")
    layer(x)
    assert len(sizes) == 3


def test_gradients_equal_torchs() -> None:
    def gradients(kind: matmul.Products) -> list[torch.Tensor]:
        use_matmul_backend(kind)
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(200, 300), torch.nn.GELU(), torch.nn.Linear(300, 150))
        net(rand(6, 16, 200).float()).square().mean().backward()
        return [p.grad for p in net.parameters() if p.grad is not None]

    for got, want in zip(gradients("onednn"), gradients("torch"), strict=True):
        assert want.abs().max() > 0
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-4)


def test_what_torch_refuses_is_refused_in_torchs_words() -> None:
    use_matmul_backend("onednn")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.mm(torch.ones(400, 300), torch.ones(299, 400))


def test_wrong_results_keep_it_off(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    use_matmul_backend("torch")
    monkeypatch.setattr(matmul, "_product", lambda a, b, bias=None: torch.zeros(a.shape[0], b.shape[1]))
    assert not use_matmul_backend("onednn")
    assert "differ from torch's" in caplog.text


@pytest.mark.parametrize(
    ("maker", "capability", "gains"),
    [("AuthenticAMD", "AVX512", True), ("GenuineIntel", "AVX512", False), ("AuthenticAMD", "AVX2", False)],
)
def test_the_processor_decides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, maker: str, capability: str, gains: bool
) -> None:
    (tmp_path / "cpuinfo").write_text(f"vendor_id\t: {maker}\n")
    monkeypatch.setattr(matmul, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert use_matmul_backend("auto") is gains
