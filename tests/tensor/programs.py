"""Random programs of torch operations, as lines of code that run the same with and without a mesh."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import monarch.tensor as mt
from monarch.tensor.controller.activation import active_mesh

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int16",
    "uint8",
    "bool",
    "complex64",
)
SCALARS = ("0", "1", "-1", "2", "3", "0.5", "-1.5", "2.0", "True", "1e-3", "1j")
REAL = SCALARS[:-1]

# {x}, {y}: tensors of the program, {z}: one of the shape of {x}; {d}: a dimension of {x}; {i}: an index there; {n}: 1, 2
# or 3; {s}: a number; {r}: a real one; {t}: a type. G is a generator.
VIEWS = (
    "{x}[{i}]",
    "{x}[1:]",
    "{x}[:, 1:]",
    "{x}[::2]",
    "{x}[..., None]",
    "{x}[..., -1]",
    "{x}[None, 1:]",
    "{x}.t()",
    "{x}.mT",
    "{x}.transpose({d}, -1)",
    "{x}.permute(*reversed(range({x}.dim())))",
    "{x}.unsqueeze({d})",
    "{x}.squeeze()",
    "{x}.squeeze({d})",
    "{x}.expand(2, *{x}.shape)",
    "{x}.expand_as({y})",
    "{x}.reshape(-1)",
    "{x}.view(-1)",
    "{x}.view({x}.shape)",
    "{x}.flatten()",
    "{x}.unflatten({d}, (1, -1))",
    "{x}.narrow({d}, 1, 1)",
    "{x}.select({d}, {i})",
    "{x}.diagonal()",
    "{x}.unfold({d}, 2, 1)",
    "{x}.unbind({d})[-1]",
    "{x}.split(2, {d})[-1]",
    "{x}.chunk(2, {d})[0]",
    "torch.tensor_split({x}, 2, {d})[1]",
    "torch.as_strided({x}.clone(), (2, 2), (1, 1), 1)",
    "{x}.real",
    "{x}.imag",
    "torch.view_as_real({x})",
    "{x}.conj()",
    "{x}.detach()",
    "{x}.movedim({d}, 0)",
    "{x}.view(torch.int32)",
    "{x}.view(torch.uint8)",
    "{x}.contiguous()",
    "{x}.ravel()",
    "{x}.reshape({y}.shape)",
    "{x}.data",
    "{x}.resolve_conj()",
    "{x}.H",
    "{x}.adjoint()",
    "{x}.swapaxes(0, {d})",
    "{x}.broadcast_to(3, *{x}.shape)",
)
IN_PLACE = (
    "{x}.add_({y})",
    "{x}.mul_({s})",
    "{x}.sub_({y}, alpha={n})",
    "{x}.zero_()",
    "{x}.fill_({s})",
    "{x}[1:] = {s}",
    "{x}[0] = {y}[0]",
    "{x}[..., 0] = {r}",
    "{x}.copy_({y})",
    "{x}.t_()",
    "{x}.transpose_(0, {d})",
    "{x}.squeeze_()",
    "{x}.squeeze_({d})",
    "{x}.unsqueeze_({d})",
    "{x}.clamp_({r}, 2)",
    "{x}.masked_fill_({x} > 0, {r})",
    "{x}[:][{x} > 1] = {r}",
    "{x}.neg_()",
    "{x}.abs_()",
    "{x} += {y}",
    "{x} *= {s}",
    "{x} -= {s}",
    "{x} /= 2",
    "{x}.relu_()",
    "{x}.index_fill_({d}, I, {r})",
    "{x}.index_add_({d}, I, {x}.detach().clone())",
    "{x}.scatter_({d}, torch.zeros_like({x}, dtype=torch.int64), {r})",
    "{x}.put_(I, {x}.reshape(-1)[I] + 1)",
    "{x}.set_({y})",
    "{x}.swapaxes_(0, {d})",
    "torch.add({x}, 1, out={z})",
    "torch.mul({z}, {s}, out={x})",
    "torch.sum({x}, {d}, out=torch.zeros(()).to({x}.dtype))",
    "torch.where({x} > 0, {x}, {z}, out={z})",
    "{x}.tril_()",
    "{x}.lerp_({z}, 0.25)",
    "{x}.addcmul_({z}, {z}, value={n})",
    "{x}[I] = {r}",
    "{x}[I] += 1",
    "{x}.index_put_((I,), {x}[I].clone(), accumulate=True)",
    "{x}.data = {y}.detach().clone()",
    "torch._foreach_add_([{x}, {z}], 1)",
    "{x}[{i}].mul_(2)",
    "{x}.t().add_(1)",
    "{x}.reshape(-1)[1:].mul_({r})",
    "{x}.resize_(1, 1)",
    "{x}.resize_(2, 4).fill_({r})",
    "{x}.sign_()",
    "{x}.fill_diagonal_(1)",
    "torch.manual_seed({n})",
    "{x}.normal_()",
    "{x}.random_(0, 9)",
    "{x}.bernoulli_(0.5)",
    "{x}.uniform_(0, 2, generator=G)",
    "{x}.exponential_(generator=G)",
    "G.manual_seed({n})",
    "G.set_state(G.get_state())",
    "with torch.random.fork_rng(devices=[]): {x}.normal_()",
)
NEW = (
    "{x} + {y}",
    "{x} - {y}",
    "{x} * {y}",
    "{x} / {y}",
    "{x} // {r}",
    "{x} % {r}",
    "{x} ** 2",
    "({x} + 0.5) ** {r}",  # a bool to the power of True has another dtype in torch's prediction than in torch
    "{s} + {x}",
    "{s} - {x}",
    "{s} * {x}",
    "{r} / {x}",
    "{x} - {s}",
    "2 ** {x}.contiguous()",
    "{x} < {y}",
    "{x} >= {r}",
    "{r} < {x}",
    "{x} == {y}",
    "{x} != {s}",
    "{x} & {y}",
    "{x} | True",
    "{x} ^ {y}",
    "~{x}",
    "{x}.long() << 1",
    "-{x}",
    "abs({x})",
    "{x}.exp()",
    "{x}.sin()",
    "{x}.sqrt()",
    "{x}.sigmoid()",
    "torch.relu({x})",
    "F.gelu({x})",
    "F.gelu({x}, approximate='tanh')",
    "F.silu({x})",
    "F.softmax({x}, {d})",
    "F.log_softmax({x}.float(), -1)",
    "F.layer_norm({x}, {x}.shape[-1:])",
    "F.layer_norm({x}, {x}.shape[-1:], {x}[0], None)",
    "{x}.cumsum({d})",
    "{x}.flip({d})",
    "{x}.roll({n}, {d})",
    "{x}.sort({d})",
    "{x}.sort({d})[1]",
    "{x}.topk(1, {d})",
    "{x}.argmax({d})",
    "{x}.argmin()",
    "{x}.to(torch.{t})",
    "{x}.to({y}.dtype)",
    "{x}.type_as({y})",
    "{x}.float()",
    "{x}.double()",
    "{x}.clone()",
    "{x}.clone(memory_format=torch.contiguous_format)",
    "torch.zeros_like({x})",
    "torch.ones_like({x}, dtype=torch.{t})",
    "torch.full_like({x}, {r})",
    "{x}.new_zeros({n}, 2)",
    "{x}.new_full((2,), {r})",
    "{x}.new_tensor([{r}, 1])",
    "{x}.sum()",
    "{x}.sum({d})",
    "{x}.sum({d}, keepdim=True)",
    "{x}.mean()",
    "{x}.mean({d})",
    "{x}.amax({d})",
    "{x}.amin()",
    "{x}.max()",
    "{x}.max({d})",
    "{x}.min({d}).values",
    "{x}.prod({d})",
    "{x}.any()",
    "{x}.all({d})",
    "{x}.std()",
    "{x}.var({d})",
    "{x}.norm()",
    "{x}.logsumexp({d})",
    "torch.maximum({x}, {y})",
    "torch.cat([{x}, {y}])",
    "torch.cat([{x}, {z}, {x}], {d})",
    "torch.stack([{x}, {z}], {d})",
    "{x} @ {y}",
    "{x} @ {x}.mT",
    "torch.einsum('ij,ik->jk', {x}, {x})",
    "{x}.outer({x})",
    "F.linear({x}, {y})",
    "torch.addmm({x}, {x}, {x}.mT[:, :{x}.shape[-1]])",
    "torch.bmm({x}, {x}.mT)",
    "{x}.gather({d}, torch.zeros_like({x}, dtype=torch.int64))",
    "{x}.index_select({d}, I)",
    "{x}[I]",
    "{x}[..., I]",
    "{x}[I, I]",
    "{x}[:, None, I]",
    "{x}.take(I)",
    "torch.where({x} > 0, {x}, {y})",
    "torch.where({x} > {r}, {x}, {s})",
    "{x}.clamp({r}, 2)",
    "{x}.clamp(min={r})",
    "{x}.clamp({x} - 1, {x} + 1)",
    "{x}.masked_fill({x} == 0, {r})",
    "{x}.tril()",
    "{x}.repeat(2, *[1] * {x}.dim())",
    "{x}.tile(2)",
    "{x}.repeat_interleave(2, {d})",
    "F.pad({x}, (1, 0))",
    "F.one_hot({x}.contiguous().long().abs() % 3, 3)",
    "{x}.isnan()",
    "{x}.round()",
    "{x}.floor()",
    "torch.lerp({x}, {z}, 0.5)",
    "torch.dist({x}, {z})",
    "torch.cdist({x}, {x})",
    "F.mse_loss({x}, {z})",
    "torch.zeros({n}, 2)",
    "torch.ones(2, {n}, dtype=torch.{t})",
    "torch.full((2, {n}), {r})",
    "torch.arange({n} + 2)",
    "torch.arange(0, 1, 0.25, dtype=torch.float64)",
    "torch.eye({n} + 1)",
    "torch.linspace({r}, 2, 4)",
    "torch.tensor([[{r}, 1], [2, {r}]])",
    "torch.tensor({r}) * 2 + {x}",
    "torch.tensor({r}).item() * {x}",
    "torch.as_tensor([1, {n}])",
    "torch.scalar_tensor({r})",
    "torch.meshgrid({x}, {x}, indexing='ij')",
    "torch.broadcast_tensors({x}, {y})",
    "{x}.chunk(2, {d})",
    "{x}.unbind({d})",
    "{x}.split(1)",
    "[row + 1 for row in {x}]",
    "{x}.aminmax()",
    "torch.var_mean({x})",
    "torch._foreach_mul([{x}, {z}], 2)",
    "torch.complex({x}, {z})",
    "torch.polar({x}.abs(), {z})",
    "{x}.conj() * {y}",
    "{x}.expand(2, *{x}.shape).sum(0)",
    "{x}.T if {x}.dim() == 2 else {x}",
    "{x}.nan_to_num()",
    "torch.cross({x}, {z}, dim={d})",
    "{x}.cummax({d})",
    "{x}.bool()",
    "{x}.half()",
    "{x}.bfloat16()",
    "torch.triu_indices(2, {n})",
    "torch.addcmul({x}, {z}, {z}, value={r})",
    "torch.bucketize({x}, torch.arange(3.0))",
    "{x}.histc(2)",
    "{x}.diff()",
    "torch.trapezoid({x})",
    "F.normalize({x}, dim={d})",
    "F.cosine_similarity({x}, {z}, dim={d})",
    "F.embedding(I, {x})",
    "F.conv1d({x}[None], {x}[None])",
    "F.max_pool1d({x}, 1)",
    "F.scaled_dot_product_attention({x}[None], {x}[None], {x}[None])",
    "F.binary_cross_entropy_with_logits({x}, torch.ones_like({x}))",
    "F.cross_entropy({x}, torch.zeros(len({x}), dtype=torch.int64))",
    "torch.linalg.vector_norm({x}, 1)",
    "F.dropout({x}, 0.0)",
    "F.batch_norm({x}.contiguous(), None, None, training=True)",
    "F.dropout({x}.float(), 0.5)",
    "F.alpha_dropout({x}.float(), 0.25, training=True)",
    "torch.rand({n}, 2)",
    "torch.randn(2, {n}, dtype=torch.float64)",
    "torch.randn_like({x}.float())",
    "torch.randint(9, (2, {n}))",
    "torch.randperm({n} + 2)",
    "torch.bernoulli({x}.float().sigmoid())",
    "torch.multinomial({x}.float().reshape(-1).softmax(0), {n}, True)",
    "torch.rand({n}, generator=G)",
    "torch.normal({x}.float(), 1.5, generator=G)",
    "torch.randperm({n} + 2, generator=G)",
    "torch.rand({n}, generator=torch.Generator().manual_seed({n}))",
    "torch.rand(2, generator=G.clone_state())",
    "[s := torch.get_rng_state(), torch.rand(2), torch.set_rng_state(s), torch.rand(2)][1::2]",
    "[s := G.get_state(), torch.rand(2, generator=G), G.set_state(s), torch.rand(2, generator=G)][1::2]",
)
LOSSES = (
    "p.sum()",
    "(p * p).mean()",
    "(p @ p.mT).sum()",
    "F.softmax(p, -1)[..., 0].sum()",
    "F.layer_norm(p, p.shape[-1:]).pow(2).sum()",
    "F.gelu(p).sum()",
    "(p[1:] * {r}).sum()",
    "p.transpose(0, -1).reshape(-1).cumsum(0).mean()",
    "torch.cat([p, p * 2]).std()",
    "(p.clone().mul_(2) ** 2).sum()",
    "p.clone().t_().sigmoid().sum()",
    "p.amax(-1).sum()",
    "(p + {x}).sum()",
    "p[I].sum()",
    "torch.where(p > 0, p, p * {r}).sum()",
    "(p.unbind(0)[0] * p.unbind(0)[-1]).sum()",
    "p.exp().log1p().sum() * {r}",
    "p.norm()",
    # not prod(): its derivative takes another way for tensor subclasses
    "(2 - p).abs().max()",
    "p.view(-1)[::2].sum()",
    "torch.stack([p, p.detach()]).sum()",
    "F.dropout(p).sum()",
    "(checkpoint(F.dropout, p, use_reentrant=True) * torch.rand_like(p)).sum()",
    "(checkpoint(F.dropout, checkpoint(F.dropout, p, use_reentrant=False), use_reentrant=False) * p).sum()",
)

# Values that leave the mesh and come back (see `host`, `sent`, `stored`): not in programs that are recorded.
STATE = (
    "{x}.copy_(host({z}))",
    "{x}[0] = host({x}[0])",
    "{x}.data = host({y})",
    "v{v} = sent(host({x}))",
    "v{v} = stored({x})",
    "v{v} = sent([host({x}), host({y})])",
    "L = torch.nn.Linear(3, 2); L.load_state_dict(host(dict(weight=v0, bias=v0[:, 0]))); v{v} = L.weight.detach() * 2",
    "L = torch.nn.Linear(3, 2); L.load_state_dict(stored(dict(weight=v0, bias=v0[:, 0]), False)); v{v} = L.bias.data",
)


def host(tree: Any) -> Any:
    """The tensors of `tree` as local ones."""
    if any(type(leaf) is mt.Tensor for leaf in pytree.tree_leaves(tree)):
        tree = mt.inspect(tree)
    with mt.no_mesh.activate():
        return pytree.tree_map(lambda tensor: tensor.detach().resolve_conj().resolve_neg().clone(), tree)


def sent(tree: Any) -> Any:
    """The local tensors of `tree` on the mesh that is active, if one is."""
    return tree if active_mesh() is None else mt.replicate(tree)


def stored(tree: Any, back: bool = True) -> Any:
    """Returns what torch.load gives of what torch.save wrote; on the mesh, if it is to go `back`."""
    file = io.BytesIO()
    torch.save(tree, file)
    file.seek(0)
    found = host(torch.load(file))
    return sent(found) if back else found


def namespace() -> dict[str, Any]:
    """Returns what every program begins with. Call it where its tensors are to live."""
    torch.manual_seed(0)
    return {
        "host": host,
        "sent": sent,
        "stored": stored,
        "torch": torch,
        "F": torch.nn.functional,
        "checkpoint": checkpoint,
        "G": torch.Generator().manual_seed(0),
        "I": torch.tensor([0, 1, 0]),
        "v0": torch.tensor([[0.5, -1.0, 2.0], [3.0, 0.25, -0.75]]),
        "v1": torch.arange(6).reshape(2, 3),
        "v2": torch.tensor(1.5),
        "v3": torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(2, 3, 2).transpose(0, 1),
        "v4": torch.tensor([[1 + 2j, -1j], [0.5, -3 + 0.25j]]),
        "v5": torch.tensor([True, False, True]),
    }


def run(line: str, scope: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(line, scope)


def tensors(scope: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of the program, those in tuples and their gradients too."""
    found = {}
    for name, value in scope.items():
        if name.startswith("v"):
            for place, item in enumerate(value if isinstance(value, (list, tuple)) else [value]):
                if isinstance(item, torch.Tensor):
                    found[f"{name}.{place}"] = item
    return found


