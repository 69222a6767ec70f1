"""What transformers' models keep and hold, counted on the CPU by PyTorch itself, beside what the stacks of accelerate
and DeepSpeed say. Needs torch and transformers; the sizes are small, and what is compared scales with them."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from cpsolver.cost.kinds import layer_kinds
from cpsolver.cost.memory import layer_bytes
from cpsolver.cost.shard import Shard
from cpsolver.evaluation.evaluate import evaluate
from cpsolver.problem.problem import Problem
from cpsolver.profiles.stack import load_stack
from tests.support.problems import model_spec, problem_of, strategy_of, with_stack

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
Dispatch: Any = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode

TOKENS, LAYERS = 512, 8


def llama(layers: int, vocab: int) -> Any:
    sizes = {"hidden_size": 256, "intermediate_size": 896, "num_attention_heads": 8, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=layers, vocab_size=vocab, use_cache=False)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16).train()


def counted(vocab: int) -> Problem:
    """The same model as the stack counts it, without what an allocator adds."""
    sizes = {"layers": LAYERS, "hidden": 256, "ffn": 896, "heads": 8, "kv_heads": 2, "vocab": vocab}
    model = model_spec(**sizes, norm="rmsnorm", gated_mlp=True)
    stack = load_stack("accelerate")
    own = {name: getattr(stack, name) for name in ("eager_layers", "logits_bytes", "waiting_logits_bytes")}
    problem = problem_of(gpus=1, node=1, model=model, sequence=TOKENS, batch=1)
    return with_stack(problem, **own, allocator_overhead=0.0, activation_overhead=0.0)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_layer_keeps_what_is_counted(autocast: bool) -> None:
    """Two layers less one, by what autograd saves; parameters and what all layers share are not of them."""

    def saved(layers: int) -> int:
        model = llama(layers, 100).model
        own = {each.untyped_storage().data_ptr() for each in model.parameters()}
        found: dict[int, Any] = {}

        def keep(tensor: Any) -> Any:
            found[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no other takes its address
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(torch.zeros((1, TOKENS), dtype=torch.long))
        return sum(each.untyped_storage().nbytes() for at, each in found.items() if at not in own)

    problem = counted(100)
    full = layer_bytes(problem, Shard.of(1, 1, False, True), layer_kinds(problem.model)[0]).full.item()
    statistics = 2 * 4 * TOKENS  # a number a token of each norm, which the count leaves out
    assert saved(2) - saved(1) - statistics == pytest.approx(full)


class Live(Dispatch):  # type: ignore[misc]
    """Counts the bytes of tensors that are there while it is on, and their `peak`, but for those of `own`."""

    def __init__(self, own: list[Any]) -> None:
        super().__init__()
        self._sizes = {each.untyped_storage()._cdata: 0 for each in own}
        self._now = self.peak = 0

    def __torch_dispatch__(self, operator: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operator(*args, **(kwargs or {}))
        for each in torch.utils._pytree.tree_leaves(made):
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                if storage._cdata not in self._sizes:
                    self._sizes[storage._cdata] = storage.nbytes()
                    self._now += storage.nbytes()
                    weakref.finalize(storage, self._gone, storage._cdata)
        self.peak = max(self.peak, self._now)
        return made

    def _gone(self, address: int) -> None:
        self._now -= self._sizes.pop(address, 0)


@pytest.mark.parametrize("vocab", [200, 16000])
def test_a_step_peaks_where_it_is_predicted(vocab: int) -> None:
    """With few words while the last layer runs backward, with many in the loss."""
    model, tokens = llama(LAYERS, vocab), torch.zeros((1, TOKENS), dtype=torch.long)
    model(tokens, labels=tokens).loss.backward()  # the gradients that it adds to are there
    own = [*model.parameters(), *(each.grad for each in model.parameters()), *model.buffers()]
    with Live(own) as live:
        output = model(tokens, labels=tokens)  # held, as training loops do
        output.loss.backward()
    plan = strategy_of(f"x:{LAYERS}", tp=1, dp=1, mbs=1, flags="f")
    memory = evaluate(counted(vocab), plan).stages[0].memory
    assert memory.activations + memory.buffers == pytest.approx(live.peak, rel=0.06)
