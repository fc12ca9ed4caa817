"""The transformer on torch's tensors, with torch's own operators; what splits it at attention is given from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks._network import Network

__all__ = ["Attend", "attention", "forward", "placed"]

#: Writes attention of (tokens, 3 * width) into (tokens, width), of so many heads.
Attend = Callable[[Any, Any, int], None]


def placed(torch: Any, network: Network, device: str, dtype: Any) -> Network:
    """The network on a device, weights as ``torch.nn.Linear`` keeps them: (outputs, inputs)."""
    return network.placed(lambda host: torch.from_numpy(host.T.copy()).to(device, dtype))


def attention(torch: Any) -> Attend:
    """Causal attention by torch's fused operator: the break."""
    attend = torch.nn.functional.scaled_dot_product_attention

    def attention(inward: Any, out: Any, heads: int) -> None:
        tokens, width = out.shape
        query, key, value = inward.view(tokens, 3, heads, width // heads).permute(1, 2, 0, 3).unsqueeze(1)
        mixed = attend(query, key, value, is_causal=True)
        out.view(tokens, heads, width // heads).copy_(mixed[0].transpose(0, 1))

    return attention


def forward(torch: Any, network: Network, attend: Attend, x: Any, out: Any) -> None:
    """Write ``out`` from ``x``, both (tokens, width); ``attend`` is `attention`, as it is or as a break."""
    functional, hidden = torch.nn.functional, x
    heads, width = network.shape.heads, (network.shape.width,)
    for layer in network.layers:
        inward = functional.linear(functional.layer_norm(hidden, width, *layer.before_attention), *layer.inward)
        mixed = torch.empty_like(hidden)
        attend(inward, mixed, heads)
        hidden = hidden + functional.linear(mixed, *layer.outward)
        wide = functional.linear(functional.layer_norm(hidden, width, *layer.before_widening), *layer.widening)
        hidden = hidden + functional.linear(functional.gelu(wide, approximate="tanh"), *layer.narrowing)
    out.copy_(functional.layer_norm(hidden, width, *network.last))