@st.composite
def programs(draw: Callable[..., Any], longest: int = 10, state: bool = False) -> list[str]:
    """Lines that run one after the other in a `namespace()`; what does not run is left out. With `state`, values leave the
    mesh and come back."""
    return program(lambda choices: draw(st.sampled_from(choices)), longest, state)


def program(pick: Callable[[Sequence[Any]], Any], longest: int, state: bool = False) -> list[str]:
    """A program made of what `pick` picks."""
    with mt.no_mesh.activate():
        return _program(pick, longest, state)


def _program(pick: Callable[[Sequence[Any]], Any], longest: int, state: bool) -> list[str]:
    scope = namespace()
    lines: list[str] = []
    for _ in range(pick(range(1, longest + 1))):
        line = _line(pick, scope, len(lines) + 6, state)
        try:
            run(line, scope)
        except Exception:
            continue
        lines.append(line)
        if any(tensor.numel() > 300 or tensor.layout is not torch.strided for tensor in tensors(scope).values()):
            break
    return lines


def _line(pick: Callable[[Sequence[Any]], Any], scope: dict[str, Any], number: int, state: bool) -> str:
    names = [name for name, value in scope.items() if name.startswith("v") and isinstance(value, torch.Tensor)]
    x = pick(names)
    shape = scope[x].shape
    same = [name for name in names if scope[name].shape == shape]
    facts = {
        "x": x,
        "y": pick(names),
        "z": pick(same),
        "d": pick(range(-1, max(len(shape), 1))),
        "i": pick(range(-1, 2)),
        "n": pick(range(1, 4)),
        "s": pick(SCALARS),
        "r": pick(REAL),
        "t": pick(DTYPES),
        "v": number,
    }
    kind = pick(range(16 if state else 12))
    if kind > 11:
        return str(pick(STATE).format(**facts))
    if kind < 4:
        return f"v{number} = " + pick(VIEWS).format(**facts)
    if kind < 7:
        return str(pick(IN_PLACE).format(**facts))
    if kind < 11:
        return f"v{number} = " + pick(NEW).format(**facts)
    loss = pick(LOSSES).format(**facts)
    return f"p = {x}.detach().clone().requires_grad_(); ({loss}).backward(); v{number} = p.grad"
